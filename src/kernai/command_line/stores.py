"""Stores for commands: opens them by path or address, and says how a run that waits or was kept can be continued."""

from __future__ import annotations

import getpass
import os
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

from kernai._util.redaction import one_line
from kernai.command_line import output
from kernai.command_line.output import NO, CommandError, failing, is_address, without_password
from kernai.command_line.program import argument, valid_text
from kernai.durable.store import RunInfo, check_run_id
from kernai.errors import InFlightError, KernaiError, ReplayDivergenceError, RunBusyError
from kernai.jsonio.json_data import jsonable, value_in
from kernai.values.result import StopReason

if TYPE_CHECKING:
    from kernai import PendingCall, SqliteStore
    from kernai.postgres import PostgresStore

MADE_BY = "`kernai run AGENT ... --store STORE` makes one"


def open_postgres(address: str, *, create: bool = False) -> PostgresStore:
    """Opens the `PostgresStore` at an address. Raises `CommandError` if that fails, or for a file."""
    if not is_address(address):
        raise CommandError("this command needs a PostgreSQL store", "name one as postgresql://...")
    with failing("", "PostgreSQL needs the extra kernai[postgres]", ImportError):
        from kernai.postgres import PostgresStore
    with failing("the store", "an address is postgresql://USER@HOST/DATABASE", (KernaiError, ValueError)):
        return PostgresStore(address, create=create)


class StoreAt:
    """The store at `path`: a file of `SqliteStore`, or the address of a PostgreSQL database. A context manager.

    The block opens it; with `make`, it creates a file that does not exist. Raises `CommandError` if that fails.
    """

    def __init__(self, path: str, *, make: bool = False) -> None:
        #: may be shown: without a password
        self.path = without_password(path)
        self.store: SqliteStore | PostgresStore
        # made absolute now: an agent's file that is loaded before the block may change the working directory
        self._file = path if is_address(path) or path in ("", ":memory:") else os.path.abspath(path)
        self._make = make

    def __enter__(self) -> Self:
        if is_address(self._file):
            self.store = open_postgres(self._file)
            return self
        from kernai.durable.sqlite_store import SqliteStore  # a run without a store needs no SQLite

        hint = "name a new file in a folder that exists, or a store that kernai made" if self._make else MADE_BY
        with failing("", hint, (KernaiError, ValueError)), failing(f"cannot open {self.path}", hint):
            if not self._make and not os.stat(self._file).st_size:
                raise CommandError(f"{self.path} is empty and not a store of runs", MADE_BY)
            self.store = SqliteStore(self._file)
        return self

    def __exit__(self, *error: object) -> None:
        self.store.close()

    def info(self, run_id: str) -> RunInfo | None:
        check_id(run_id)
        return self.store.info(run_id)

    def keeps(self, run_id: str) -> bool:
        """Whether the store has the run. Also true if the store cannot be read."""
        try:
            return self.info(run_id) is not None
        except KernaiError:
            return True

    def existing(self, run_id: str) -> RunInfo:
        """Like `info`, but raises `CommandError` if the store does not have the run."""
        if info := self.info(run_id):
            return info
        raise CommandError(f"{self.path} has no run {run_id!r}", f"`{command('runs', self.path)}` lists those it has")


def command(*words: str) -> str:
    """A command line of `kernai` that can be pasted into a shell."""
    return f"kernai {shlex.join(words)}"


def check_id(run_id: str) -> None:
    """Raises `CommandError` if a run in a store cannot have this id."""
    with failing("", "an id is a name such as refund-42", ValueError):
        check_run_id(run_id, "RUN")


def new_run_id() -> str:
    """A random id that is short enough to type."""
    return os.urandom(6).hex()


def call_line(call: PendingCall, width: int = 10**9) -> str:
    """One line about a call that waits for a decision. By default, nothing is cut: who approves a call must see it."""
    what = f"{call.skill} {one_line(jsonable(call.params), width)}" if call.skill else "a call of the model"
    hidden = ("in_flight", "state") if "mcp" in call.metadata else ("in_flight",)  # long, and for the server alone
    metadata = {name: one for name, one in jsonable(call.metadata).items() if name not in hidden}
    about = [one_line(one, width) for one in (call.reason, metadata, call.until and f"until {call.until}") if one]
    return f"{what} ({' '.join(about)})" if about else what


def call_lines(calls: Iterable[PendingCall]) -> str:
    """One line about several calls, each with its id. Long parameters and reasons are cut."""
    return "; ".join(f"{call.call_id} {call_line(call, 200)}" for call in calls)


def decided(given: str, run_id: str, waiting: Mapping[str, PendingCall], *, approves: bool = True) -> tuple[str, Any]:
    """The call of ``CALL[=TEXT]``, and the decision on it; the text is an answer or, without `approves`, a reason.

    Raises `CommandError` for a call that does not wait. A task's id, and so a call's, may contain a ``=``.
    """
    fitting = [one for one in waiting if f"{given}=".startswith(f"{one}=")]
    if not fitting:
        none = "no call of this run waits; `kernai resume --in-flight` decides on interrupted ones"
        hint = f"those that wait: {call_lines(waiting.values())}" if waiting else none
        raise CommandError(f"call {given!r:.80} of run {run_id!r} waits for no decision", hint)
    call = max(fitting, key=len)
    text = given[len(call) + 1 :]
    if approves and given != call and text.strip().lower() in ("", "n", "no"):
        raise CommandError("an answer approves the call", "to refuse, use --no or --refuse; or quote it: '\"no\"'")
    approval = given == call or {"answer": value_in(text)}
    return call, approval if approves else text or False


def login_name() -> str | None:
    """The user's login name; None if it is unknown."""
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):  # no such user, as in some containers
        return None


@contextmanager
def continuing(
    again: str | None, replay: str = "", *, another: str = "use the agent that made the recording",
    is_kept: Callable[[], bool] = lambda: True,
) -> Iterator[None]:
    """For a block that runs or continues a run in a store. If the run cannot be continued, raises `CommandError`; after
    any other exception, a note says how to continue the run, if the store keeps it.

    `again` and `replay` are the command lines for these commands; without `again` there is no note. `another` is the
    advice if the agent has changed.
    """
    try:
        yield
    except BaseException as error:
        match error:
            case InFlightError() if again is not None:  # otherwise the caller asks the user
                why = f"the run was interrupted during calls that may have taken effect: {call_lines(error.calls)}"
                hint = (f"find out whether they did; then `{again} --in-flight skip` continues, and the model reads "
                        "that the outcome is unknown; `--in-flight retry` calls again")
            case ReplayDivergenceError() if f'"stop_reason":"{StopReason.MAX_STEPS}"' in error.got:
                # `replay` would only show that it stops there
                why, hint = "the recorded run took more steps than are allowed now", "--max-steps allows more"
            case ReplayDivergenceError():
                why = f"the agent decides differently from the recording, starting at event {error.seq} ({error.event})"
                hint = f"`{replay}` shows where; {another}"
            case RunBusyError():
                why = f"run {error.run_id!r} is being worked on by {error.holder}, since {error.since}"
                hint = "let it finish, or ask it to stop: `kernai cancel STORE RUN`; then the run can be continued"
            case _:
                if again is not None and is_kept():
                    in_flight = "" if isinstance(error, Exception) else "; with --in-flight, if a call was running"
                    output.note(f"The run is kept; to continue it: {again}{in_flight}")
                raise
        raise CommandError(why, hint, NO) from error


# -------------------------------------------------------------------------------------------------------- arguments

SAVING = (
    argument("--record FILE", "write a recording: .json at the end, or .jsonl as the run goes"),
    argument("--store STORE", "save the run in this file (created if needed) or postgresql://..., to resume it later"),
    argument("--run-id RUN", "the run's id (default: a random one)"),
)
STORE = argument("STORE", "a file created by --store, or postgresql://...")
RUN = argument("RUN", "the run's id; `kernai runs STORE` lists them")
BY = argument("--by NAME", "who made the decision, for the recording (default: your login name)", valid_text)
