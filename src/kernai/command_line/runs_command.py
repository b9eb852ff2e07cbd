"""`kernai runs`, and the stores of runs that other commands open."""

from __future__ import annotations

import getpass
import os
import shlex
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from kernai._util.close_matches import closest
from kernai.command_line import output
from kernai.command_line.errors import NO, OK, CommandError, failing
from kernai.durable.store import Entry, RunInfo, check_run_id
from kernai.errors import InFlightError, KernaiError, ReplayDivergenceError, RunConflictError
from kernai.events import LlmResponseRow, RunStartRow, row_of
from kernai.jsonio.json_data import jsonable
from kernai.terminal_text import one_line
from kernai.values.result import Usage

if TYPE_CHECKING:
    from typing import Self

    from kernai.values.result import PendingCall

MADE_BY = "`kernai run AGENT ... --store STORE` makes one"
_CALL_WIDTH = 200


class RunStore:
    """A `SqliteStore` at the path that the user typed. A context manager.

    `CommandError` where it cannot be opened; with `make` it is created if it does not exist.
    """

    def __init__(self, path: str, *, make: bool = False) -> None:
        from kernai.durable.sqlite_store import SqliteStore  # a run without a store needs no SQLite

        self.path = path
        try:
            with failing(f"cannot open {path}", MADE_BY):
                if not make and not os.stat(path).st_size:
                    raise CommandError(f"{path} is empty, and no store of runs", MADE_BY)
                self.store = SqliteStore(path)
        except (KernaiError, ValueError) as error:
            hint = "name a file that kernai made, or a new one"
            if isinstance(error.__cause__, OSError):
                hint = "the folder must exist, and you must be allowed to write to it and to the file"
            raise CommandError(f"the store: {error}", hint) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.store.close()

    def info(self, run_id: str) -> RunInfo | None:
        """What the store knows of the run, if it is there."""
        check_id(run_id)
        return self.store.info(run_id)

    def entries(self, run_id: str) -> list[Entry]:
        """The run as it is stored; `CommandError` where it is not there."""
        check_id(run_id)
        entries = self.store.load(run_id)
        if entries:
            return entries
        listed = f"`{command('runs', self.path)}` lists those it has"
        close = closest(run_id, [run.run_id for run in self.store.runs()])
        hint = f"did you mean {close}? {listed}" if close else listed
        raise CommandError(f"{self.path} has no run {run_id!r}", hint)

    def again(self, agent: tuple[str, ...], run_id: str) -> str:
        """The command line that continues a run; `agent` are the words that describe its agent."""
        return command("resume", *agent, self.path, run_id)


def command(*words: str) -> str:
    """A command line of kernai's that can be copied."""
    return f"kernai {shlex.join(words)}"


def check_id(run_id: str) -> None:
    """`CommandError` for an id that no run in a store can have."""
    try:
        check_run_id(run_id)
    except ValueError as error:
        allowed = "1 to 128 of the characters A-Z a-z 0-9 . _ -, and no dot at the start"
        raise CommandError(f"a run in a store cannot be called {run_id!r}", allowed) from error


def new_run_id() -> str:
    """A random id, short enough to be typed."""
    return os.urandom(6).hex()


def call_line(call: PendingCall) -> str:
    """A call that somebody has to decide on, on one line."""
    what = f"{call.skill} {one_line(jsonable(call.params), _CALL_WIDTH)}" if call.skill else "a call of the model"
    return f"{what} ({one_line(call.reason, _CALL_WIDTH)})" if call.reason else what


def login_name() -> str | None:
    """Who the user is on this machine, if that is known."""
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):  # no such user, as in some containers
        return None


@contextmanager
def continuing(
    again: str | None, replay: str = "", *, another: str = "use the agent that made the recording"
) -> Iterator[None]:
    """Around a run that is kept. What prevents continuing it becomes a `CommandError`; after any other exception, a
    note says how to continue.

    `again` and `replay` are command lines; without `again` there is no note. `another` is the advice for an agent that
    has changed.
    """
    try:
        yield
    except InFlightError as error:
        if again is None:
            raise  # the caller asks the user
        calls = "; ".join(f"{call.call_id} {call_line(call)}" for call in error.calls)
        raise CommandError(
            f"the run was interrupted during calls that may have taken effect: {calls}",
            f"find out whether they did; then `{again} --in-flight skip` tells the model that the outcome is unknown, "
            "and `--in-flight retry` calls again", NO,
        ) from error
    except ReplayDivergenceError as error:
        raise CommandError(
            f"the agent decides differently from the recording, starting at event {error.seq} ({error.event})",
            f"`{replay}` shows where; {another}", NO,
        ) from error
    except RunConflictError as error:
        raise CommandError(
            "another process has continued the run, so this one has stopped", f"`{again}` continues after it", NO
        ) from error
    except BaseException as error:
        if again is not None:
            in_flight = "" if isinstance(error, Exception) else "; with --in-flight, if a call was running"
            output.note(f"The run is kept; to continue it: {again}{in_flight}")
        raise


DESCRIPTION = """\
List the runs in a store, the last changed first. The status of a run that has ended is its stop reason; `waiting` means
that a person must decide on a call, `running` that the run is under way, or that its process died."""
EXAMPLES = """\
kernai runs runs.db
kernai runs runs.db --json | python -m json.tool"""

_STYLES = {"running": "cyan", "queued": "cyan", "waiting": "yellow", "final": None}
_HEADS = ("RUN", "AGENT", "STATUS", "STEPS", "TOKENS", "COST", "LAST CHANGE", "INPUT")
_NUMBERS = (("steps", "{:,}"), ("tokens", "{:,}"), ("cost", "${:.4f}"))
_LEAST_INPUT = 20


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("store", metavar="STORE", help="a file that --store has made")
    parser.add_argument("--json", action="store_true", help="the list as JSON on stdout")


def run(options: Namespace) -> int:
    with RunStore(options.store) as store:
        runs = [
            {
                "run_id": one.run_id, "agent": one.agent, "status": one.status, "updated_at": one.updated_at,
                **_facts(store, one.run_id),
            }
            for one in store.store.runs()
        ]
    if options.json:
        output.write_json(runs)
    elif not runs:
        output.note(f"{options.store} has no runs")
    else:
        _show(runs)
    return OK


def _facts(store: RunStore, run_id: str) -> dict[str, Any]:
    """What the run has used so far, sub-runs included, and its input; None where the run is damaged."""
    steps, usage, given = 0, Usage(), None
    try:
        for row in map(row_of, store.store.load(run_id)):
            usage += row.usage() or Usage()
            if isinstance(row, LlmResponseRow) and not row.place[3]:
                steps += 1
            if isinstance(row, RunStartRow) and given is None:
                given = row.input
    except (KernaiError, ValueError):  # the others are listed all the same
        return dict.fromkeys(("steps", "tokens", "cost", "input"))
    return {"steps": steps, "tokens": usage.total_tokens, "cost": usage.cost, "input": given}


def _show(runs: list[dict[str, Any]]) -> None:
    rows = [
        (
            one["run_id"], one_line(one["agent"] or "-", 40), one["status"],
            *("-" if one[name] is None else form.format(one[name]) for name, form in _NUMBERS), one["updated_at"],
        )
        for one in runs
    ]
    widths = [max(map(len, column)) for column in zip(_HEADS[:-1], *rows, strict=True)]
    left = max(output.columns() - sum(widths) - 2 * len(widths), _LEAST_INPUT)
    inputs = ["-" if one["input"] is None else one_line(one["input"], left) for one in runs]
    for line in (_HEADS, *((*row, given) for row, given in zip(rows, inputs, strict=True))):
        cells = [f"{cell:{align}{width}}" for cell, align, width in zip(line, "<<<>>><", widths, strict=False)]
        style = "dim" if line is _HEADS else _STYLES.get(line[2], "red")
        output.write("  ".join([*cells, line[-1]]), style)
