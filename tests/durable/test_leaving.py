"""A worker that is asked to stop keeps the outcomes of what it has begun, begins nothing more, and gives its runs back."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

import kernai
from kernai import Agent, MemoryStore, MockProvider, RunConflictError, Skill
from tests.durable.durable_cases import WAYS, Performed, Way, agent, command, entries_of, provider, share_of, way_id

PATIENCE = 60.0


class Leaving(MemoryStore):
    """A store as `Workers` have it, which they stop by setting `stopping`."""

    def __init__(self) -> None:
        super().__init__()
        self.stopping = threading.Event()


def model(said: list[str], before: Callable[[], object], scripts: Any = None) -> MockProvider:
    """That of `durable_cases`. `before` is called before an answer is given."""
    inner = provider(scripts) if scripts else provider()

    def answer(messages: Any, model: Any) -> Any:
        made = inner.call(messages, model, kernai.GenerationOptions(), lambda piece: None)
        said.append(made.content)
        before()
        return made

    return MockProvider().on_call(answer)


class Noting(Performed):
    def __init__(self, after: Callable[[], object]) -> None:
        super().__init__()
        self._after = after

    def note(self, what: str) -> None:
        super().note(what)
        self._after()


def events(store: MemoryStore) -> list[tuple[str, str]]:
    """What is on record, in an order that does not depend on parallel work, without the seams of resumes."""
    return sorted((one["scope"], one["event"]) for one in entries_of(store) if one["event"] != "run_resumed")


@pytest.mark.parametrize("way", WAYS, ids=way_id)
def test_wherever_a_worker_is_stopped_no_outcome_is_lost_and_no_call_is_repeated(way: Way) -> None:
    whole, answers, effects = MemoryStore(), list[str](), Performed()
    way.execute(agent(effects), "do everything", provider=model(answers, lambda: None), store=whole, run_id="r")
    count = len(answers) + effects.calls.total()
    for number in share_of(way, range(1, count + 1)):
        store, said = Leaving(), list[str]()
        performed = Noting(lambda: stop())

        def stop(number: int = number, event: threading.Event = store.stopping, said: list[str] = said, noted: Noting = performed) -> None:
            if len(said) + noted.calls.total() >= number:
                event.set()

        it = agent(performed, idempotent=())
        with suppress(RunConflictError):  # it may have been the last one
            way.execute(it, "do everything", provider=model(said, stop), store=store, run_id="r")
        (info,) = store.runs()
        assert (info.status, info.lease) == ("final" if number == count else "abandoned", None)
        assert sum(one["event"] == "llm_response" for one in entries_of(store)) == len(said)
        store.stopping = threading.Event()
        assert way.resume(it, "r", provider=model(said, lambda: None), store=store).text == "all is done"
        assert (sorted(said), performed.calls) == (sorted(answers), effects.calls)
        assert events(store) == events(whole)


PLAN = (
    '<block type="plan">{"goal": "g", "tasks": [{"id": "a", "input": "task one", "parallel": true}, '
    '{"id": "b", "input": "task two", "parallel": true}, {"id": "c", "input": "task one", "depends_on": ["a"]}]}</block>'
)
TASKS = {
    "task one": ["<final>one</final>"], "task two": [command("act") * 2, "<final>two</final>"], "go": [PLAN, "<final>done</final>"],
}


@pytest.mark.parametrize("way", WAYS, ids=way_id)
def test_parallel_tasks_end_their_model_calls_and_begin_nothing_when_the_worker_stops(way: Way) -> None:
    store, said, acted = Leaving(), list[str](), list[int]()
    both = threading.Barrier(2)

    def stop() -> None:
        if len(said) > 1:
            both.wait(PATIENCE)
            store.stopping.set()

    def tasks(before: Callable[[], object]) -> Agent[Any]:
        skills = [Skill("act", execute=lambda: acted.append(1), inputs={})]
        return Agent(instructions="x", skills=skills, provider=model(said, before, TASKS), parallel_skills=True)

    with pytest.raises(RunConflictError, match="run 'r' is left to another worker: this one is stopping"):
        way.execute(tasks(stop), "go", store=store, run_id="r")
    assert (len(said), acted) == (3, [])
    assert sum(one["event"] == "llm_response" for one in entries_of(store)) == 3
    assert not any(one["event"] == "skill_execute" for one in entries_of(store))
    (info,) = store.runs()
    assert (info.status, info.lease) == ("abandoned", None)
    store.stopping.clear()
    assert way.resume(tasks(lambda: None), "r", store=store).text == "done"
    assert (len(said), acted) == (6, [1, 1])
    assert kernai.replay(tasks(lambda: None), "r", store=store).result is not None
