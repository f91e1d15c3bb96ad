from __future__ import annotations

import random
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.local import Outcome, run_local
from tests.driving import Driver
from tests.graphs import graphs, inputs_for


def essence(outcome: Outcome) -> tuple[object, ...]:
    """What two ways to run a graph must agree on."""
    results = {(r.output, r.id): (r.rows, bool(r.failures)) for r in outcome.results}
    return results, Counter((f.id, f.stage, f.category) for f in outcome.failures)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_any_order_of_events_gives_what_the_plain_loop_gives(data: st.DataObject) -> None:
    graph = data.draw(graphs())
    inputs = data.draw(inputs_for(graph))
    rng = random.Random(data.draw(st.integers(0, 99)))
    window = data.draw(st.sampled_from([1, 500, 1 << 30]))
    driver = Driver(graph, window, ordered=data.draw(st.booleans()))
    assert essence(driver.run(inputs, lambda w: rng.randrange(len(w)))) == essence(run_local(graph, inputs))
