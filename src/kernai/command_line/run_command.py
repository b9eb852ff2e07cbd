"""`kernai run`: one run of an agent. The answer goes to stdout, what happens to stderr."""

from __future__ import annotations

import sys
import time
from argparse import ArgumentParser, Namespace
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from kernai.agents.agent import Agent
from kernai.command_line import output
from kernai.command_line.agents import FORMS, NAME_ONE, agent_of, agent_words, is_made, limited, model_words, with_model
from kernai.command_line.errors import DEBUG_HINT, NO, OK, PROVIDER, WAITING, CommandError
from kernai.command_line.media import media_from, tell_unseen
from kernai.command_line.narrator import Narrator, summary
from kernai.command_line.options import (
    add_limit_arguments,
    add_made_agent_arguments,
    add_model_arguments,
    add_store_arguments,
)
from kernai.command_line.recording import Recording, recording_of
from kernai.command_line.runs_command import RunStore, call_line, going_on, new_run_id
from kernai.command_line.termination import terminable
from kernai.errors import ProviderError, error_text
from kernai.runs.run_request import UserInput
from kernai.runs.running import execute
from kernai.terminal_text import printable
from kernai.values.context import Context
from kernai.values.media import Media
from kernai.values.result import Result, StopReason

DESCRIPTION = f"""\
Run an agent once. AGENT is {FORMS}; of a file the agent called `agent` is taken, or the only one.
With --system or --skills there is no AGENT, and the input is the first argument: they make the agent.
The input is the second argument, or stdin: with - in its place, or left out with something piped in.
The answer goes to stdout, what happens meanwhile to stderr.

With --store the run survives the end of its process, and may wait for a person: `kernai resume` goes on with it."""
EXAMPLES = """\
kernai run agent.py "How many lamps do we have?"
kernai run shop.agents:stock "Take stock." --model openai/gpt-4o-mini --record run.jsonl
kernai run agent.py "What is this?" --media photo.png --media https://example.com/plan.pdf
cat question.txt | kernai run agent.py --quiet --timeout 60
kernai run agent.py - --json < question.txt
kernai run "How many lamps do we have?" --skills stock.py --model ollama/llama3.1
kernai run "Which sea is this?" --system "Answer in one word." --model local/qwen3 --base-url http://127.0.0.1:8080/v1
kernai run clerk.py "Refund order 42" --store runs.db --run-id refund-42"""


def add_arguments(parser: ArgumentParser) -> None:
    """See `Command`."""
    parser.add_argument("agent", metavar="AGENT", nargs="?", help=f"{FORMS}; its code is run")
    parser.add_argument("input", metavar="INPUT", nargs="?", help="what to ask; - is stdin")
    add_made_agent_arguments(parser)
    add_model_arguments(parser)
    parser.add_argument(
        "--media", metavar="FILE|URL", action="append", default=[], help="goes behind the input; repeatable"
    )
    parser.add_argument("--record", metavar="FILE", help="write the recording here: .json, or .jsonl line by line")
    parser.add_argument("--json", action="store_true", help="the whole result as JSON on stdout")
    loudness = parser.add_mutually_exclusive_group()
    loudness.add_argument("--quiet", "-q", action="store_true", help="tell nothing but errors")
    loudness.add_argument("--verbose", "-v", action="store_true", help="tell more")
    add_store_arguments(parser)
    add_limit_arguments(parser)


def run(options: Namespace) -> int:
    """See `Command`."""
    if is_made(options) and options.input is None:
        options.agent, options.input = None, options.agent
    elif options.agent is None and not is_made(options):
        raise CommandError("there is no agent", NAME_ONE)
    elif options.input is None and " " in options.agent and ".py" not in options.agent:
        hint = f"a question comes after the agent ({FORMS}), or alone with --system TEXT or --skills FILE"
        raise CommandError(f"no agent at {options.agent!r}", hint)
    with agent_of(options, "run") as named, with_model(named, options) as agent:
        return _run(agent, options)


def _run(agent: Agent[Any], options: Namespace) -> int:
    agent, limits = limited(agent, options)
    given = _input(options)
    context = Context()
    if not options.quiet:
        tell_unseen(given, agent)
    narrator = None if options.quiet else Narrator(verbose=options.verbose)
    run_id = new_run_id() if options.run_id is None else options.run_id
    if not run_id:
        raise CommandError("--run-id: a run cannot be called nothing", "leave it out, and kernai makes a name")
    with terminable(), _kept(options, run_id) as store, recording_of(options, context.media_store) as recording:
        recorder = None if recording is None else recording.recorder
        again = None if store is None else store.again(agent_words(options) + model_words(options), run_id)
        started = time.monotonic()
        # stdout is for the answer, not for what skills print
        with going_on(again), output.stdout_is_stderr():
            result = execute(
                agent, given, context=context, limits=limits, on_event=narrator, recorder=recorder, run_id=run_id,
                store=None if store is None else store.store,
            )
    return tell_outcome(result, options, time.monotonic() - started, recording=recording, again=again)


def _kept(options: Namespace, run_id: str) -> AbstractContextManager[RunStore | None]:
    """The store that `--store` names, where the run is to be a new one."""
    if options.store is None:
        return nullcontext()
    store = RunStore(options.store, make=True)
    if store.has(run_id):
        store.store.close()
        again = store.again(agent_words(options) + model_words(options), run_id)
        raise CommandError(
            f"{options.store} has a run {run_id!r} already", f"`{again}` goes on with it; or choose another --run-id"
        )
    if options.run_id is None and not options.quiet:
        output.note(f"run {run_id} in {options.store}")
    return store


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


VENDOR_HINT = "`kernai doctor` looks at keys and servers; --debug shows the traceback"
_HINTS = {
    StopReason.MAX_STEPS: "--max-steps allows more",
    StopReason.MAX_TOKENS: "--max-tokens allows more",
    StopReason.MAX_COST: "--max-cost allows more",
    StopReason.MAX_CALLS: "--max-calls allows more",
    StopReason.TIMEOUT: "--timeout allows more",
}


def failure_of(
    result: Result[Any], recording: Recording | None = None, again: str | None = None
) -> tuple[str, str | None, int]:
    """Message, hint and exit status for a run that gave no answer; the message tells of a faulty recording too.

    `again` is the command line that goes on with the run, where it is kept.
    """
    error = result.error
    told = f"the run stopped: {result.stop_reason}" if error is None else error_text(error)
    if recording is not None and recording.failure is not None:
        told = f"{told}; and {recording.told}"
    failed = isinstance(error, ProviderError) and result.stop_reason not in _HINTS
    hint = VENDOR_HINT if failed else _HINTS.get(result.stop_reason, DEBUG_HINT)
    if again is not None:
        hint = f"`{again}` goes on with it; {hint}"
    return told, hint, PROVIDER if failed else NO


def tell_outcome(
    result: Result, options: Namespace, seconds: float, *, recording: Recording | None = None, again: str | None = None
) -> int:
    """Writes it and gives the exit status; `CommandError` for a run without an answer that does not wait either.

    `again` is the command line that goes on with the run, where it is kept.
    """
    if not options.quiet:
        output.note(summary(result, seconds))
    if options.json:
        output.write_json(result.to_dict())
    elif result.ok:
        output.write_answer(result.text or "")
    if not result.ok and not result.pending:
        raise CommandError(*failure_of(result, recording, again)) from result.error
    if recording is not None:
        recording.check()
    if result.pending:
        _tell_pending(result, again)
        return WAITING
    return OK


def _tell_pending(result: Result, again: str | None) -> None:
    for call in result.pending:
        output.note(f"waits for a decision: {printable(call.call_id)} {call_line(call)}", "yellow")
    first = result.pending[0].call_id
    output.note(f"hint: {again} --approve {first}, or --refuse {first}=WHY", None)
