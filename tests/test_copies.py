"""Copies of public objects: values support `copy`, `deepcopy`, `pickle` and `copy.replace`; others say why not."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest

import kernai
from kernai.durable.approvals import Decision
from kernai.durable.outcomes import model_failure
from kernai.events import ModelFailedRow
from kernai.middleware import CallModel, CallProtocol, CallSkill, Pause, Sleep, Stop
from kernai_providers import resolve
from kernai_providers.transport import TransportError

PICTURE = kernai.Media.from_bytes(b"p", mime_type="image/png", metadata={"page": 1})


def handle(block: kernai.Block, ctx: Any) -> str:
    return "handled"


#: each value, with one of its fields and another value for that field
VALUES: list[tuple[Any, dict[str, Any]]] = [
    (kernai.Block("command", "look", "{}"), {"content": "x"}),
    (kernai.Event("skill_result", {"call_id": "0.0", "skill": "s", "result": "x", "duration_ms": 0}, 1, 0, None, "", "r"), {"step": 2}),
    (kernai.GenerationOptions(temperature=1, extra={"a": [1]}), {"temperature": 0}),
    (kernai.Limits(max_calls=3), {"timeout": 1.0}),
    (kernai.LlmResponse("x", metadata={"a": [1]}), {"content": "y"}),
    (PICTURE, {"metadata": {}}),
    (kernai.Message("user", ["look: ", PICTURE]), {"role": "assistant"}),
    (kernai.Model("m", cost=(1.0, 2.0)), {"id": "n"}),
    (kernai.PendingCall("0.0", "pay", {"amount": 1}, "why", {}), {"reason": "because"}),
    (kernai.Plan((kernai.Task("a", "x"),), "goal"), {"goal": "other"}),
    (kernai.Protocol("ticket", handle), {"name": "letter"}),
    (kernai.Result("x", kernai.StopReason.FINAL, 1, kernai.Usage(1, 2), (kernai.Message("user", "go"),), "r"), {"text": "y"}),
    (kernai.RunInfo("r"), {"status": "final"}),
    (kernai.SkillResult(["a", PICTURE, "b"], metadata={"a": [1]}), {"metadata": {"b": 2}}),
    (kernai.SkillResult("a", PICTURE), {"text": "b"}),
    (kernai.Task("a", "x", depends_on=("b",)), {"input": "y"}),
    (kernai.Usage(1, 2, cost=0.5), {"cost": 1.0}),
    (Decision(True, by="ann"), {"value": False}),
    (CallModel("", 0, (), kernai.Model("m"), kernai.GenerationOptions()), {"timeout": 5}),
    (CallSkill("", "0.0", "pay", {"amount": 1}), {"skill": "refund"}),
    (CallProtocol("", "0.0", "ticket", kernai.Block("ticket")), {"call_id": "0.1"}),
    (Sleep(1), {"seconds": 2}),
]
WAYS: list[Callable[[Any], Any]] = [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))]
EACH_WAY = pytest.mark.parametrize("copied", WAYS, ids=["copy", "deepcopy", "pickle"])


@EACH_WAY
@pytest.mark.parametrize("value", [value for value, _ in VALUES], ids=lambda value: type(value).__name__)
def test_a_copied_value_is_equal(value: Any, copied: Callable[[Any], Any]) -> None:
    made = copied(value)
    assert made == value
    assert type(made) is type(value)


@EACH_WAY
def test_the_result_of_a_run_in_which_the_model_was_corrected_can_be_copied(copied: Callable[[Any], Any]) -> None:
    look = kernai.Skill("look", execute=lambda: "seen", inputs={})
    result = kernai.execute(kernai.Agent(instructions="x", skills=[look], provider=kernai.MockProvider("I will look.", "<final>4</final>")), "go")
    made = copied(result)
    assert (made, len(made.messages)) == (result, 4)
    correction: Any = result.messages[2].content[0]
    assert made.messages[2].content[0].native == correction.native


ERRORS: list[Any] = [
    kernai.InFlightError("x", [kernai.PendingCall("0.0", "pay", {"amount": 1}, "why", {})]), kernai.LimitReachedError("x", "timeout"),
    kernai.ProviderError("x", status=429, code="busy", retryable=True, retry_after=1.0, vendor="v"),
    kernai.ReplayLoosenedError("x", {"pay.approval": "gone"}, seq=3, event="result", expected="a", got="b"),
    kernai.RunBusyError("r", "ann", "now", "then"), kernai.RunDamagedError("x", [{"event": "final"}], [PICTURE]),
    kernai.SkillInputError("x", (("amount", "missing"),)), kernai.StoreNeededError("x"), TransportError("x", "connect"),
    model_failure(ModelFailedRow("busy", "ReplayedError", "", None, None)), Stop("guardrail", "why"), Stop("loop"), Pause("why", {"amount": 3}), Pause(),
]


@EACH_WAY
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_a_copied_error_keeps_its_class_text_and_attributes(error: Any, copied: Callable[[Any], Any]) -> None:
    other = copied(error)
    assert (type(other), str(other), vars(other)) == (type(error), str(error), vars(error))


def replaced(value: Any, /, **changes: Any) -> Any:
    """Do what `copy.replace` does, which is new in Python 3.13."""
    if hasattr(value, "__replace__"):
        return value.__replace__(**changes)
    from dataclasses import replace  # on Python 3.13, a dataclass's `__replace__`

    return replace(value, **changes)


@pytest.mark.parametrize("value, change", VALUES, ids=lambda one: type(one).__name__)
def test_replacing_a_field_of_a_value_returns_a_changed_copy(value: Any, change: dict[str, Any]) -> None:
    made = replaced(value, **change)
    assert value not in (made, "a text")
    assert value == ANY, "another object may be equal to it"
    assert repr(value).startswith(f"{type(value).__name__}(")
    assert {name: getattr(made, name) for name in change} == change
    assert replaced(value) == value
    with pytest.raises(TypeError, match="voice"):
        replaced(value, voice="loud")


def test_copy_replace_of_an_agent_or_a_model_call_does_what_its_replace_method_does() -> None:
    assert replaced(kernai.Agent(instructions="x", max_steps=3), max_steps=4).max_steps == 4
    call = CallModel("", 0, (), kernai.Model("m"), kernai.GenerationOptions())
    assert replaced(call, generation={"top_p": 0.5}).generation.top_p == 0.5


@EACH_WAY
def test_an_object_that_holds_a_lock_connection_or_run_says_why_it_cannot_be_copied(copied: Callable[[Any], Any], tmp_path: Path) -> None:
    store, sink = kernai.SqliteStore(tmp_path / "runs.db"), kernai.JsonlSink(tmp_path / "a.jsonl")
    provider, _ = resolve("openai/gpt-4o", api_key="k")
    skill = kernai.Skill("s", execute=lambda: "x", inputs={})
    held = {
        store: "it holds locks and connections", sink: "it holds a lock", kernai.MemoryStore(): "it holds locks and conn",
        kernai.MockProvider("x"): "it holds a lock", provider: "it holds connections and a key",
        kernai.SkillRegistry(): "it holds a lock", kernai.ProtocolRegistry(): "it holds a lock", kernai.SkillContext(skill): "it holds what bel",
        kernai.stream(kernai.Agent(instructions="x"), "go", provider=kernai.MockProvider("x")): "it holds a run",
    }
    for one, why in held.items():
        with pytest.raises(TypeError, match=f"{type(one).__name__} can be neither copied nor pickled: {why}"):
            copied(one)
    store.close()
    sink.close()


def test_a_deep_copy_of_an_agent_or_a_recorder_names_what_cannot_be_copied(tmp_path: Path) -> None:
    agent = kernai.Agent(instructions="x", provider=kernai.MockProvider("x"))
    with pytest.raises(TypeError, match="MockProvider can be neither copied"):
        copy.deepcopy(agent)
    assert copy.copy(agent).provider is agent.provider
    context = kernai.Context()
    context.media_store.put(PICTURE)
    assert copy.deepcopy(context).media_store.fetch(PICTURE.id) == PICTURE
