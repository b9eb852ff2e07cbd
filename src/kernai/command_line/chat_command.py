"""`kernai chat`: a conversation at a terminal or through a pipe."""

from __future__ import annotations

import json
import os
import sys
import time
from argparse import Namespace
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any, Literal

import kernai
from kernai._util.private_file import write_private
from kernai.command_line import agents, output, stores
from kernai.command_line.narrator import LOUDNESS, Narrator, TurnView, failure_of, summary, write_answer
from kernai.command_line.output import INTERRUPTED, OK, UNDECIDED, CommandError, failing
from kernai.command_line.program import Command, explained
from kernai.command_line.recording import Recording
from kernai.durable.store import ABANDONED, BLOCKED, RUNNING, WAITING
from kernai.interrupts import INTERRUPTS
from kernai.jsonio.json_data import value_in
from kernai.runs.resume_request import recorded_result
from kernai.runs.run_request import UserInput


def run(options: Namespace) -> int:
    if options.store is None and options.run_id is not None:
        raise CommandError("--run-id is for a conversation in a store", "add --store STORE")
    options.run_id = stores.new_run_id() if options.run_id is None else options.run_id
    stores.check_id(options.run_id)
    media = kernai.MediaStore()
    # first: a wrong file name must not leave an empty store
    record = nullcontext() if options.record is None else Recording(options.record, media, quiet=options.quiet)
    kept = nullcontext() if options.store is None else stores.StoreAt(options.store, make=True)
    with agents.prepared(options) as (agent, limits), kept as store, record as recorder:
        reader = output.LineReader()
        session = ChatSession(agent, limits, options, media, store, recorder)
        if reader.interactive and not options.quiet:
            output.note(f"{agent.model.id}. /help lists the commands, Ctrl-D leaves.")
        if store is not None:
            output.note(f"Run {options.run_id}; to continue it later: {session.again()}", quiet=options.quiet)
        status: list[int] = []
        try:
            # raises Ctrl-C only while a line is read or a turn is shown, never in between
            INTERRUPTS.during(lambda: status.append(_talk(session, reader)))
        except KeyboardInterrupt:
            if not status:  # with a status it was a second press during a turn, and that turn has ended
                raise
    return status[0]


def _talk(session: ChatSession, reader: output.LineReader) -> int:
    """Reads lines and runs turns. Returns the exit status; for piped input, that of the last turn that failed."""
    session.restore()
    status = OK
    interrupted = False
    while True:
        if not reader.interactive and session.asks:
            what, calls, _ = session.asks
            option = ("--approve", calls[0].call_id) if what == "approvals" else ("--in-flight", "skip")
            hint = f"continue in a terminal, or with `{session.again('resume', *option)}`"
            raise CommandError("the conversation waits for a decision, and nobody is here to ask", hint, UNDECIDED)
        if not reader.interactive and session.was_interrupted:
            raise KeyboardInterrupt
        if session.asks:
            output.note(f"({_QUESTIONS[session.asks[0]][1]})")
        try:
            line = reader.read()
            interrupted = False
            if line is None or not session.take(line):
                return OK if reader.interactive else status
        except CommandError as error:
            output.report(error, error if session.options.debug else None)
            status = error.status
        except KeyboardInterrupt:
            if not reader.interactive:
                raise
            if interrupted:
                return INTERRUPTED
            interrupted = True
            output.note("(Ctrl-C again, Ctrl-D or /quit leaves)")


# --------------------------------------------------------------------------------------------------- the conversation

HELP = """\
/attach FILE|URL   send an image or another file with the next line
/reset             forget the conversation
/save FILE         write the conversation as JSON, for run(history=...)
/quit              leave (also Ctrl-D)
//...              send a line that begins with /
Ctrl-C             cancel the turn that is running; what its calls have done stays known"""


Asked = Literal["approvals", "in_flight"]
#: the question about a call, and how to answer it
_QUESTIONS: Mapping[Asked, tuple[str, str]] = {
    "approvals": ("waits for your decision", "y approves, n or a reason refuses, =ANSWER answers, Enter looks again"),
    "in_flight": (
        "was running when the program ended, and may have taken effect",
        "skip: the model reads that the outcome is unknown; retry: it is called again",
    ),
}


def _read_answer(what: Asked, call: kernai.PendingCall, text: str) -> kernai.Decision | str | None:
    """Reads the answer to the question about a call. None if the question must be asked again."""
    word = text.lower()
    if what == "in_flight" or word in ("", "="):  # an empty answer is `= ""`
        return word if word in ("skip", "retry") else None
    said: Any = {"answer": value_in(text[1:].lstrip())} if text.startswith("=") else text
    said = {"y": True, "yes": True, "n": False, "no": False}.get(word, said)
    decision = kernai.Decision(said, by=stores.login_name())
    with suppress(ValueError):  # such as "ok", which neither approves nor refuses
        decision.check_for(call.params)
        return decision
    return None


@dataclass(slots=True)
class ChatSession:
    """A conversation. `take` handles one line of input.

    With a `store`, it is the run `options.run_id`, and each turn continues the run.
    """

    agent: kernai.Agent[Any]
    limits: kernai.Limits
    options: Namespace
    media: kernai.MediaStore
    store: stores.StoreAt | None = None
    recorder: kernai.Recorder | None = None
    #: whether Ctrl-C has cancelled the last turn
    was_interrupted: bool = False
    #: if the next line must be a decision: which kind, the calls that need one, and the answers so far
    asks: tuple[Asked, Sequence[kernai.PendingCall], dict[str, Any]] | None = None
    _history: tuple[kernai.Message, ...] = ()
    _attached: list[kernai.Media] = field(default_factory=list)
    _saved: set[str] = field(default_factory=set)

    def again(self, command: str = "chat", *more: str) -> str:
        """The command line that continues a conversation in a store."""
        path, run_id = "" if self.store is None else self.store.path, self.options.run_id
        words = ("--store", path, "--run-id", run_id) if command == "chat" else (path, run_id)
        return stores.command(command, *agents.same_agent(self.options), *words, *more)

    def restore(self) -> None:
        """Loads the messages of a conversation in a store, or continues its turn if that was interrupted or waits."""
        run_id, store = self.options.run_id, self.store
        if store is None or (info := store.info(run_id)) is None:
            return
        if info.status in (RUNNING, ABANDONED, BLOCKED, WAITING):
            output.note("(continuing the interrupted turn)", quiet=self.options.quiet)
            self._turn(None)
            return
        with self._continuing():
            result = recorded_result(self.agent, run_id, store.store, kernai.Context(media_store=self.media))
        self._history = () if result is None else result.messages
        output.note(f"(the conversation continues; {len(self._history)} messages so far)", quiet=self.options.quiet)

    def _continuing(self) -> AbstractContextManager[None]:
        where = "" if self.store is None else stores.command("replay", "AGENT", self.store.path, self.options.run_id)
        return stores.continuing(None, where, another="begin another conversation, with another --run-id")

    def take(self, line: str) -> bool:
        """Handles one line, which is a turn or a command. Returns False if the user wants to leave.

        Raises `CommandError` if the turn or command fails.
        """
        text = line.strip()
        if text.startswith("/") and not text.startswith("//"):
            return self._command(text)
        if self.asks is not None:
            what, calls, answers = self.asks
            call = calls[len(answers)]
            if (answer := _read_answer(what, call, text)) is not None:
                answers[call.call_id] = answer
            # an empty line looks again: the time of a call may have come, or somebody else has decided
            self._ask(what, calls if text or what == "in_flight" else calls[: len(answers)], answers)
        elif text:
            said = text[1:] if text.startswith("//") else line
            self._turn([said, *self._attached] if self._attached else said)
        return True

    def _ask(self, what: Asked, calls: Sequence[kernai.PendingCall], answers: dict[str, Any]) -> None:
        """Asks about the first call without an answer. Once all have one, continues the turn."""
        if len(answers) == len(calls):
            self.asks = None
            try:
                known = answers if what == "approvals" else lambda call: answers.get(call.call_id, "fail")
                self._turn(None, **{what: known})
            except (ValueError, kernai.KernaiError):
                info = None if self.store is None else self.store.existing(self.options.run_id)
                if info is None or answers.keys() <= {call.call_id for call in info.pending}:
                    raise
                output.note("(meanwhile, somebody else has decided or ended the run)", "yellow")
                self.restore()
            return
        self.asks = what, calls, answers
        output.note(f"{stores.call_line(calls[len(answers)])} {_QUESTIONS[what][0]}", "yellow")

    def _command(self, text: str) -> bool:
        name, _, argument = text.partition(" ")
        argument = os.path.expanduser(argument.strip())  # there is no shell here to expand ~
        match name:
            case "/quit" | "/exit":
                return False
            case "/help":
                output.note(HELP, None)
            case "/reset":
                self._history, self.asks = (), None
                self._attached.clear()
                if self.store is None:
                    output.note("(the conversation is forgotten)")
                else:
                    before, self.options.run_id = self.again(), stores.new_run_id()
                    output.note(f"(a new conversation, run {self.options.run_id}; the one before: {before})")
            case "/save":
                if not argument:
                    raise CommandError("/save needs a file", "/save talk.json")
                talk = json.dumps([message.to_dict() for message in self._history], indent=2) + "\n"
                if os.path.lexists(argument) and os.path.abspath(argument) not in self._saved:
                    raise CommandError(f"{argument} exists, so it is left unchanged", "name another file")
                with failing(f"cannot write {argument}", "name a file that can be written"):
                    write_private(argument, talk.encode("ascii"))
                self._saved.add(os.path.abspath(argument))
                output.note(f"({len(self._history)} messages in {argument})")
            case "/attach":
                if not argument:
                    raise CommandError("/attach needs a file or a URL", "/attach photo.png")
                media = agents.media_at(argument)
                agents.note_unseen([media], self.agent.model)
                self._attached.append(media)
                output.note(f"({media.kind} {media.mime_type} goes with the next line)")
            case _:
                hint = "/help lists the commands; // sends a line that begins with /"
                raise CommandError(f"there is no {name}", hint)
        return True

    def _turn(self, content: UserInput | None, **more: Any) -> None:
        """Runs a turn of the conversation; without content, continues one that was interrupted or waited."""
        started, self.was_interrupted = time.monotonic(), False
        more |= {"context": kernai.Context(media_store=self.media), "limits": self.limits, "recorder": self.recorder}
        if self.store is None:
            more["history"] = self._history
        else:
            run_id = self.options.run_id
            more |= {"store": self.store.store, "run_id": run_id, "resume": self.store.info(run_id) is not None}
        try:
            with self._continuing():
                events = kernai.stream(self.agent, content, **more)
        except kernai.InFlightError as error:
            self._ask("in_flight", error.calls, {})
            return
        kind = TurnView if output.is_terminal(sys.stdout) else Narrator
        with output.stdout_is_stderr() as out:  # stdout is for what the model says, not for what its skills print
            view = kind(out, verbose=self.options.verbose, quiet=self.options.quiet)
            failure: Exception | None = None
            try:
                for event in events:
                    view(event)
            except KeyboardInterrupt:
                self.was_interrupted = True
            except Exception as error:  # noqa: BLE001 - from the agent's own code, or because a pipe was closed
                failure = error
            with suppress(Exception):  # waits for the end of a cancelled turn, too; `failure` has an exception already
                events.close()
            view.end_line()
        if self.was_interrupted:
            with suppress(KeyboardInterrupt):  # a second press was meant for this turn, too
                INTERRUPTS.look()
        result: kernai.Result[Any] | None = None
        with suppress(kernai.KernaiError):  # it has no result if it was interrupted before it began
            result = events.result
        if result is not None:
            new = result.messages[len(self._history):]
            if self.store is not None or result.ok or any(message.role == "assistant" for message in new):
                self._history = result.messages
                self._attached.clear()
            if self.options.verbose:
                output.note(summary(result, time.monotonic() - started))
        if failure is not None:
            raise explained(failure) from failure
        self._conclude(result, view)

    def _conclude(self, result: kernai.Result[Any] | None, view: Narrator) -> None:
        if result is not None and result.pending:
            self._ask("approvals", result.pending, {})
        elif result is None or result.stop_reason is kernai.StopReason.CANCELLED:
            kept = self.store is not None or (result is not None and result.messages == self._history)
            output.note("(cancelled)" if kept else "(cancelled; as if you had not asked)", "yellow")
        elif not result.ok:
            raise failure_of(result) from result.error
        elif (result.text or "").strip():
            write_answer(result, view)
        else:
            output.note("(an empty answer)")


COMMANDS = {"chat": Command(run, (*agents.AGENT, *agents.MODEL, *stores.SAVING, LOUDNESS), f"""\
Chat with an agent that remembers the conversation. AGENT is {agents.AGENT_FORMS}; without it you talk to a plain agent,
which you can configure with --system and --skills.
Ctrl-C cancels the current turn; at the prompt it clears the line, and pressed twice in a row it quits.
If input is piped in, each line is a turn, and Ctrl-C quits.

With --store you can continue the conversation later with the same --run-id. Calls that need a decision are shown for
you to approve or refuse in the terminal. Limits apply to each turn; with --store, all but --max-steps apply to the
whole conversation.""", """\
kernai chat --model anthropic/claude-sonnet-5
kernai chat agent.py --record talk.jsonl
kernai chat clerk.py --store talks.db --run-id monday
printf 'Hello\\nWhat did I say?\\n' | kernai chat --model ollama/llama3.1""")}
