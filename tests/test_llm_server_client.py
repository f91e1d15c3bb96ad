"""The client of completion servers: attempts, deadlines, faults of one row and of all, streams, keys."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import ModelError, RidgewayError, RowError
from stages.llm.sampling import Sampling
from stages.llm.server_client import PAUSES, Ask, Said, Server
from stages.llm.server_protocol import fault, message_in, retry_after
from tests.fake_server import Fake, Reply, completion, piece, serving, streamed

ASK = Ask((1, 2, 3), 8)
BUSY = Reply({"error": {"message": "come back later"}}, 503)
YES = Said("yes", 3, 1, "end")
LONG = "This model's maximum context length is 128 tokens. However, you requested 130 tokens"


class Time:
    """A clock that only passes where somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


@pytest.fixture
def fake() -> Iterator[Fake]:
    with serving() as found:
        yield found


def server(fake: Fake, time: Time | None = None, **more: Any) -> Server:
    time = time or Time()
    return Server(fake.url, "tiny", **{"seconds": 100.0, "clock": time.clock, "sleep": time.sleep, **more})


def one(client: Server, ask: Ask = ASK) -> Said | RowError:
    (found,) = client.complete([ask], 1)
    return found


def failed(client: Server, ask: Ask = ASK) -> RowError:
    found = one(client, ask)
    assert isinstance(found, RowError)
    return found


def in_turn(*replies: Reply) -> Any:
    left = iter(replies)
    return lambda body: next(left)


def read(stream: Any) -> tuple[list[str], Any]:
    """All pieces of a stream, and what it returns."""
    pieces = []
    while True:
        try:
            pieces.append(next(stream))
        except StopIteration as end:
            return pieces, end.value


# what is asked


def test_a_prompt_goes_as_token_ids_with_all_that_was_asked_for(fake: Fake) -> None:
    assert one(server(fake), Ask((5, 6), 9, Sampling(0.5, 0.9, 7, ("\n",)))) == YES
    assert fake.asked == [
        {"model": "tiny", "prompt": [5, 6], "max_tokens": 9, "temperature": 0.5, "top_p": 0.9, "seed": 7,
         "stop": ["\n"]}
    ]  # fmt: skip
    assert fake.paths == ["/v1/completions"]


@pytest.mark.parametrize("end", ["", "/", "/v1", "/v1/"])
def test_an_address_may_end_in_v1_or_not(fake: Fake, end: str) -> None:
    fake.url += "/openai" + end
    one(server(fake))
    assert fake.paths == ["/openai/v1/completions"]


@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        (
            "",
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "answer", "schema": {"a": 1}},
                }
            },
        ),
        ("vllm", {"structured_outputs": {"json": {"a": 1}}, "top_k": -1, "min_p": 0.0}),
        ("llama.cpp", {"json_schema": {"a": 1}, "top_k": -1, "min_p": 0.0}),
    ],
)
def test_what_is_not_in_the_protocol_is_said_to_those_who_know_it(fake: Fake, kind: str, keys: Any) -> None:
    one(server(fake, kind=kind), Ask("text", 1, schema='{"a": 1}'))
    usual = {"model", "prompt", "max_tokens", "temperature", "top_p", "seed"}
    assert {k: v for k, v in fake.asked[0].items() if k not in usual} == keys


def test_a_regex_is_for_vllm_only(fake: Fake) -> None:
    one(server(fake, kind="vllm"), Ask("text", 1, regex="a+"))
    assert fake.asked[0]["structured_outputs"] == {"regex": "a+"}
    with pytest.raises(RidgewayError, match="only vLLM follows one"):
        one(server(fake), Ask("text", 1, regex="a+"))


@pytest.mark.parametrize(("schema", "regex", "what"), [("{", "", "no JSON"), ("{}", "a", "both given")])
def test_a_form_that_cannot_be_is_refused(schema: str, regex: str, what: str) -> None:
    with pytest.raises(RidgewayError, match=what):
        Ask("text", 1, schema=schema, regex=regex)


@pytest.mark.parametrize("url", ["", "localhost:8000", "ftp://a", "http://", "http://a:b", "http://a/?k=1"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(RidgewayError, match="write it as"):
        Server(url, "tiny")


def test_a_password_in_the_address_is_refused_and_not_shown() -> None:
    with pytest.raises(RidgewayError, match="use key_env") as caught:
        Server("http://me:secret@host", "tiny")
    assert "secret" not in str(caught.value)


# what is answered


def test_answers_come_in_the_order_of_the_prompts(fake: Fake) -> None:
    fake.answer = lambda body: completion(f" {body['prompt']} ", new=body["prompt"][0])
    found = server(fake).complete([Ask((i,), 8) for i in range(20)], 4)
    assert found == [Said(f"[{i}]", 3, i, "end") for i in range(20)]


@pytest.mark.parametrize(("reason", "stop"), [("stop", "end"), ("length", "length")])
def test_finish_reasons_are_ours(fake: Fake, reason: str, stop: str) -> None:
    fake.answer = lambda body: completion("a", reason=reason)
    assert one(server(fake)) == Said("a", 3, 1, stop)


def test_an_answer_that_the_server_ended_for_another_reason_is_an_error(fake: Fake) -> None:
    fake.answer = lambda body: completion("a", reason="content_filter")
    error = failed(server(fake))
    assert (error.category, len(fake.asked)) == ("server", 1)
    assert "content_filter" in error.message


def test_counts_that_are_not_told_are_zero(fake: Fake) -> None:
    fake.answer = lambda body: Reply({"choices": [{"text": "a", "finish_reason": "stop"}]})
    assert one(server(fake)) == Said("a", 0, 0, "end")


def test_prompt_tokens_that_the_server_had_are_counted(fake: Fake) -> None:
    usage = {"prompt_tokens": 9, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 6}}
    fake.answer = lambda body: Reply({"choices": [{"text": "a", "finish_reason": "stop"}], "usage": usage})
    assert one(server(fake)) == Said("a", 9, 1, "end", 6)


def test_no_prompts_are_no_requests(fake: Fake) -> None:
    assert server(fake).complete([], 4) == []
    assert fake.paths == []


def test_there_are_never_more_requests_at_once_than_allowed(fake: Fake) -> None:
    too_many = threading.Barrier(4)

    def answer(body: Any) -> Reply:
        with contextlib.suppress(threading.BrokenBarrierError):
            too_many.wait(0.2)  # the first three wait in vain for a fourth
        return completion("yes")

    fake.answer = answer
    assert server(fake).complete([ASK] * 12, 3) == [YES] * 12
    assert fake.most == 3


# attempts


def test_attempts_follow_the_schedule_and_then_the_row_fails(fake: Fake) -> None:
    fake.answer, time = lambda body: BUSY, Time()
    error = failed(server(fake, time))
    assert time.slept == list(PAUSES)
    assert len(fake.asked) == len(PAUSES) + 1
    assert error.category == "server"
    assert "come back later" in error.message


@pytest.mark.parametrize(
    "bad",
    [
        *(Reply({"error": "x"}, s) for s in (408, 429, 500, 502, 503, 504)),
        Reply(None),
        Reply(b"<html>"),
        Reply([1]),
        Reply({"choices": []}),
        Reply({"choices": [{"text": None, "finish_reason": "stop"}]}),
        completion("half", reason=None),
        Reply(b'{"choices"', promised=500),
    ],
)
def test_what_may_pass_is_tried_again(fake: Fake, bad: Reply) -> None:
    fake.answer, time = in_turn(bad, bad, completion("yes")), Time()
    assert one(server(fake, time)) == YES
    assert time.slept == list(PAUSES[:2])


def test_a_server_is_left_alone_for_as_long_as_it_asks(fake: Fake) -> None:
    busy = Reply({"error": "slow down"}, 429, {"Retry-After": "7"})
    fake.answer, time = in_turn(busy, busy, completion("yes")), Time()
    assert one(server(fake, time)) == YES
    assert time.slept == [7, 7]


def test_asking_to_wait_beyond_the_deadline_fails_at_once(fake: Fake) -> None:
    fake.answer, time = lambda body: Reply({"error": "slow down"}, 429, {"Retry-After": "3600"}), Time()
    assert failed(server(fake, time)).category == "server"
    assert (time.slept, len(fake.asked)) == ([], 1)


def test_the_deadline_counts_all_attempts(fake: Fake) -> None:
    fake.answer, time = lambda body: BUSY, Time()
    failed(server(fake, time, seconds=4.0))
    assert time.slept == [0.5, 1.0, 2.0]


def test_a_server_that_does_not_answer_in_time_is_a_timeout(fake: Fake) -> None:
    late = threading.Event()

    def answer(body: Any) -> Reply:
        late.wait(5)
        return completion("yes")

    fake.answer = answer
    error = failed(Server(fake.url, "tiny", seconds=0.05))
    late.set()
    assert error.category == "timeout"
    assert "within 0.05 seconds" in error.message


@given(
    seconds=st.floats(0.1, 60), waits=st.lists(st.sampled_from([None, 0, 1, 5, 90]), min_size=10, max_size=10)
)
def test_attempts_end_within_the_deadline(seconds: float, waits: list[int | None]) -> None:
    time = Time()
    client = Server("http://127.0.0.1:1", "tiny", seconds=seconds, clock=time.clock, sleep=time.sleep)
    with pytest.raises(RowError):
        fail_on(client._tries(seconds), waits)
    assert sum(time.slept) < seconds
    assert len(time.slept) <= len(PAUSES)


def fail_on(tries: Any, waits: list[int | None]) -> None:
    """Attempts that all fail; `waits`: what the server asks for each time."""
    for wait in waits:
        headers = {} if wait is None else {"retry-after": str(wait)}
        tries.after(fault("url", 503, "busy", retry_after(headers)))


def test_a_date_to_come_back_is_read_beside_the_servers_own() -> None:
    date, later = "Wed, 21 Oct 2026 07:28:00 GMT", "Wed, 21 Oct 2026 07:28:30 GMT"
    assert retry_after({"Date": date, "Retry-After": later}) == 30
    assert retry_after({"Date": later, "Retry-After": date}) == 0
    assert retry_after({"Retry-After": later}) == retry_after({"Retry-After": "soon"}) == retry_after({}) == 0


# faults of one row


@pytest.mark.parametrize(
    "reply",
    [
        Reply({"error": {"message": LONG, "type": "BadRequestError", "code": 400}}, 400),
        Reply(
            {"error": {"code": 400, "message": "request (9412 tokens) exceeds the available context size"}},
            400,
        ),
        Reply({"error": {"message": "please shorten it", "code": "context_length_exceeded"}}, 400),
        Reply({"error": {"code": 500, "message": "Context size has been exceeded."}}, 500),
        Reply({"detail": "the prompt is too long"}, 422),
    ],
)
def test_a_prompt_without_room_is_too_long_and_not_asked_again(fake: Fake, reply: Reply) -> None:
    fake.answer = lambda body: reply
    error = failed(server(fake))
    assert (error.category, len(fake.asked)) == ("too long", 1)
    assert "fewer passages" in error.message


def test_a_poisoned_row_fails_alone(fake: Fake) -> None:
    refusal = Reply({"error": {"message": "token id 99999 is out of vocabulary"}}, 400)
    fake.answer = lambda body: refusal if body["prompt"] == [99999] else completion("yes")
    first, bad, last = server(fake).complete([ASK, Ask((99999,), 8), ASK], 2)
    assert (first, last, len(fake.asked)) == (YES, YES, 3)
    assert isinstance(bad, RowError)
    assert (bad.category, "out of vocabulary" in bad.message) == ("server", True)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b'{"error": {"message": "a"}}', "a"),
        (b'{"error": "a"}', "a"),
        (b'{"error": {"message": "a", "code": "b"}}', "a (b)"),
        (b'{"detail": "a"}', "a"),
        (b"\xff plain", "\ufffd plain"),
        (b"[1]", "[1]"),
        (b"", ""),
    ],
)
def test_what_an_error_says_is_found_in_each_form(answer: bytes, message: str) -> None:
    assert message_in(answer) == message


# faults of all rows


def test_a_key_comes_from_the_environment_and_is_never_shown(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TINY_KEY", "sk-very-secret")
    client = server(fake, key_env="TINY_KEY")
    assert one(client) == YES
    assert fake.keys == ["Bearer sk-very-secret"]
    echo = Reply({"error": {"message": "sk-very-secret is wrong"}}, 500)
    fake.answer = lambda body: echo
    row = failed(client)
    fake.answer = lambda body: Reply(echo.body, 401)
    with pytest.raises(ModelError, match="refuses the key in 'TINY_KEY'") as caught:
        one(client)
    for said in (repr(client), row.message, str(row.__cause__), str(caught.value)):
        assert "secret" not in said
    assert "... is wrong" in row.message


def test_a_key_that_is_not_there_is_told_before_anything_is_asked(fake: Fake) -> None:
    with pytest.raises(ModelError, match=r"'NO_SUCH_KEY' for the key of .* is not set"):
        server(fake, key_env="NO_SUCH_KEY")
    assert fake.paths == []


def test_a_key_that_is_wanted_ends_the_run_at_its_first_row(fake: Fake) -> None:
    fake.answer = lambda body: Reply({"error": "no key"}, 401)
    with pytest.raises(ModelError, match="give key_env"):
        server(fake).complete([ASK] * 50, 1)
    assert len(fake.asked) < 50


def test_a_model_that_is_not_there_is_told_with_the_near_miss(fake: Fake) -> None:
    fake.answer = lambda body: Reply({"error": {"message": "no such model"}}, 404)
    with pytest.raises(ModelError, match=r"no completions of 'tinny'; did you mean 'tiny'\?.*no such model"):
        one(Server(fake.url, "tinny"))


def test_a_server_elsewhere_is_not_followed(fake: Fake) -> None:
    fake.answer = lambda body: Reply(b"", 307, {"Location": "http://elsewhere/v1/completions"})
    with pytest.raises(ModelError, match="elsewhere"):
        one(server(fake))


def test_checking_finds_a_server_or_says_that_there_is_none(fake: Fake) -> None:
    server(fake).check()
    fake.models = Reply({"error": "no list here"}, 404)
    server(fake).check()
    fake.models = Reply({"error": "who are you"}, 403)
    with pytest.raises(ModelError, match="refuses to answer without a key"):
        server(fake).check()
    with serving() as gone:
        pass
    with pytest.raises(ModelError, match=r"no server answers at .*Connection refused"):
        server(gone).check()


def test_a_server_that_is_gone_fails_rows_and_not_the_run() -> None:
    with serving() as gone:
        pass
    time = Time()
    error = failed(server(gone, time))
    assert (error.category, time.slept) == ("server", list(PAUSES))
    assert "Connection refused" in error.message


def test_less_than_one_request_at_once_is_refused(fake: Fake) -> None:
    with pytest.raises(RidgewayError, match="concurrency is 0"):
        server(fake).complete([ASK], 0)


# streams


def test_a_stream_gives_pieces_and_then_the_whole(fake: Fake) -> None:
    usage = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}
    fake.answer = lambda body: streamed(piece(" Ja"), piece("wohl "), piece("", "stop"), usage)
    assert read(server(fake).stream(ASK)) == ([" Ja", "wohl "], Said("Jawohl", 3, 2, "end"))
    assert fake.asked[0]["stream"] is True


def test_a_stream_may_name_the_reason_with_its_last_piece(fake: Fake) -> None:
    fake.answer = lambda body: streamed(piece("a"), piece("b", "length"))
    assert read(server(fake).stream(ASK)) == (["a", "b"], Said("ab", 0, 0, "length"))


def test_a_stream_is_tried_again_until_a_piece_was_given(fake: Fake) -> None:
    time = Time()
    fake.answer = in_turn(BUSY, Reply(None), streamed(done=False), streamed(piece("a", "stop")))
    assert read(server(fake, time).stream(ASK))[0] == ["a"]
    assert time.slept == list(PAUSES[:3])


def test_a_stream_that_breaks_off_after_a_piece_is_an_error(fake: Fake) -> None:
    fake.answer = lambda body: streamed(piece("a"), done=False)
    stream = server(fake).stream(ASK)
    assert next(stream) == "a"
    with pytest.raises(RowError, match="breaks off in an answer") as caught:
        next(stream)
    assert (caught.value.category, len(fake.asked)) == ("server", 1)


def test_an_error_inside_a_stream_is_told(fake: Fake) -> None:
    fake.answer = lambda body: streamed({"error": {"message": LONG}})
    with pytest.raises(RowError, match="maximum context length") as caught:
        read(server(fake).stream(ASK))
    assert caught.value.category == "too long"


def test_lines_that_are_no_data_are_passed_over(fake: Fake) -> None:
    fake.answer = lambda body: Reply(b": ping\nevent: x\n\n" + streamed(piece("a", "stop")).body)
    assert read(server(fake).stream(ASK))[0] == ["a"]
