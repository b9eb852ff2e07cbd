"""`kernai resume`: goes on with a run that a store keeps."""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace
from typing import Any

from kernai.agents.agent import Agent
from kernai.command_line import output
from kernai.command_line.agents import FORMS, INSTRUCTIONS, agent_of, agent_words, limited, model_words, with_model
from kernai.command_line.errors import CommandError
from kernai.command_line.narrator import Narrator
from kernai.command_line.options import add_limit_arguments, add_made_agent_arguments, add_model_arguments
from kernai.command_line.run_command import tell_outcome
from kernai.command_line.runs_command import RunStore, call_line, command, going_on, login_name
from kernai.command_line.termination import terminable
from kernai.durable.approvals import Decision
from kernai.durable.durable_run import IN_FLIGHT
from kernai.durable.recorded_run import RecordedRun
from kernai.runs.running import resume

DESCRIPTION = f"""\
Go on with a run that a store keeps: after a crash, a limit, a cancellation or a failure of the vendor, with a decision
for a call that waits, or with what the user says next. What was done before is not done again. A run that has its
answer gives it. AGENT is {FORMS}, the one that the run began with.

A call that had begun when the process died may have taken effect, so by default that is an error which names it.
`--in-flight skip` tells the model that the outcome is unknown, `--in-flight retry` calls again; skills marked
idempotent are called again in any case."""
EXAMPLES = """\
kernai resume clerk.py --store runs.db refund-42
kernai resume clerk.py --store runs.db refund-42 --approve 1.0
kernai resume clerk.py --store runs.db refund-42 --refuse 1.0="order 42 was never paid" --by ann
kernai resume clerk.py --store runs.db refund-42 --input "And order 43?\""""


def add_arguments(parser: ArgumentParser) -> None:
    """See `Command`."""
    parser.add_argument("agent", metavar="AGENT", nargs="?", help=f"{FORMS}; its code is run")
    parser.add_argument("run", metavar="RUN", help="the run's id; `kernai runs STORE` lists them")
    add_made_agent_arguments(parser)
    parser.add_argument("--store", metavar="FILE", required=True, help="the store that keeps the run")
    group = parser.add_argument_group("decisions", "on calls that wait")
    group.add_argument(
        "--approve", metavar="CALL", action="append", default=[], help="the call with this id is made; repeatable"
    )
    group.add_argument(
        "--refuse", metavar="CALL[=WHY]", action="append", default=[],
        help="it is not, and the model reads why; repeatable",
    )
    group.add_argument("--by", metavar="NAME", help="who decides, for the recording (default: your login name)")
    parser.add_argument("--input", metavar="TEXT", help="what the user says next; - is stdin")
    parser.add_argument(
        "--in-flight", choices=IN_FLIGHT, default="fail", help="what becomes of calls that had begun (default: fail)"
    )
    add_model_arguments(parser)
    parser.add_argument("--json", action="store_true", help="the whole result as JSON on stdout")
    loudness = parser.add_mutually_exclusive_group()
    loudness.add_argument("--quiet", "-q", action="store_true", help="tell nothing but errors")
    loudness.add_argument("--verbose", "-v", action="store_true", help="tell more")
    add_limit_arguments(parser)


def run(options: Namespace) -> int:
    """See `Command`."""
    with RunStore(options.store) as store:
        recorded = store.recorded(options.run)
        given: dict[str, Any] = {"in_flight": options.in_flight, "approvals": _decisions(options, recorded)}
        text = output.read_text("-").rstrip("\r\n") if options.input == "-" else options.input
        if text is not None:
            given["input"] = _checked_input(text, recorded, given["approvals"])
        with agent_of(options, "run") as named, with_model(named, options) as agent:
            return _resume(agent, options, store, given)


def _resume(agent: Agent, options: Namespace, store: RunStore, given: dict[str, Any]) -> int:
    agent, limits = limited(agent, options)
    narrator = None if options.quiet else Narrator(verbose=options.verbose)
    again = store.again(agent_words(options) + model_words(options), options.run)
    model = () if options.model is None else ("--model", options.model)
    words = agent_words(options) or ("--system", INSTRUCTIONS)  # a replay has no agent by default
    replay = command("replay", *words, *model, "--store", store.path, options.run)
    started = time.monotonic()
    # stdout is for the answer, not for what skills print
    with terminable(), going_on(again, replay), output.stdout_is_stderr():
        try:
            result = resume(agent, options.run, store=store.store, limits=limits, on_event=narrator, **given)
        except ValueError:
            _decisions(options, store.recorded(options.run))  # somebody else may have decided in the meantime
            raise
    return tell_outcome(result, options, time.monotonic() - started, again=again)


def _decisions(options: Namespace, recorded: RecordedRun) -> dict[str, Decision]:
    """What the user has decided, by call; `CommandError` for a call that does not wait."""
    who = login_name() if options.by is None else options.by
    refused = [one.partition("=") for one in options.refuse]
    said: list[tuple[str, bool | str]] = [(call, True) for call in options.approve]
    said += [(call, why or False) for call, _, why in refused]
    decisions: dict[str, Decision] = {}
    for call, value in said:
        if call in decisions:
            raise CommandError(f"there are two decisions on call {call!r}", "give one --approve or --refuse a call")
        if call not in recorded.waiting:
            raise CommandError(f"call {call!r} of run {recorded.run_id!r} waits for no decision", _waiting(recorded))
        decisions[call] = Decision(value, by=who)
    return decisions


def _checked_input(text: str, recorded: RecordedRun, decisions: dict[str, Decision]) -> str:
    if not text.strip():
        raise CommandError("--input is empty", "say something, or leave it out")
    if recorded.waiting.keys() - decisions.keys():
        raise CommandError("--input: the run waits for a decision first", _waiting(recorded))
    return text


def _waiting(recorded: RecordedRun) -> str:
    told = "; ".join(f"{call.call_id} {call_line(call)}" for call in recorded.waiting.values())
    return f"those that wait: {told}" if told else "no call of this run waits"
