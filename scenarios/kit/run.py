"""One run of a scenario from its start to its outcome."""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kernai
from kernai._util.api import check_type
from kernai.command_line.output import CommandError
from kernai.command_line.recording import Recording
from kernai.errors import described, error_text
from kernai.events import stamp
from kit.definition import Definition, Outcome, UsageError, Verdict, judged
from kit.kept import kept_run
from kit.provider_choice import Choice
from kit.tape_provider import TapeProvider

BROKEN = "the scenario's own code failed"


@dataclass(frozen=True)
class Run:
    """A run that has ended, judged. `seconds` is its length, `started_at` ISO 8601 in UTC."""

    definition: Definition
    choice: Choice
    outcome: Outcome
    started_at: str
    seconds: float
    verdicts: Sequence[Verdict]
    faults: Sequence[str]
    notes: Sequence[str]
    interrupted: bool = False

    @property
    def passed(self) -> bool:
        """Whether the run ended with an answer, every expectation is met and the whole tape was played."""
        return not self.faults

    @property
    def success_line(self) -> str:
        """One line about a run that passed."""
        return "ok: " + ("; ".join(one.name for one in self.verdicts) or "the run has an answer")


def perform(
    definition: Definition,
    choice: Choice,
    recorder: kernai.Recorder,
    on_event: Callable[[kernai.Event], object],
    *,
    debug: bool = False,
) -> Run:
    """Run the scenario. Ctrl-C and errors in the scenario's own code end the run; all that happened before is kept."""
    began, started_at = time.perf_counter(), stamp(time.time())
    interrupted, broken = False, []
    try:
        for prepare in definition.preparations:
            prepare()
        if not definition.input:
            raise UsageError("there is no input: give one with scenario.input(...), in prepare at the latest")
        with definition.agent(choice.provider, choice.model) as agent:
            options = {"recorder": recorder, "on_event": on_event, "limits": definition.limits}
            result = _driven(definition, choice, agent, options)
    except UsageError:
        raise
    except KeyboardInterrupt:
        interrupted, result = True, _result_so_far(recorder.entries, kernai.StopReason.CANCELLED)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a scenario may raise anything; it is reported as one line
        if debug:
            traceback.print_exc(file=sys.stderr)
        broken = [f"{BROKEN}: {_place(error)}{described(error)} (--debug shows where)"]
        result = _result_so_far(recorder.entries, kernai.StopReason.ERROR)
    seconds = time.perf_counter() - began
    outcome = Outcome(result, recorder.entries)
    verdicts = judged(outcome, definition.expectations)
    ended = ["interrupted by Ctrl-C"] if interrupted else broken or _ended(result)
    failed = [str(one) for one in verdicts if one.holds is False]
    tape_faults, notes = ([], []) if interrupted else _of_tape(choice.tape, ended)
    return Run(
        definition, choice, outcome, started_at, seconds, verdicts, [*ended, *failed, *tape_faults], notes, interrupted
    )


def _driven(
    definition: Definition, choice: Choice, agent: kernai.Agent, options: dict[str, Any]
) -> kernai.Result:
    if definition.drive is None:
        return kernai.execute(agent, definition.input, **options)
    with kept_run(definition, choice, agent, **options) as kept:
        result = definition.drive(kept)
    check_type(result, kernai.Result, "kept's function must return a Result")
    return result


def _of_tape(tape: TapeProvider | None, ended: Sequence[str]) -> tuple[list[str], list[str]]:
    """The faults of a replay, and the notes about it. `ended` is how the run itself failed, if it did."""
    if tape is None:
        return [], []
    left = [one for one in tape.left if not any(one in fault for fault in ended)]
    unplayed = [f"the run has diverged from the tape: {one}" for one in tape.unplayed]
    if ended:  # so it did not reach the end of the tape
        return left, [*tape.notes, *unplayed]
    return [*left, *unplayed], tape.notes


def _ended(result: kernai.Result) -> list[str]:
    if result.stop_reason == kernai.StopReason.FINAL:
        return []
    return [f"the run ended with {result.stop_reason}: {error_text(result.error) if result.error else 'no answer'}"]


def _result_so_far(events: Sequence[kernai.Event], if_not_begun: kernai.StopReason) -> kernai.Result:
    """The result of a run that an exception ended, from its last event; `if_not_begun` if there is none."""
    result = next((event for event in reversed(events) if event.type == "result" and event.depth == 0), None)
    if result is None:
        return kernai.Result(None, if_not_begun, 0, kernai.Usage(), (), "")
    data = result.data
    reason, usage = kernai.StopReason(data["stop_reason"]), kernai.Usage(**data["usage"])
    return kernai.Result(data["text"], reason, data["steps"], usage, (), result.run_id)


def _place(error: BaseException) -> str:
    """The place of an error in the scenario's own file; blank if the error came from elsewhere."""
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    own = [one for one in traceback.extract_tb(error.__traceback__) if one.filename == file]
    return f"{Path(own[-1].filename).name}:{own[-1].lineno}: " if own else ""


@contextmanager
def recording(path: Path | None) -> Iterator[kernai.Recorder]:
    """A recorder that keeps its events, and writes them to a file if asked to, as `kernai run --record` does."""
    memory = kernai.MemorySink()
    if path is None:
        yield kernai.Recorder(memory)
        return
    try:
        with Recording(str(path), kernai.MediaStore()) as file:
            yield kernai.Recorder(kernai.CompositeSink(memory, file))
    except CommandError as error:
        raise UsageError(str(error)) from error
