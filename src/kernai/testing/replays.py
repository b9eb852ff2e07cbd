"""`assert_replays`: a recorded run as a regression test."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kernai.errors import ReplayDivergenceError
from kernai.runs.running import replay

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Mapping

    from kernai.agents.agent import Agent
    from kernai.events import Event
    from kernai.values.context import Context
    from kernai.values.model import Model
    from kernai.values.result import Result


def assert_replays(
    agent: Agent,
    recording: str | os.PathLike[str] | Iterable[Event | Mapping[str, Any]],
    run_id: str | None = None,
    *,
    model: Model | None = None,
    context: Context | None = None,
) -> Result | None:
    """Holds the agent to a recording: it must decide and tell the same, given the same answers. Nothing is called.

    `recording` is a file that a `JsonlSink` or `Recorder.to_json` wrote, or entries as `Recorder.to_list` gives them;
    `run_id` says which run, where it holds several. Gives the `Result`, None where the recording stops in the middle of
    the run. An `AssertionError` names the first event that differs. Media that the recording only names are references
    without payload; pass a `context` whose media store has them where the agent reads them. ::

        def test_the_agent_still_refunds_as_it_did():
            assert_replays(agent, "tests/refund.jsonl")
    """
    __tracebackhide__ = True  # pytest shows the line of the test
    try:
        return replay(agent, run_id, recording=recording, model=model, context=context)
    except ReplayDivergenceError as error:
        raise AssertionError(str(error)) from None
