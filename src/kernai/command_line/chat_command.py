"""`kernai chat`: a conversation at a terminal or through a pipe."""

from __future__ import annotations

import contextlib
import io
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import contextmanager

from kernai.command_line import output
from kernai.command_line.agents import FORMS, agent_of, agent_words, limited, model_words, with_model
from kernai.command_line.chat_session import ChatSession, KeptConversation
from kernai.command_line.errors import INTERRUPTED, OK, WAITING, CommandError
from kernai.command_line.options import (
    add_limit_arguments,
    add_made_agent_arguments,
    add_model_arguments,
    add_store_arguments,
)
from kernai.command_line.recording import recording_of
from kernai.command_line.runs_command import RunStore
from kernai.command_line.termination import terminable, watched
from kernai.interrupts import INTERRUPTS, calls_out
from kernai.values.media_store import MediaStore

PROMPT = "> "


class LineReader:
    """Gives one line after the other; Ctrl-C while it waits is a `KeyboardInterrupt` out of `read`."""

    def __init__(self) -> None:
        #: whether a person types
        self.interactive = output.is_terminal(sys.stdin)
        if isinstance(sys.stdin, io.TextIOWrapper):
            sys.stdin.reconfigure(errors="replace")  # a wrong byte is no reason to end a conversation
        self._edits = self.interactive and output.is_terminal(sys.stdout)
        if self._edits:
            with contextlib.suppress(ImportError):  # not on every system
                import readline  # noqa: F401 - from now on `input` edits lines and keeps their history

    def read(self) -> str | None:
        """The next line, without its end; None when there are no more."""
        try:
            with watched():
                return self._line()
        except KeyboardInterrupt:
            if self.interactive:
                sys.stderr.write("\n")
            raise

    @calls_out
    def _line(self) -> str | None:
        return self._typed()  # of its own, for it is what Ctrl-C may break off

    def _typed(self) -> str | None:
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


DESCRIPTION = f"""\
Talk to an agent; it remembers what was said. AGENT is {FORMS}; without one a plain agent answers,
with --system and --skills as it is told.
Ctrl-C cancels the turn that is running; at the prompt it clears the line, and twice in a row it leaves.
With something piped in, each line is a turn, and Ctrl-C ends the program.

With --store the conversation survives the end of the program: the same --run-id goes on with it. A call that waits for
a decision is asked about in the terminal."""
EXAMPLES = """\
kernai chat --model anthropic/claude-sonnet-5
kernai chat agent.py --record talk.jsonl
kernai chat clerk.py --store talks.db --run-id monday
printf 'Hello\\nWhat did I say?\\n' | kernai chat --model ollama/llama3.1"""


def add_arguments(parser: ArgumentParser) -> None:
    """See `Command`."""
    parser.add_argument("agent", metavar="AGENT", nargs="?", help=f"{FORMS}; its code is run")
    add_made_agent_arguments(parser)
    add_model_arguments(parser)
    parser.add_argument("--record", metavar="FILE", help="write the recording of all turns here: .json or .jsonl")
    add_store_arguments(parser)
    loudness = parser.add_mutually_exclusive_group()
    loudness.add_argument("--quiet", "-q", action="store_true", help="show answers and errors alone")
    loudness.add_argument("--verbose", "-v", action="store_true", help="tell more")
    add_limit_arguments(parser)


def run(options: Namespace) -> int:
    """See `Command`."""
    store = MediaStore()
    with agent_of(options, "chat") as agent, with_model(agent, options) as answering:
        ready, limits = limited(answering, options)
        with terminable(), _kept(options) as kept, recording_of(options, store) as recording:
            reader = LineReader()
            recorder = None if recording is None else recording.recorder
            session = ChatSession(ready, limits=limits, store=store, recorder=recorder, kept=kept)
            session.loudness(verbose=options.verbose, quiet=options.quiet)
            if reader.interactive and not options.quiet:
                output.note(f"{ready.model.id}. /help shows what there is, Ctrl-D leaves.")
            if kept is not None and not options.quiet:
                output.note(f"Run {kept.run_id}; to go on with it later: {kept.again}")
            # so that Ctrl-C is raised where a line is read, or a turn is shown, and nowhere between
            status = INTERRUPTS.during(lambda: _talk(session, reader, debug=options.debug))
    if recording is not None:
        recording.check()
    return status


@contextmanager
def _kept(options: Namespace) -> Iterator[KeptConversation | None]:
    """The conversation that `--store` keeps."""
    if options.store is None:
        if options.run_id is not None:
            raise CommandError("--run-id is for a conversation that is kept", "add --store FILE")
        yield None
        return
    with RunStore(options.store, make=True) as store:
        yield KeptConversation(store, options.run_id, agent_words(options) + model_words(options))


def _talk(session: ChatSession, reader: LineReader, *, debug: bool) -> int:
    """Takes lines until there are no more. A pipe's exit status is that of the last turn that failed."""
    session.take_up()
    status = OK
    interrupted = False
    while True:
        if session.asks and not reader.interactive:
            raise CommandError("the conversation waits for a decision, and nobody is here to ask",
                               "go on in a terminal, or with `kernai resume AGENT --store FILE RUN --approve CALL`",
                               WAITING)
        if session.was_interrupted and not reader.interactive:
            raise KeyboardInterrupt
        try:
            line = reader.read()
            interrupted = False
            if line is None or not session.take(line):
                return OK if reader.interactive else status
        except CommandError as error:
            output.report(error.message, error.hint, error if debug else None)
            status = error.status
        except KeyboardInterrupt:
            if not reader.interactive:
                raise
            if interrupted:
                return INTERRUPTED
            interrupted = True
            output.note("(Ctrl-C again, Ctrl-D or /quit leaves)")
