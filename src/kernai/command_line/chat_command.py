"""`kernai chat`: a conversation at a terminal or through a pipe."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
import threading
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import contextmanager

from kernai.command_line import options as shared
from kernai.command_line import output
from kernai.command_line.agents import prepared
from kernai.command_line.chat_session import ChatSession, KeptConversation
from kernai.command_line.options import Command
from kernai.command_line.output import INTERRUPTED, OK, WAITING, CommandError
from kernai.command_line.recording import recording_of
from kernai.command_line.stores import RunStore
from kernai.interrupts import INTERRUPTS, calls_out
from kernai.values.media import MediaStore

DESCRIPTION = f"""\
Chat with an agent that remembers the conversation. AGENT is {shared.AGENT_FORMS}; without it you talk to a plain agent,
which you can configure with --system and --skills.
Ctrl-C cancels the current turn; at the prompt it clears the line, and pressed twice in a row it quits.
If input is piped in, each line is a turn, and Ctrl-C quits.

With --store you can continue the conversation later with the same --run-id. Calls that need a decision are shown for
you to approve or refuse in the terminal."""
EXAMPLES = """\
kernai chat --model anthropic/claude-sonnet-5
kernai chat agent.py --record talk.jsonl
kernai chat clerk.py --store talks.db --run-id monday
printf 'Hello\\nWhat did I say?\\n' | kernai chat --model ollama/llama3.1"""
PROMPT = "> "


def add_arguments(parser: ArgumentParser) -> None:
    shared.add_agent_arguments(parser)
    shared.add_model_arguments(parser)
    parser.add_argument("--record", metavar="FILE", help="write a recording of all turns: .json or .jsonl")
    shared.add_store_arguments(parser)
    shared.add_loudness_arguments(parser)
    shared.add_limit_arguments(parser)


def run(options: Namespace) -> int:
    media = MediaStore()
    with (
        prepared(options, "chat") as (agent, limits), _kept(options) as kept, recording_of(options, media) as recording
    ):
        reader = LineReader()
        session = ChatSession(
            agent, limits=limits, store=media, kept=kept, verbose=options.verbose, quiet=options.quiet,
            recorder=None if recording is None else recording.recorder,
        )
        if reader.interactive and not options.quiet:
            output.note(f"{agent.model.id}. /help lists the commands, Ctrl-D leaves.")
        if kept is not None and not options.quiet:
            output.note(f"Run {kept.run_id}; to continue it later: {kept.again}")
        status: list[int] = []
        try:
            # so that Ctrl-C is raised where a line is read, or a turn is shown, and nowhere between
            INTERRUPTS.during(lambda: status.append(_talk(session, reader, debug=options.debug)))
        except KeyboardInterrupt:
            if not status:  # else a second press during a turn, which has ended it
                raise
    if recording is not None:
        recording.check()
    return status[0]


@contextmanager
def _kept(options: Namespace) -> Iterator[KeptConversation | None]:
    """The conversation in the store that `--store` names."""
    if options.store is None:
        if options.run_id is not None:
            raise CommandError("--run-id is for a conversation in a store", "add --store STORE")
        yield None
        return
    with RunStore(options.store, make=True) as store:
        yield KeptConversation(store, options.run_id, shared.same_agent(options))


def _talk(session: ChatSession, reader: LineReader, *, debug: bool) -> int:
    """Takes lines until there are no more. A pipe's exit status is that of the last turn that failed."""
    session.restore()
    status = OK
    interrupted = False
    while True:
        if not reader.interactive and session.asks:
            raise CommandError(
                "the conversation waits for a decision, and nobody is here to ask",
                "continue in a terminal, or with `kernai resume AGENT STORE RUN --approve CALL`", WAITING,
            )
        if not reader.interactive and session.was_interrupted:
            raise KeyboardInterrupt
        try:
            line = reader.read()
            interrupted = False
            if line is None or not session.take(line):
                return OK if reader.interactive else status
        except CommandError as error:
            output.report(error, error if debug else None)
            status = error.status
        except KeyboardInterrupt:
            if not reader.interactive:
                raise
            if interrupted:
                return INTERRUPTED
            interrupted = True
            output.note("(Ctrl-C again, Ctrl-D or /quit leaves)")


#: seconds that a signal's handler has to end the call
_PATIENCE = 0.05


@contextmanager
def interruptible() -> Iterator[None]:
    """Around a call of the main thread that waits, and that a signal's handler ends by raising.

    A signal that comes while `input` reads a key, or is about to wait, only leaves a mark, and its handler runs when
    the next system call is interrupted. So a thread interrupts that, with a signal that means nothing.
    """
    if not hasattr(signal, "pthread_kill"):  # on Windows
        yield
        return
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    main, over = threading.get_ident(), threading.Event()

    def watch() -> None:
        while not over.is_set():
            came = set(os.read(reading, 4096))
            if came - {signal.SIGURG} and not over.wait(_PATIENCE):
                signal.pthread_kill(main, signal.SIGURG)

    handler = signal.signal(signal.SIGURG, lambda *_: None)
    before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    watcher = threading.Thread(target=watch, name="kernai-signal-watch", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        signal.set_wakeup_fd(before)
        signal.signal(signal.SIGURG, handler)
        os.write(writing, b"\0")
        watcher.join()
        os.close(reading)
        os.close(writing)


class LineReader:
    """Reads lines from stdin. Ctrl-C while it waits raises `KeyboardInterrupt`."""

    def __init__(self) -> None:
        #: whether a person types
        self.interactive = output.is_terminal(sys.stdin)
        if isinstance(sys.stdin, io.TextIOWrapper):
            sys.stdin.reconfigure(errors="replace")  # a wrong byte is no reason to end a conversation
        self._edits = self.interactive and output.is_terminal(sys.stdout)
        if self._edits:
            with contextlib.suppress(ImportError):  # not on every system
                import readline  # noqa: F401 - `input` now edits lines and keeps their history

    def read(self) -> str | None:
        """The next line, without its end; None when there are no more."""
        try:
            with interruptible():
                return self._wait()
        except KeyboardInterrupt:
            if self.interactive:
                sys.stderr.write("\n")
            raise

    @calls_out
    def _wait(self) -> str | None:
        return self._line()  # a frame of its own, for it is what Ctrl-C may break off

    def _line(self) -> str | None:
        if self._edits:
            try:
                return input(PROMPT)
            except EOFError:
                sys.stderr.write("\n")
                return None
        if self.interactive:
            sys.stderr.write(PROMPT)
            sys.stderr.flush()
        line = sys.stdin.readline() if sys.stdin is not None else ""
        return line.rstrip("\r\n") if line else None


COMMANDS = {"chat": Command(add_arguments, run, DESCRIPTION, EXAMPLES)}
