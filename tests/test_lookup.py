from __future__ import annotations

import pytest

from pipeline.lookup import find, load, near_miss


def test_a_near_miss_is_proposed() -> None:
    assert near_miss("serch", ["search", "split"]) == "; did you mean 'search'?"


def test_where_nothing_is_near_the_known_names_are_listed_in_order() -> None:
    assert near_miss("xyz", {"b": 1, "a": 2}) == "; known: a, b"


def test_where_nothing_is_known_nothing_is_said() -> None:
    assert near_miss("xyz", ()) == ""


def test_a_path_leads_to_an_object() -> None:
    assert load("pipeline.lookup:load") is load


def test_a_path_leads_into_a_class() -> None:
    assert load("pipeline.values:Rows.take").__name__ == "take"


@pytest.mark.parametrize(
    ("path", "error"), [("no_such_module:x", ImportError), ("pipeline.lookup:x", AttributeError)]
)
def test_a_path_that_leads_nowhere_raises_as_python_does(path: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        load(path)


def test_a_table_is_asked_by_name_and_answers_with_the_near_miss() -> None:
    table = {"load": "pipeline.lookup:load"}
    assert find("load", table, "thing") is load
    with pytest.raises(LookupError, match=r"no thing named .laod.; did you mean .load.\?"):
        find("laod", table, "thing")
