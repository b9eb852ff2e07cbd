"""`--save-tape`: the scenario's tape, from a log or from the run that has just ended."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kernai import KernaiError, Recorder
from kernai.recording_file import read_recording
from kit.definition import shown
from kit.outcome import UsageError
from kit.run import Run
from kit.tape import Tape
from kit.tape_making import tape_of

FROM_A_REPLAY = "the tape that it replays was not played as it is, so it stays as it is"


def save_from_run(run: Run, recorder: Recorder, path: Path) -> str:
    """Make the tape of a run; returns a line about it. `UsageError` when a replay has left its own tape."""
    if run.interrupted:
        return "no tape is made of a run that was interrupted"
    choice = run.choice
    provider, model = choice.name, choice.model.id
    if choice.tape is not None:
        if choice.tape.left or choice.tape.unplayed:
            raise UsageError(f"--save-tape: {FROM_A_REPLAY}: {(choice.tape.left or choice.tape.unplayed)[0]}")
        provider, model = choice.tape.tape.provider, choice.tape.tape.model
    tape = tape_of(recorder.to_list(), scenario=run.definition.name, provider=provider, model=model)
    return _saved(tape, path, list(run.faults))


def save_from_log(log: Path, scenario: str, path: Path) -> str:
    """Make the tape of an earlier run from its log; returns a line about it. `UsageError` if it is no log."""
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
        raise UsageError(f"{log} is broken: its events are not what kernai records") from error
    faults = recorded.get("faults")
    return _saved(tape, path, faults if isinstance(faults, list) else [])


def _log(path: Path, scenario: str) -> dict[str, Any]:
    try:
        recorded = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UsageError(f"there is no log {path}: to make the tape from a run, put --save-tape last") from error
    except OSError as error:
        raise UsageError(f"cannot read the log {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"cannot read the log {path}: not JSON: {error}") from error
    if not isinstance(recorded, dict) or not isinstance(recorded.get("events"), list) or "scenario" not in recorded:
        raise UsageError(f"{path} is no log of a scenario: one is in scenarios/logs after each run")
    if recorded["scenario"] != scenario:
        raise UsageError(f"{path} is a log of the scenario {recorded['scenario']!r}, not of {scenario!r}")
    return recorded


def _saved(tape: Tape, path: Path, faults: list[Any]) -> str:
    tape.save(path)
    count = len(tape.conversations)
    line = f"tape: {shown(path)} ({count} conversation{'s' * (count != 1)}, {tape.turns} turns, {tape.origin})"
    return line if not faults else f"{line}\nwarning: it is the tape of a run that was not good: {faults[0]}"
