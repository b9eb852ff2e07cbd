"""`kernai runs`, and the stores that the commands on recorded runs open."""

from __future__ import annotations

import getpass
import os
import shlex
from argparse import ArgumentParser, Namespace
from contextlib import contextmanager
from difflib import get_close_matches
from typing import TYPE_CHECKING

from kernai.command_line import output
from kernai.command_line.errors import NO, OK, CommandError
from kernai.durable.store import Entry, check_run_id
from kernai.errors import InFlightError, KernaiError, ReplayDivergenceError, RunConflictError
from kernai.jsonio.json_data import jsonable
from kernai.terminal_text import one_line

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Self

    from kernai.durable.recorded_run import RecordedRun
    from kernai.values.pending_call import PendingCall

MADE_BY = "`kernai run AGENT ... --store FILE` makes one"
_CALL_WIDTH = 200


class RunStore:
    """A `SqliteStore`, under the path that the user typed. A context manager; closes it.

    `CommandError` where it cannot be opened; with `make` it is made where there is none.
    """

    def __init__(self, path: str, *, make: bool = False) -> None:
        from kernai.durable.sqlite_store import SqliteStore  # a run without a store needs no SQLite

        self.path = path
        try:
            if not make and not os.stat(path).st_size:  # noqa: PTH116 - text in, text out
                raise CommandError(f"{path} is empty, and no store of runs", MADE_BY)
            self.store = SqliteStore(path)
        except OSError as error:
            raise CommandError(f"cannot open {path}: {error.strerror or error}", MADE_BY) from error
        except (KernaiError, ValueError) as error:
            hint = "name a file that kernai made, or a new one"
            if isinstance(error.__cause__, OSError):
                hint = "the folder must be there, and you must be allowed to write to it and to the file"
            raise CommandError(f"the store: {error}", hint) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.store.close()

    def has(self, run_id: str) -> bool:
        """Whether the run is there; `CommandError` for an id that none can have."""
        check_id(run_id)
        return any(run.run_id == run_id for run in self.store.runs())

    def entries(self, run_id: str) -> list[Entry]:
        """The run as it is stored; `CommandError` where it is not there."""
        check_id(run_id)
        entries = self.store.load(run_id)
        if entries:
            return entries
        listed = f"`{command('runs', self.path)}` lists those it has"
        close = get_close_matches(run_id, [run.run_id for run in self.store.runs()], 1)
        hint = f"did you mean {close[0]}? {listed}" if close else listed
        raise CommandError(f"{self.path} has no run {run_id!r}", hint)

    def recorded(self, run_id: str) -> RecordedRun:
        """The run, read so that it can go on."""
        from kernai.durable.recorded_run import RecordedRun

        return RecordedRun(run_id, self.entries(run_id))

    def again(self, agent: tuple[str, ...], run_id: str) -> str:
        """The command line that goes on with a run; `agent` are the words that name it."""
        return command("resume", *agent, "--store", self.path, run_id)


def command(*words: str) -> str:
    """A command line of kernai's that can be copied."""
    return f"kernai {shlex.join(words)}"


def check_id(run_id: str) -> None:
    """`CommandError` for what no run in a store is called."""
    try:
        check_run_id(run_id)
    except ValueError as error:
        raise CommandError(f"a run in a store cannot be called {run_id!r}",
                           "1 to 128 of the characters A-Z a-z 0-9 . _ -, and no dot at the start") from error


def new_run_id() -> str:
    """A name for a run that was given none; short enough to be typed."""
    return os.urandom(6).hex()


def call_line(call: PendingCall) -> str:
    """A call that somebody has to decide on, on one line."""
    what = call.skill or "a call of the model"
    params = "" if call.skill is None else one_line(jsonable(call.params), _CALL_WIDTH)
    told = " ".join(filter(None, (what, params)))
    return f"{told} ({one_line(call.reason, _CALL_WIDTH)})" if call.reason else told


def login_name() -> str | None:
    """Who the user is on this machine, as far as that is known."""
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):  # no such user, as in some containers
        return None


@contextmanager
def going_on(
    again: str | None, replay: str = "", *, another: str = "go on with the agent that made the recording"
) -> Iterator[None]:
    """Around a run that is kept: what stands against going on with it becomes a `CommandError`, and where anything else
    breaks it off, a note says how to go on. `again` and `replay` are command lines; without `again` there is no note.
    `another` is what can be done about an agent that has changed.
    """
    try:
        yield
    except InFlightError as error:
        if again is None:
            raise  # whoever talks with the user asks
        calls = "; ".join(f"{call.call_id} {call_line(call)}" for call in error.calls)
        raise CommandError(
            f"the run was broken off in the middle of calls that may have taken effect: {calls}",
            f"find out whether they did; then `{again} --in-flight skip` tells the model that the outcome is unknown, "
            "and `--in-flight retry` calls again", NO,
        ) from error
    except ReplayDivergenceError as error:
        raise CommandError(
            f"the agent decides otherwise than in the recording, from event {error.seq} on ({error.event})",
            f"`{replay}` shows where; {another}", NO,
        ) from error
    except RunConflictError as error:
        raise CommandError(
            "another process has gone on with the run, so this one has stopped", f"`{again}` goes on behind it", NO
        ) from error
    except BaseException as error:
        if again is not None:
            broken_off = "" if isinstance(error, Exception) else "; with --in-flight, if a call was under way"
            output.note(f"The run is kept; to go on with it: {again}{broken_off}")
        raise


DESCRIPTION = """\
List the runs that a store keeps, the last changed first. The status of a run that has ended is its stop reason;
`waiting` says that a person is to decide on a call, and `running` that the run goes on, or that its process died."""
EXAMPLES = """\
kernai runs runs.db
kernai runs runs.db --json | python -m json.tool"""

_STYLES = {"running": "cyan", "waiting": "yellow", "final": None}
_HEADS = ("RUN", "AGENT", "STATUS", "LAST CHANGE")


def add_arguments(parser: ArgumentParser) -> None:
    """See `Command`."""
    parser.add_argument("store", metavar="STORE", help="a file that --store has made")
    parser.add_argument("--json", action="store_true", help="the list as JSON on stdout")


def run(options: Namespace) -> int:
    """See `Command`."""
    with RunStore(options.store) as store:
        runs = store.store.runs()
    if options.json:
        output.write_json([
            {"run_id": one.run_id, "agent": one.agent, "status": one.status, "updated_at": one.updated_at}
            for one in runs
        ])
        return OK
    rows = [(one.run_id, one_line(one.agent or "-", 40), one.status, one.updated_at) for one in runs]
    if not rows:
        output.note(f"{options.store} keeps no run")
        return OK
    widths = [max(map(len, column)) for column in zip(_HEADS, *rows, strict=True)]
    for row in (_HEADS, *rows):
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        output.write(line.rstrip(), "dim" if row is _HEADS else _STYLES.get(row[2], "red"))
    return OK
