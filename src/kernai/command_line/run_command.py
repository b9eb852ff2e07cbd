"""`kernai run` and `kernai resume`: one run of an agent, and how its outcome is reported.

The answer goes to stdout, progress to stderr.
"""

from __future__ import annotations

import sys
import time
from argparse import SUPPRESS, ArgumentParser, Namespace
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from kernai.agents.agent import Agent
from kernai.command_line import options as shared
from kernai.command_line import output
from kernai.command_line.agents import INSTRUCTIONS, NAME_ONE, is_made, note_unseen, prepared
from kernai.command_line.narrator import Narrator, TurnView, summary
from kernai.command_line.output import DEBUG_HINT, NO, OK, PROVIDER, WAITING, CommandError
from kernai.command_line.recording import Recording, recording_of
from kernai.command_line.stores import (
    RunStore,
    call_line,
    call_lines,
    command,
    continuing,
    login_name,
    new_run_id,
    not_waiting,
)
from kernai.durable.approvals import Decision
from kernai.durable.durable_run import IN_FLIGHT
from kernai.durable.recorded_run import RecordedRun
from kernai.errors import ProviderError, error_text
from kernai.runs.run_request import UserInput
from kernai.runs.running import execute, resume
from kernai.terminal_text import printable
from kernai.values.context import Context
from kernai.values.limits import Limits
from kernai.values.pending_calls import PendingCall
from kernai.values.result import Result, StopReason


def _add_run_arguments(parser: ArgumentParser) -> None:
    shared.add_agent_arguments(parser)
    parser.add_argument("input", metavar="INPUT", nargs="?", help="the question or task; - reads stdin")
    shared.add_model_arguments(parser)
    parser.add_argument(
        "--media", metavar="FILE|URL", action="append", default=[], type=shared.media,
        help="an image or other media to send after the input; repeatable",
    )
    parser.add_argument(
        "--record", metavar="FILE", help="write a recording: .json at the end, or .jsonl as the run goes"
    )
    parser.add_argument("--json", action="store_true", help="the whole result as JSON on stdout")
    shared.add_loudness_arguments(parser)
    shared.add_store_arguments(parser)
    shared.add_limit_arguments(parser)


def _run(options: Namespace) -> int:
    if is_made(options) and options.input is None:
        options.agent, options.input = None, options.agent
    elif options.agent is None and not is_made(options):
        raise CommandError("there is no agent", NAME_ONE)
    elif options.input is None and " " in options.agent and ".py" not in options.agent:
        hint = f"a question comes after the agent ({shared.AGENT_FORMS}), or alone with --system TEXT or --skills FILE"
        raise CommandError(f"no agent at {options.agent!r}", hint)
    with prepared(options, "run") as (agent, limits):
        return _execute(agent, limits, options)


def _execute(agent: Agent[Any], limits: Limits, options: Namespace) -> int:
    given = _input(options)
    context = Context()
    if not options.quiet:
        note_unseen(options.media, agent.model)
    run_id = new_run_id() if options.run_id is None else options.run_id
    if not run_id:
        raise CommandError("--run-id is empty", "leave it out for a random one")
    with _kept(options, run_id) as store, recording_of(options, context.media_store) as recording:
        return carried_out(
            lambda view: execute(
                agent, given, context=context, limits=limits, on_event=view, run_id=run_id,
                recorder=None if recording is None else recording.recorder,
                store=None if store is None else store.store,
            ),
            options, recording=recording,
            again=None if store is None else store.again(shared.same_agent(options), run_id),
        )


def _kept(options: Namespace, run_id: str) -> AbstractContextManager[RunStore | None]:
    """The store that `--store` names, where the run must be a new one."""
    if options.store is None:
        return nullcontext()
    store = RunStore(options.store, make=True)
    if store.info(run_id) is not None:
        store.store.close()
        again = store.again(shared.same_agent(options), run_id)
        hint = f"`{again}` continues it; or choose another --run-id"
        raise CommandError(f"{options.store} already has a run {run_id!r}", hint)
    if options.run_id is None and not options.quiet:
        output.note(f"run {run_id} in {options.store}")
    return store


def _input(options: Namespace) -> UserInput:
    """Text and media as the run takes them."""
    text: str | None = options.input
    try:
        (text or "").encode("utf-8")
    except UnicodeEncodeError as error:  # bytes that are no text become halves of surrogates
        wrong = f"INPUT: character {error.start} is not valid in the terminal's encoding"
        raise CommandError(wrong, "pipe it in as UTF-8, with -") from error
    if text == "-" or (text is None and not output.is_terminal(sys.stdin)):
        # the line break with which a file or `echo` ends is no part of the question
        text = output.read_text("-").rstrip("\r\n")
    if not (text or "").strip():
        if not options.media:
            hint = 'give it as the second argument, kernai run AGENT "...", or pipe it in'
            raise CommandError("there is no input", hint)
        return list(options.media)
    assert text is not None
    return [text, *options.media] if options.media else text


def _add_resume_arguments(parser: ArgumentParser) -> None:
    shared.add_agent_arguments(parser)
    parser.add_argument("words", metavar="STORE RUN", nargs="*", help="a run in a store; see `kernai runs STORE`")
    parser.add_argument("--store", help=SUPPRESS)  # the older spelling: AGENT --store STORE RUN
    group = parser.add_argument_group("decisions", "on waiting calls")
    group.add_argument("--approve", metavar="CALL", action="append", default=[], help="approve this call; repeatable")
    group.add_argument(
        "--refuse", metavar="CALL[=WHY]", action="append", default=[],
        help="refuse this call, and give the model the reason WHY; repeatable",
    )
    shared.add_by_argument(group)
    parser.add_argument("--input", metavar="TEXT", help="the user's next message; - reads stdin")
    parser.add_argument(
        "--in-flight", choices=IN_FLIGHT, default="fail",
        help="what to do with calls that were interrupted (default: fail)",
    )
    shared.add_model_arguments(parser)
    parser.add_argument("--json", action="store_true", help="the whole result as JSON on stdout")
    shared.add_loudness_arguments(parser)
    shared.add_limit_arguments(parser)


def _resume(options: Namespace) -> int:
    words = [one for one in (options.agent, *options.words) if one is not None]
    if options.store is not None:
        words.insert(max(len(words) - 1, 0), options.store)
    if len(words) not in (2, 3) or (len(words) == 2 and words[0].endswith(".py")):  # noqa: PLR2004 - a store and a run
        hint = "kernai resume AGENT STORE RUN; `kernai runs STORE` lists the runs"
        raise CommandError("give an agent, a store and a run", hint)
    options.agent, path, options.run = (None, *words)[-3:]
    with RunStore(path) as store:
        waiting = _waiting(options, store)
        decisions = _decisions(options, waiting)
        given: dict[str, Any] = {"in_flight": options.in_flight, "approvals": decisions}
        text = output.read_text("-").rstrip("\r\n") if options.input == "-" else options.input
        if text is not None:
            if not text.strip():
                raise CommandError("--input is empty", "say something, or leave it out")
            if waiting.keys() - decisions.keys():
                hint = f"those that wait: {call_lines(waiting.values())}"
                raise CommandError("--input: the run waits for a decision first", hint)
            given["input"] = text
        with prepared(options, "run") as (agent, limits):
            return _continue(agent, limits, options, store, given)


def _continue(agent: Agent, limits: Limits, options: Namespace, store: RunStore, given: dict[str, Any]) -> int:
    again = store.again(shared.same_agent(options), options.run)
    # a replay has no agent by default
    words = shared.same_agent(options, ("system", "skills")) or ("--system", INSTRUCTIONS)
    model = () if options.model is None else ("--model", options.model)
    replay = command("replay", *words, *model, store.path, options.run)

    def start(view: Narrator) -> Result:
        try:
            return resume(agent, options.run, store=store.store, limits=limits, on_event=view, **given)
        except ValueError:
            _decisions(options, _waiting(options, store))  # somebody else may have decided in the meantime
            raise

    return carried_out(start, options, again=again, replay=replay)


def _waiting(options: Namespace, store: RunStore) -> dict[str, PendingCall]:
    """The calls of the run that wait for a decision, by id."""
    return RecordedRun(options.run, store.entries(options.run)).waiting


def _decisions(options: Namespace, waiting: dict[str, PendingCall]) -> dict[str, Decision]:
    """What the user has decided, by call; `CommandError` for a call that does not wait."""
    who = login_name() if options.by is None else options.by
    decisions: dict[str, Decision] = {}
    refused = [(call, why or False) for call, _, why in (one.partition("=") for one in options.refuse)]
    for call, value in [*((call, True) for call in options.approve), *refused]:
        if call in decisions:
            raise CommandError(f"there are two decisions on call {call!r}", "give one --approve or --refuse per call")
        if call not in waiting:
            raise not_waiting(call, options.run, waiting)
        decisions[call] = Decision(value, by=who)
    return decisions


# ------------------------------------------------------------------------------------------------------ the outcome

VENDOR_HINT = "`kernai doctor` looks at keys and servers; --debug shows the traceback"
_LIMITS = {
    StopReason.MAX_STEPS, StopReason.MAX_TOKENS, StopReason.MAX_COST, StopReason.MAX_CALLS, StopReason.TIMEOUT
}


def failure_of(result: Result[Any], recording: Recording | None = None, again: str | None = None) -> CommandError:
    """The error for a run that gave no answer; its message includes a faulty recording.

    `again` is the command line that continues the run, if it is kept.
    """
    error = result.error
    message = f"the run stopped: {result.stop_reason}" if error is None else error_text(error)
    if recording is not None and recording.failure is not None:
        message = f"{message}; and {recording.failure}"
    hint, status = DEBUG_HINT, NO
    if result.stop_reason in _LIMITS:
        hint = f"--{result.stop_reason.replace('_', '-')} allows more"
    elif isinstance(error, ProviderError):
        hint, status = VENDOR_HINT, PROVIDER
    return CommandError(message, hint if again is None else f"`{again}` continues it; {hint}", status)


def carried_out(
    start: Callable[[Narrator], Result], options: Namespace, *, recording: Recording | None = None,
    again: str | None = None, replay: str = "",
) -> int:
    """Starts a run, shows it, and returns the exit status; `CommandError` for a run with no answer that does not wait.

    Progress goes to stderr, also what skills print; the answer goes to stdout, as it comes if that is a terminal.
    `again` and `replay` are the command lines that continue and replay the run, if it is kept.
    """
    started = time.monotonic()
    with continuing(again, replay), output.stdout_is_stderr() as out:
        kind = TurnView if output.is_terminal(out) and not options.json else Narrator
        view = kind(out, steps=True, verbose=options.verbose, quiet=options.quiet)
        try:
            result = start(view)
        finally:
            view.end_line()
    if recording is not None:
        recording.close()
    if not options.quiet:
        output.note(summary(result, time.monotonic() - started))
    if options.json:
        output.write_json(result.to_dict())
    elif result.ok and (not view.said or view.said != (result.text or "").strip()):  # else it was shown as it came
        output.write_answer(result.text or "")
    if not result.ok and not result.pending:
        raise failure_of(result, recording, again) from result.error
    if recording is not None:
        recording.check()
    if not result.pending:
        return OK
    for call in result.pending:
        output.note(f"waits for a decision: {printable(call.call_id)} {call_line(call)}", "yellow")
    first = result.pending[0].call_id
    output.note(f"hint: {again} --approve {first}, or --refuse {first}=WHY", None)
    return WAITING


COMMANDS = {
    "run": shared.Command(_add_run_arguments, _run, f"""\
Run an agent once. AGENT is {shared.AGENT_FORMS}. If a file has several agents and you give no NAME, the one called
`agent` runs. For an ad-hoc agent, pass --system or --skills instead of AGENT; the first argument is then the input.
Pass - as the input, or pipe it in without one, to read it from stdin.
The answer goes to stdout, progress to stderr.

With --store the run survives a crash and can wait for a person's decision; `kernai resume` continues it.""", """\
kernai run agent.py "How many lamps do we have?"
kernai run shop.agents:stock "Take stock." --model openai/gpt-4o-mini --record run.jsonl
kernai run agent.py "What is this?" --media photo.png --media https://example.com/plan.pdf
cat question.txt | kernai run agent.py --quiet --timeout 60
kernai run agent.py - --json < question.txt
kernai run "How many lamps do we have?" --skills stock.py --model ollama/llama3.1
kernai run "Which sea is this?" --system "Answer in one word." --model local/qwen3 --base-url http://127.0.0.1:8080/v1
kernai run clerk.py "Refund order 42" --store runs.db --run-id refund-42"""),
    "resume": shared.Command(_add_resume_arguments, _resume, f"""\
Continue a run in a store: after a crash, a limit, a cancellation or a vendor's failure, with a decision on a waiting
call, or with the user's next message. Completed calls are not repeated. If the run has finished, its answer is printed.
AGENT must be the agent that started the run: {shared.AGENT_FORMS}.

A call that was running when the process died may have taken effect, so by default resuming fails and lists such calls.
`--in-flight skip` informs the model that the outcome is unknown; `--in-flight retry` makes the call again. Skills
marked idempotent are always called again.""", """\
kernai resume clerk.py runs.db refund-42
kernai resume clerk.py runs.db refund-42 --approve 1.0
kernai resume clerk.py runs.db refund-42 --refuse 1.0="order 42 was never paid" --by ann
kernai resume clerk.py runs.db refund-42 --input "And order 43?\""""),
}
