"""A conversation with an agent: the session, what it shows of a turn, and the store that keeps it."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout, suppress
from typing import TYPE_CHECKING, Any, Literal

from kernai._util.private_file import write_private
from kernai.agents.agent import Agent
from kernai.command_line import output
from kernai.command_line.errors import DEBUG_HINT, NO, CommandError, described
from kernai.command_line.media import media_from, tell_unseen
from kernai.command_line.narrator import PipedTurn, TurnView, summary
from kernai.command_line.run_command import failure_of
from kernai.command_line.runs_command import RunStore, call_line, check_id, command, going_on, login_name, new_run_id
from kernai.drivers.run_stream import RunStream
from kernai.errors import InFlightError, KernaiError, StoreNeededError
from kernai.interrupts import INTERRUPTS
from kernai.recording.recorder import Recorder
from kernai.runs.running import replay, stream
from kernai.values.context import Context
from kernai.values.limits import Limits
from kernai.values.media import Media
from kernai.values.media_store import MediaStore
from kernai.values.message import Message
from kernai.values.pending_call import PendingCall
from kernai.values.result import Result, StopReason

if TYPE_CHECKING:
    from kernai.runs.run_request import UserInput

#: as `RunInfo.status` has them: what ended in the middle of a turn
_UNFINISHED = ("running", "waiting")


class KeptConversation:
    """Each turn after the first goes on with the run. `words` are those of the command line that started it."""

    def __init__(self, store: RunStore, run_id: str | None, words: tuple[str, ...]) -> None:
        self.run_id = new_run_id() if run_id is None else run_id
        check_id(self.run_id)
        self._store = store
        self._words = words

    @property
    def again(self) -> str:
        """The command line that goes on with it."""
        return command("chat", *self._words, "--store", self._store.path, "--run-id", self.run_id)

    @property
    def has_begun(self) -> bool:
        """Whether anything of it is in the store."""
        return self._store.has(self.run_id)

    @property
    def is_unfinished(self) -> bool:
        """Whether its last turn was broken off, or waits for a decision."""
        return any(run.run_id == self.run_id and run.status in _UNFINISHED for run in self._store.store.runs())

    def renew(self) -> None:
        """From now on it is another conversation."""
        self.run_id = new_run_id()

    def messages(self, agent: Agent, media: MediaStore) -> tuple[Message, ...]:
        """What was said so far; `CommandError` where the agent cannot go on from there."""
        with self._going_on():
            result = replay(agent, self.run_id, store=self._store.store, context=Context(media_store=media))
        return () if result is None else result.messages

    def begin(self, agent: Agent, content: UserInput | None, options: Mapping[str, Any]) -> RunStream:
        """The next turn; without content what goes on with the one that was broken off."""
        given = {**options, "store": self._store.store}
        if not self.has_begun:
            assert content is not None
            return stream(agent, content, run_id=self.run_id, **given)
        with self._going_on():
            return stream(agent, content, run_id=self.run_id, resume=True, **given)

    def _going_on(self) -> Any:
        where = f"kernai replay AGENT --store {self._store.path} {self.run_id}"
        return going_on(None, where, another="begin another conversation, with another --run-id")


_HOW: Mapping[str, tuple[str, str]] = {
    "approvals": ("waits for your decision", "y or yes approves, n or no refuses, any other text refuses and says why"),
    "in_flight": (
        "had begun when the program ended, and may have taken effect",
        "skip: the model reads that the outcome is unknown; retry: it is called again",
    ),
}


class Questions:
    """`what` is asked of each call: whether it is approved, or what becomes of one that was under way."""

    def __init__(self, what: Literal["approvals", "in_flight"], calls: Sequence[PendingCall]) -> None:
        self._what = what
        self._open = list(calls)
        self._answers: dict[str, Any] = {}

    def ask(self) -> None:
        """Tells what is to be decided next."""
        told, how = _HOW[self._what]
        output.note(f"{call_line(self._open[0])} {told}", "yellow")
        output.note(f"({how})")

    def take(self, text: str) -> bool:
        """One line of the user's. Whether everything is decided now."""
        answer = self._read(text)
        if answer is not None:
            self._answers[self._open.pop(0).call_id] = answer
        return not self._open

    def given(self) -> dict[str, Any]:
        """The decisions, as `resume` takes them."""
        answers = self._answers
        return {self._what: answers if self._what == "approvals" else lambda call: answers[call.call_id]}

    def _read(self, text: str) -> Any:
        word = text.strip().lower()
        if self._what == "in_flight":
            return word if word in ("skip", "retry") else None
        if not word:
            return None
        from kernai.durable.approvals import Decision

        said = {"y": True, "yes": True, "n": False, "no": False}.get(word, text.strip())
        return Decision(said, by=login_name())


HELP = """\
/attach FILE|URL   send an image or another file along with the next line
/reset             forget the conversation
/save FILE         write the conversation as JSON, such as run(history=...) takes
/quit              leave (also Ctrl-D)
//...              send a line that begins with /
Ctrl-C             cancel the turn that is running; what its calls have done stays known"""


class ChatSession:
    """The conversation so far. `take` is one line of it."""

    def __init__(
        self,
        agent: Agent[Any],
        *,
        limits: Limits,
        store: MediaStore,
        recorder: Recorder | None = None,
        kept: KeptConversation | None = None,
    ) -> None:
        self.agent = agent
        #: whether Ctrl-C has ended a turn
        self.was_interrupted = False
        self._limits = limits
        self._store = store
        self._recorder = recorder
        self._kept = kept
        self._questions: Questions | None = None
        self._verbose = self._quiet = False
        self._history: tuple[Message, ...] = ()
        self._attached: list[Media] = []
        self._saved: set[str] = set()
        self._commands: dict[str, Callable[[str], object]] = {
            "/help": lambda _: output.note(HELP, None),
            "/reset": self._reset,
            "/save": self._save,
            "/attach": self._attach,
        }

    def loudness(self, *, verbose: bool, quiet: bool) -> None:
        """How much is told beside the answers."""
        self._verbose, self._quiet = verbose, quiet

    def take(self, line: str) -> bool:
        """One line: a turn or a command. False when the user wants to leave, `CommandError` for what went wrong."""
        text = line.strip()
        if text.startswith("/") and not text.startswith("//"):
            return self._command(text)
        if self._questions is not None:
            self._answer(text)
        elif text:
            said = text[1:] if text.startswith("//") else line
            self._turn([said, *self._attached] if self._attached else said)
        return True

    @property
    def asks(self) -> bool:
        """Whether the next line is to be a decision."""
        return self._questions is not None

    def take_up(self) -> None:
        """What a conversation that is kept was when the program ended: its messages, and the turn that did not end."""
        if self._kept is None or not self._kept.has_begun:
            return
        if self._kept.is_unfinished:
            output.note("(going on where the conversation was broken off)")
            self._turn(None)
        else:
            self._history = self._kept.messages(self.agent, self._store)
            output.note(f"(the conversation goes on; {len(self._history)} messages so far)")

    def _answer(self, text: str) -> None:
        assert self._questions is not None
        if not self._questions.take(text):
            self._questions.ask()
            return
        given, self._questions = self._questions.given(), None
        self._turn(None, **given)

    def _command(self, text: str) -> bool:
        name, _, argument = text.partition(" ")
        if name in ("/quit", "/exit"):
            return False
        if name not in self._commands:
            raise CommandError(f"there is no {name}", "/help lists what there is; // sends a line that begins with /")
        self._commands[name](os.path.expanduser(argument.strip()))  # noqa: PTH111 - no shell has done it
        return True

    def _reset(self, _: str) -> None:
        self._history = ()
        self._attached.clear()
        self._questions = None
        if self._kept is None:
            output.note("(the conversation is forgotten)")
            return
        before = self._kept.again
        self._kept.renew()
        output.note(f"(another conversation, run {self._kept.run_id}; the one before: {before})")

    def _attach(self, given: str) -> None:
        if not given:
            raise CommandError("/attach needs a file or a URL", "/attach photo.png")
        media = media_from(given)
        tell_unseen(media, self.agent)
        self._attached.append(media)
        output.note(f"({media.kind} {media.mime_type} goes with the next line)")

    def _save(self, path: str) -> None:
        if not path:
            raise CommandError("/save needs a file", "/save talk.json")
        known = os.path.abspath(path) in self._saved  # noqa: PTH100 - text in, text out
        talk = json.dumps([message.to_dict() for message in self._history], indent=2) + "\n"
        try:
            if not known:
                os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
            write_private(path, talk.encode("ascii"))
        except FileExistsError as error:
            raise CommandError(f"{path} exists, so it is left as it is", "name another file") from error
        except OSError as error:
            told = f"cannot write {path}: {error.strerror or error}"
            raise CommandError(told, "name a file that can be written") from error
        self._saved.add(os.path.abspath(path))  # noqa: PTH100 - text in, text out
        output.note(f"({len(self._history)} messages in {path})")

    def _turn(self, content: UserInput | None, **more: Any) -> None:
        """A turn of the conversation; without content what goes on with one that was broken off, or that waited."""
        kind = TurnView if output.is_terminal(sys.stdout) else PipedTurn
        view = kind(verbose=self._verbose, quiet=self._quiet)
        started = time.monotonic()
        options = {
            "context": Context(media_store=self._store), "limits": self._limits, "recorder": self._recorder,
            **more,
        }
        try:
            events = self._begin(content, options)
        except InFlightError as error:
            self._questions = Questions("in_flight", error.calls)
            self._questions.ask()
            return
        failure = self._show(events, view)
        if isinstance(failure, BrokenPipeError):
            raise failure
        view.end_line()
        result = _result(events)
        if result is not None:
            self._remember(result)
            if self._verbose:
                output.note(summary(result, time.monotonic() - started))
        if isinstance(failure, StoreNeededError):
            how = "with `kernai chat --store FILE` you are asked here"
            raise CommandError(f"{failure.why}, and a run that waits needs a store", how, NO) from failure
        if failure is not None:
            raise CommandError(described(failure), DEBUG_HINT, NO) from failure
        self._conclude(result, view)

    def _begin(self, content: UserInput | None, options: dict[str, Any]) -> RunStream:
        if self._kept is not None:
            return self._kept.begin(self.agent, content, options)
        assert content is not None
        return stream(self.agent, content, history=self._history, **options)

    def _show(self, events: RunStream, view: TurnView | PipedTurn) -> Exception | None:
        """Shows the turn to its end, and waits for that also where it is cancelled. Gives what else broke it off."""
        failure: Exception | None = None
        try:
            with redirect_stdout(sys.stderr):  # stdout is for what the model says, not for what its skills print
                for event in events:
                    view.show(event)
        except KeyboardInterrupt:
            self.was_interrupted = True
        except Exception as error:  # noqa: BLE001 - the agent's own code, or a pipe that is closed
            failure = error
        with suppress(Exception):  # what broke the turn off has been told
            events.close()
        if self.was_interrupted:
            with suppress(KeyboardInterrupt):  # who has pressed more than once means this turn
                INTERRUPTS.look()
        return failure

    def _remember(self, result: Result[Any]) -> None:
        new = result.messages[len(self._history):]
        if self._kept is not None or result.ok or any(message.role == "assistant" for message in new):
            self._history = result.messages
            self._attached.clear()

    def _conclude(self, result: Result[Any] | None, view: TurnView | PipedTurn) -> None:
        if result is not None and result.pending:
            self._questions = Questions("approvals", result.pending)
            self._questions.ask()
        elif result is None or result.stop_reason is StopReason.CANCELLED:
            kept = self._kept is not None or (result is not None and result.messages == self._history)
            output.note("(cancelled)" if kept else "(cancelled; as if you had not asked)", "yellow")
        elif not result.ok:
            raise CommandError(*failure_of(result)) from result.error
        elif not view.spoke:
            output.note("(an empty answer)")


def _result(events: RunStream) -> Result[Any] | None:
    """How the turn ended; None where it was broken off before it began."""
    try:
        return events.result
    except KernaiError:
        return None
