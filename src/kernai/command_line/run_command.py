"""`kernai run`: one run of an agent. The answer goes to stdout, what happens to stderr."""

from __future__ import annotations

import sys
import time
from argparse import ArgumentParser, Namespace
from typing import Any

from kernai.agents.agent import Agent
from kernai.command_line import exit_codes, output
from kernai.command_line.agents import FORMS, find_agent
from kernai.command_line.errors import CommandError
from kernai.command_line.input_media import media_from, tell_unseen
from kernai.command_line.limits import add_limit_arguments, limited
from kernai.command_line.models import add_model_arguments, with_model
from kernai.command_line.narrator import Narrator, summary
from kernai.command_line.recording import recording_of
from kernai.command_line.run_failure import failure_of
from kernai.command_line.termination import terminable
from kernai.run_request import UserInput
from kernai.running import execute
from kernai.values.context import Context
from kernai.values.media import Media

DESCRIPTION = f"""\
Run an agent once. AGENT is {FORMS}; of a file the agent called `agent` is taken, or the only one.
The input is the second argument, or stdin: with - in its place, or left out with something piped in.
The answer goes to stdout, what happens meanwhile to stderr."""
EXAMPLES = """\
kernai run agent.py "How many lamps do we have?"
kernai run shop.agents:stock "Take stock." --model openai/gpt-4o-mini --record run.jsonl
kernai run agent.py "What is this?" --media photo.png --media https://example.com/plan.pdf
cat question.txt | kernai run agent.py --quiet --timeout 60
kernai run agent.py - --json < question.txt"""

def add_arguments(parser: ArgumentParser) -> None:
    """See `Command`."""
    parser.add_argument("agent", metavar="AGENT", help=f"{FORMS}; its code is run")
    parser.add_argument("input", metavar="INPUT", nargs="?", help="what to ask; - is stdin")
    add_model_arguments(parser)
    parser.add_argument(
        "--media", metavar="FILE|URL", action="append", default=[], help="goes behind the input; repeatable"
    )
    parser.add_argument("--record", metavar="FILE", help="write the recording here: .json, or .jsonl line by line")
    parser.add_argument("--json", action="store_true", help="the whole result as JSON on stdout")
    loudness = parser.add_mutually_exclusive_group()
    loudness.add_argument("--quiet", "-q", action="store_true", help="tell nothing but errors")
    loudness.add_argument("--verbose", "-v", action="store_true", help="tell more")
    add_limit_arguments(parser)


def run(options: Namespace) -> int:
    """See `Command`."""
    with with_model(find_agent(options.agent), options) as agent:
        return _run(agent, options)


def _run(agent: Agent[Any], options: Namespace) -> int:
    agent, limits = limited(agent, options)
    given = _input(options)
    context = Context()
    if not options.quiet:
        tell_unseen(given, agent)
    narrator = None if options.quiet else Narrator(verbose=options.verbose)
    started = time.monotonic()
    with terminable(), recording_of(options, context.media_store) as recording:
        recorder = None if recording is None else recording.recorder
        with output.stdout_is_stderr():  # stdout is for the answer, not for what skills print
            result = execute(agent, given, context=context, limits=limits, on_event=narrator, recorder=recorder)
    if not options.quiet:
        output.note(summary(result, time.monotonic() - started))
    if options.json:
        output.write_json(result.to_dict())
    elif result.ok:
        output.write_answer(result.text or "")
    if not result.ok:
        raise CommandError(*failure_of(result, recording)) from result.error
    if recording is not None:
        recording.check()
    return exit_codes.OK


def _text(given: str | None) -> str | None:
    """The argument; `CommandError` for bytes that are no text, which Python carries along as halves of surrogates."""
    try:
        (given or "").encode("utf-8")
    except UnicodeEncodeError as error:
        raise CommandError(
            f"INPUT: character {error.start} is no text in the terminal's encoding", "pipe it in as UTF-8, with -"
        ) from error
    return given


def _input(options: Namespace) -> UserInput:
    """Text and media as the run takes them."""
    media: list[str | Media] = [media_from(one) for one in options.media]
    text = _text(options.input)
    if text == "-" or (text is None and not output.is_terminal(sys.stdin)):
        # the line break with which a file or `echo` ends is no part of the question
        text = output.read_text("-").rstrip("\r\n")
    if text is not None and not text.strip():
        text = None
    if text is None and not media:
        raise CommandError("there is no input", 'give it as the second argument, kernai run AGENT "...", or pipe it in')
    parts = [*([] if text is None else [text]), *media]
    return text if text is not None and not media else parts
