"""One cell of the matrix: a scenario run once by one model, in a separate process.

The process is the leader of a group, so all processes that it starts end with it. Its output goes to files, so it can
neither block the process nor reach the terminal unescaped. The result is the JSON log that the scenario writes. If a
process crashes, hangs, or leaves no log, the cell has failed, with the end of the process's output.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernai._util.redaction import printable
from kit.definition import SCENARIOS
from kit.matrix_result import CellResult, Figures
from kit.run_log import LONG, MANIFEST, append_line
from kit.scenario_files import ScenarioFile
from kit.standard_output import FAILED, PASSED, WRONG_USAGE

GRACE_SECONDS = 5.0  # from the interrupt that asks a process to write its log, to the kill
TAIL_CHARACTERS = 4000
TAIL_LINES = 15


@dataclass(frozen=True)
class Pair:
    """A model of the matrix: its name, and the arguments that select it for a scenario."""

    label: str
    arguments: tuple[str, ...]


TAPE = Pair("tape", ("--offline",))
#: the scenario's own choice; scenarios may choose different models, since some need a vision model
DEFAULT = Pair("default", ())


@dataclass(frozen=True)
class Cell:
    """A scenario and a pair to run, and the folder for the log and the output."""

    scenario: ScenarioFile
    pair: Pair
    logs: Path
    place: str

    @property
    def folder(self) -> Path:
        """The folder of this cell alone, so that a log in it is from this cell."""
        return self.logs / self.place

    @property
    def command(self) -> list[str]:
        """The command that starts the scenario, as a user would."""
        return [sys.executable, str(self.scenario.path), "--logs", str(self.folder), *self.pair.arguments]


def _environment() -> dict[str, str]:
    """This process's environment, changed so that a scenario in any folder finds the harness."""
    paths = [path for path in (os.environ.get("PYTHONPATH"), str(SCENARIOS)) if path]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


class Children:
    """The running processes, so that all of them can be stopped at once."""

    def __init__(self) -> None:
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()
        self.stopped = False

    @contextmanager
    def started(self, command: list[str], **options: Any) -> Iterator[subprocess.Popen[bytes] | None]:
        """Starts a process, and ends it with its group after the ``with`` block. None if `stop` was called before."""
        with self._lock:
            # with the lock held, since otherwise a process that starts while the others are stopped would be missed
            process = None if self.stopped else subprocess.Popen(command, start_new_session=True, **options)
            if process is not None:
                self._running.add(process)
        if process is None:
            yield None
            return
        try:
            yield process
        finally:
            _kill_group(process)
            process.wait()
            with self._lock:
                self._running.discard(process)

    def stop(self) -> None:
        """End all processes and let no other start. Each has a moment to clean up."""
        with self._lock:
            self.stopped = True
            running = list(self._running)
        for process in running:
            _signal_group(process, signal.SIGINT)
        latest = time.monotonic() + GRACE_SECONDS
        for process in running:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0, latest - time.monotonic()))
            _kill_group(process)


def run_cell(cell: Cell, timeout: float, children: Children) -> CellResult | None:
    """Run one cell for at most `timeout` seconds. Returns None if it was stopped before it had an outcome."""
    began = time.perf_counter()
    try:
        status, is_late = _run(cell, timeout, children)
        if status is None or (children.stopped and status not in (PASSED, FAILED)):
            return None
        late = f"killed after {timeout:g} seconds (--timeout)" if is_late else None
        return _judge(cell, status, time.perf_counter() - began, late)
    except OSError as error:
        reason = printable(f"could not be run: {error}")
        return CellResult(cell.scenario.name, cell.pair.label, passed=False, reason=reason)


def _run(cell: Cell, timeout: float, children: Children) -> tuple[int | None, bool]:
    """The exit status (None if the process was not started), and whether the process had to be ended."""
    if children.stopped:
        return None, False
    cell.folder.mkdir(parents=True)
    output, errors = cell.folder / "output.txt", cell.folder / "errors.txt"
    with output.open("wb") as stdout, errors.open("wb") as stderr:
        streams = {"stdin": subprocess.DEVNULL, "stdout": stdout, "stderr": stderr}
        with children.started(cell.command, env=_environment(), **streams) as process:
            if process is None:
                return None, False
            is_late = not _ends_within(process, timeout)
    return process.returncode, is_late


def _ends_within(process: subprocess.Popen[bytes], timeout: float) -> bool:
    try:
        process.wait(timeout)
    except subprocess.TimeoutExpired:
        _signal_group(process, signal.SIGINT)  # an interrupt first, so that the log shows how far it got
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_SECONDS)
        return False
    return True





def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill the process group, even if its leader has ended: processes that it started may still run."""
    _signal_group(process, getattr(signal, "SIGKILL", signal.SIGTERM))


def _signal_group(process: subprocess.Popen[bytes], number: int) -> None:
    if os.name != "posix":
        process.kill()  # Windows has no such groups, so processes that it started are not ended there
        return
    with suppress(ProcessLookupError, PermissionError):  # macOS refuses if only zombies are left
        os.killpg(process.pid, number)


# ------------------------------------------------------------------------------------------------- the outcome


def _judge(cell: Cell, status: int, seconds: float, late: str | None) -> CellResult:
    log, trouble = _read_log(cell)
    said = _tail(cell.folder / "errors.txt")
    reason = late or _reason(status, log, trouble)
    if status == WRONG_USAGE and said:  # one line that explains everything
        reason, said = said.rpartition("error: ")[2], ""
    faults = log.get("faults")
    return CellResult(
        scenario=cell.scenario.name,
        pair=cell.pair.label,
        passed=reason is None,
        reason=reason,
        faults=tuple(printable(str(fault)) for fault in faults) if isinstance(faults, list) else (),
        figures=Figures.from_log(log, seconds),
        exit_status=status,
        stop_reason=_text(log.get("stop_reason")),
        provider=_text(log.get("provider")),
        model=_text(log.get("model")),
        chosen_because=_text(log.get("provider_reason")),
        folder=cell.folder,
        stderr_tail="" if reason is None else said,
    )


def _reason(status: int, log: dict[str, Any], trouble: str | None) -> str | None:
    """Why the cell failed, in one line; None if it passed according to both the log and the exit status."""
    if status < 0:
        return f"killed by signal {_signal_name(-status)}"
    if status not in (PASSED, FAILED):
        return f"exit status {status}"
    if trouble is not None:
        return trouble
    if log["passed"] and status == PASSED:
        return None
    if log["passed"]:
        return "its log says that it passed, but the exit status is 1"
    faults = log.get("faults")
    return printable(str(faults[0])) if isinstance(faults, list) and faults else "not every expectation is met"


def _read_log(cell: Cell) -> tuple[dict[str, Any], str | None]:
    """The log of a run, which may contain anything, and what is wrong with it."""
    paths = [path for path in cell.folder.glob("*.json") if path.name != MANIFEST]
    if len(paths) != 1:
        return {}, "it wrote no log" if not paths else f"it wrote {len(paths)} logs"
    try:
        log = json.loads(paths[0].read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}, "its log cannot be read"
    if not isinstance(log, dict) or not isinstance(log.get("passed"), bool):
        return {}, "its log is not that of a scenario"
    if log.get("scenario") != cell.scenario.name:
        return {}, f"its log is of the scenario {printable(str(log.get('scenario')))!r}"
    # the manifest beside all logs lists every run; the one in the cell's folder lists only this run
    line = {key: value for key, value in log.items() if key not in LONG}
    append_line(cell.logs / MANIFEST, line | {"log": f"{cell.place}/{paths[0].name}"})
    return log, None


def _text(value: object) -> str | None:
    return printable(value) if isinstance(value, str) else None


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)


def _tail(path: Path) -> str:
    """The end of a process's output, made printable."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - TAIL_CHARACTERS))
        text = file.read().decode("utf-8", errors="replace")
    return "\n".join(printable(text).splitlines()[-TAIL_LINES:])
