"""`--save-tape`: makes a tape from a recorded run, either from a log or from the run that has just ended."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kernai import KernaiError, Recorder, neutralize
from kernai.recording_file import read_recording
from kit.definition import UsageError, shown
from kit.run import Run
from kit.tape import TOKEN_COUNTS, Conversation, Tape, Turn, read_json
from kit.tape_provider import asked_last, estimated

Entries = Iterable[Mapping[str, Any]]


def tape_of(entries: Entries, *, scenario: str, provider: str, model: str) -> Tape:
    """The tape of one recorded run; `entries` are events as returned by `Recorder.to_list`.

    Raises `UsageError` if the run called no model.
    """
    spoken: dict[str, _Scope] = {}
    inputs: dict[str, str] = {}
    for entry in entries:
        kind, data, scope = entry["event"], entry["data"], entry.get("scope") or ""
        if kind == "task_start":
            inputs[_task_scope(scope, entry.get("step"), data["task_id"])] = data["input"]
        elif kind in ("messages_sent", "llm_response", "result"):
            spoken.setdefault(scope, _Scope()).take(kind, data)
    conversations = tuple(
        Conversation(scope, _task_input(inputs.get(scope), one.input), tuple(one.turns))
        for scope, one in sorted(spoken.items(), key=lambda item: _natural(item[0])) if one.turns
    )
    if not conversations:
        raise UsageError("no tape can be made from this run: no model answered in it")
    return Tape(scenario, provider, model, conversations)


class _Scope:
    """The turns of one run or sub-run, collected from its events."""

    def __init__(self) -> None:
        self.input = ""
        self.turns: list[Turn] = []
        self._asked: tuple[str, ...] | None = None  # the texts of a call that is not answered yet

    def take(self, kind: str, data: Any) -> None:
        if kind == "messages_sent":
            turns = [message for message in data if message["role"] != "system"]
            if not self.turns and turns:
                self.input = _own_input(turns[0]["content"])
            self._asked = asked_last([(one["role"], _text(one["content"])) for one in turns])
            return
        if self._asked is None:
            return
        if kind == "llm_response":
            known = {} if estimated(data.get("metadata")) else {key: data.get(key) for key in TOKEN_COUNTS}
            self.turns.append(Turn(data["content"], self._asked, **known))
        elif data.get("stop_reason") == "error":
            # the recording does not say whether the error was retryable, and no run needs to know
            self.turns.append(Turn(asked=self._asked, error={"message": data.get("error") or "", "retryable": False}))
        self._asked = None


def _text(content: str | Sequence[Any]) -> str:
    """A message's text with media as ``[kind:id]``, like `Message.text`."""
    if isinstance(content, str):
        return content
    return "".join(part if isinstance(part, str) else f"[{part['kind']}:{part['id']}]" for part in content)


def _own_input(content: str | Sequence[Any]) -> str:
    """A run's input as a tape has it: the text after the last medium, or the whole input if no text follows."""
    if isinstance(content, str):
        return content
    texts: list[str] = []
    for part in content:
        texts = [*texts, part] if isinstance(part, str) else []
    after = "".join(texts)
    return after if after.strip() else _text(content)


def _task_input(own: str | None, first: str) -> str:
    """A task's own input, as its first message has it: after the results it depends on, and neutralised."""
    found = None if own is None else neutralize(own)
    return found if found is not None and first.endswith(found) else first


def _task_scope(parent: str, step: object, task: str) -> str:
    """The scope of a workflow's task, as the kernel names it (`/` and `%` in ids are escaped)."""
    own = f"{step}.{task.replace('%', '%25').replace('/', '%2F')}"
    return f"{parent}/{own}" if parent else own


def _natural(scope: str) -> list[tuple[int, int, str]]:
    """A key that sorts 10 after 9."""
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.split(r"(\d+)", scope) if part]


# --------------------------------------------------------------------------------------------------------------- saving


FROM_A_REPLAY = "the run differed from the tape that it replayed, so the tape is left unchanged"


def save_from_run(run: Run, recorder: Recorder, path: Path) -> str:
    """Make the tape of a run; returns a line about it. Raises `UsageError` if a replay diverged from its own tape."""
    if run.interrupted:
        return "no tape is made from an interrupted run"
    choice = run.choice
    provider, model = choice.name, choice.model.id
    if choice.tape is not None:
        if choice.tape.left or choice.tape.unplayed:
            raise UsageError(f"--save-tape: {FROM_A_REPLAY}: {(choice.tape.left or choice.tape.unplayed)[0]}")
        provider, model = choice.tape.tape.provider, choice.tape.tape.model
    tape = tape_of(recorder.to_list(), scenario=run.definition.name, provider=provider, model=model)
    return _saved(tape, path, list(run.faults))


def save_from_log(log: Path, scenario: str, path: Path) -> str:
    """Make the tape of an earlier run from its log; returns a line about it. Raises `UsageError` if it is not a log."""
    recorded = _log(log, scenario)
    source, replayed = recorded, recorded.get("tape")
    if isinstance(replayed, dict):
        if replayed.get("faults"):
            raise UsageError(f"{log}: {FROM_A_REPLAY}: {replayed['faults'][0]}")
        source = replayed
    provider, model = source.get("provider"), source.get("model")
    if not isinstance(provider, str) or not isinstance(model, str):
        raise UsageError(f'{log} lacks its "provider" or "model"')
    try:
        tape = tape_of(read_recording(log), scenario=scenario, provider=provider, model=model)
    except KernaiError as error:
        raise UsageError(str(error)) from error
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise UsageError(f"{log} is damaged: its events are not those of a kernai recording") from error
    faults = recorded.get("faults")
    return _saved(tape, path, faults if isinstance(faults, list) else [])


def _log(path: Path, scenario: str) -> dict[str, Any]:
    recorded = read_json("log", path, "to make the tape from a run, put --save-tape last")
    if not isinstance(recorded, dict) or not isinstance(recorded.get("events"), list) or "scenario" not in recorded:
        raise UsageError(f"{path} is not a scenario's log; each run writes one to scenarios/logs")
    if recorded["scenario"] != scenario:
        raise UsageError(f"{path} is a log of the scenario {recorded['scenario']!r}, not of {scenario!r}")
    return recorded


def _saved(tape: Tape, path: Path, faults: list[Any]) -> str:
    tape.save(path)
    count = len(tape.conversations)
    line = f"tape: {shown(path)} ({count} conversation{'s' * (count != 1)}, {tape.turns} turns, {tape.origin})"
    return line if not faults else f"{line}\nwarning: the run that it was made from failed: {faults[0]}"
