"""Results, stop reasons and usages: values that print, compare, add up and go to JSON."""

from __future__ import annotations

import json
import re
from dataclasses import FrozenInstanceError, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kernai
from kernai import KernaiError, LimitReachedError, Media, Message, Result, RunStoppedError, StopReason, Usage

PICTURE = Media.from_bytes(b"hidden", mime_type="image/png")
DONE = Result("done", StopReason.FINAL, 1, Usage(1, 2, 3, 0.5, 1), (Message("user", ["Go.", PICTURE]),), "run-1")


def test_a_stop_reason_is_the_plain_word() -> None:
    limits = "max_steps max_tokens max_cost max_calls timeout max_depth loop output"
    assert [str(reason) for reason in StopReason] == f"final {limits} guardrail interrupt error cancelled closed".split()
    assert json.dumps([StopReason.FINAL]) == f'["{StopReason.FINAL}"]' == '["final"]'
    assert {"timeout": StopReason("timeout")}[StopReason.TIMEOUT] is StopReason.TIMEOUT


def test_a_result_with_an_answer_gives_it() -> None:
    assert (str(DONE), DONE.ok, DONE.unwrap()) == ("done", True, "done")
    for value, name in ((DONE, "text"), (Usage(), "cost")):
        with pytest.raises((FrozenInstanceError, AttributeError)):
            setattr(value, name, 1)
    assert Result("", StopReason.FINAL, 1, Usage(), (), "r").unwrap() == ""


def test_a_result_without_an_answer_raises_what_stopped_the_run() -> None:
    stopped = LimitReachedError("too slow", StopReason.TIMEOUT)
    result = Result(None, StopReason.TIMEOUT, 1, Usage(), (), "r", stopped)
    assert (str(result), result.ok) == ("", False)
    with pytest.raises(LimitReachedError, match="too slow"):
        result.unwrap()
    unexplained = Result(None, StopReason.GUARDRAIL, 1, Usage(), (), "r")
    with pytest.raises(RunStoppedError, match="guardrail") as caught:
        unexplained.unwrap()
    assert caught.value.result is unexplained


def test_a_result_goes_to_json_with_media_as_references() -> None:
    stopped = Result(None, StopReason.ERROR, 0, Usage(), DONE.messages, "r", KernaiError("no"))
    for result in (DONE, stopped):
        data = json.loads(json.dumps(result.to_dict()))
        assert set(data) == {"text", "stop_reason", "steps", "usage", "messages", "run_id", "error", "pending", "finish_reason", "truncated"}
        assert data["messages"][0]["content"][1]["id"] == PICTURE.id
        assert "hidden" not in str(data)
        assert (data["stop_reason"], data["error"]) == (str(result.stop_reason), None if result.ok else "no")


@pytest.mark.parametrize("word, meant", [
    ("stopped_reason", "stop_reason"), ("session_id", "run_id"), ("output_text", "text"), ("stop_resaon", "stop_reason"),
])  # fmt: skip
def test_an_attribute_under_another_librarys_name_has_a_hint(word: str, meant: str) -> None:
    result = Result("x", StopReason.FINAL, 1, Usage(), (), "r")
    with pytest.raises(AttributeError, match=f"'Result' object has no attribute '{word}'; did you mean '{meant}'"):
        getattr(result, word)
    assert not hasattr(result, "colour")
    assert not hasattr(result, "__colour__")


COUNTS = st.none() | st.integers(0, 10**9)
USAGES = st.builds(Usage, COUNTS, COUNTS, COUNTS, st.none() | st.integers(0, 99).map(float), st.integers(0, 9))


@given(USAGES, USAGES, USAGES)
def test_usages_add_up_in_any_order(a: Usage, b: Usage, c: Usage) -> None:
    assert a + b == b + a
    assert (a + b) + c == a + (b + c)
    assert a + Usage() == a == sum([a], Usage())


def test_what_is_unknown_counts_nothing_and_stays_unknown() -> None:
    assert Usage(1, None, None, None, 1) + Usage(2, 3, None, 0.5, 1) == Usage(3, 3, None, 0.5, 2)
    assert Usage() + Usage() == Usage()
    with pytest.raises(TypeError):
        _ = Usage() + 1  # type: ignore[operator]  # the point


def test_a_notebook_shows_the_answer_the_bill_and_the_folded_conversation() -> None:
    shown = DONE._repr_html_()
    assert (shown[:4], shown[-6:]) == ("<div", "</div>")
    for part in ("done", "final, 1 step, 1 model call, 3 tokens, $0.5000, run run-1", "<details><summary>1 message</summary>",
                 f"Go.[image:{PICTURE.id}]", "<b>user</b>"):
        assert part in shown
    assert "hidden" not in shown
    assert "<b>user (tool)</b>" in replace(DONE, messages=(Message("user", "x", "tool"),))._repr_html_()


@given(st.text(alphabet=st.characters(exclude_categories=()) | st.sampled_from("<>&\"'")))
def test_what_a_notebook_shows_is_text_and_can_be_stored(text: str) -> None:
    said, pending = (Message("assistant", text),), (kernai.PendingCall(text, text),)
    result = Result(text, StopReason.ERROR, 1, Usage(), said, text, KernaiError(text), pending)
    shown = result._repr_html_()
    shown.encode("utf-8")
    tags = re.sub(r"</?(div|details|summary|b|small|code)( style=\"[a-z0-9.:;-]*( [0-9a-z. ]*)?\")?>", "", shown)
    assert not {"<", ">"} & {*tags}


def test_a_notebook_cuts_what_is_very_long() -> None:
    result = Result("x" * 1_000_000, StopReason.FINAL, 1, Usage(), (Message("user", "y" * 1_000_000),), "r")
    shown = result._repr_html_()
    assert len(shown) < 50_000
    assert shown.count("980,000 more characters") == 2
