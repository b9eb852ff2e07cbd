"""`kernai resume`: continues a run in a store."""

from __future__ import annotations

from argparse import SUPPRESS, ArgumentParser, Namespace
from typing import Any

from kernai.agents.agent import Agent
from kernai.command_line import options as shared
from kernai.command_line import output
from kernai.command_line.agents import INSTRUCTIONS, prepared
from kernai.command_line.errors import CommandError
from kernai.command_line.narrator import Narrator
from kernai.command_line.run_command import carried_out
from kernai.command_line.runs_command import RunStore, call_lines, command, login_name, not_waiting
from kernai.durable.approvals import Decision
from kernai.durable.durable_run import IN_FLIGHT
from kernai.durable.recorded_run import RecordedRun
from kernai.runs.running import resume
from kernai.values.limits import Limits
from kernai.values.pending_calls import PendingCall
from kernai.values.result import Result

DESCRIPTION = f"""\
Continue a run in a store: after a crash, a limit, a cancellation or a vendor's failure, with a decision on a waiting
call, or with the user's next message. Completed calls are not repeated. If the run has finished, its answer is printed.
AGENT must be the agent that started the run: {shared.AGENT_FORMS}.

A call that was running when the process died may have taken effect, so by default resuming fails and lists such calls.
`--in-flight skip` informs the model that the outcome is unknown; `--in-flight retry` makes the call again. Skills
marked idempotent are always called again."""
EXAMPLES = """\
kernai resume clerk.py runs.db refund-42
kernai resume clerk.py runs.db refund-42 --approve 1.0
kernai resume clerk.py runs.db refund-42 --refuse 1.0="order 42 was never paid" --by ann
kernai resume clerk.py runs.db refund-42 --input "And order 43?\""""


def add_arguments(parser: ArgumentParser) -> None:
    shared.add_agent_arguments(parser)
    parser.add_argument("words", metavar="STORE RUN", nargs="*", help="a run in a store; see `kernai runs STORE`")
    parser.add_argument("--store", help=SUPPRESS)  # the older spelling: AGENT --store STORE RUN
    group = parser.add_argument_group("decisions", "on waiting calls")
    group.add_argument("--approve", metavar="CALL", action="append", default=[], help="approve this call; repeatable")
    group.add_argument(
        "--refuse", metavar="CALL[=WHY]", action="append", default=[],
        help="refuse this call, and give the model the reason WHY; repeatable",
    )
    group.add_argument(
        "--by", metavar="NAME", help="who made the decision, for the recording (default: your login name)"
    )
    parser.add_argument("--input", metavar="TEXT", help="the user's next message; - reads stdin")
    parser.add_argument(
        "--in-flight", choices=IN_FLIGHT, default="fail",
        help="what to do with calls that were interrupted (default: fail)",
    )
    shared.add_model_arguments(parser)
    parser.add_argument("--json", action="store_true", help="the whole result as JSON on stdout")
    shared.add_loudness_arguments(parser)
    shared.add_limit_arguments(parser)


def run(options: Namespace) -> int:
    words = [one for one in (options.agent, *options.words) if one is not None]
    if options.store is not None:
        words.insert(max(len(words) - 1, 0), options.store)
    if len(words) not in (2, 3):
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
            return _resume(agent, limits, options, store, given)


def _resume(agent: Agent, limits: Limits, options: Namespace, store: RunStore, given: dict[str, Any]) -> int:
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
    refused = [one.partition("=") for one in options.refuse]
    said: list[tuple[str, bool | str]] = [(call, True) for call in options.approve]
    for call, value in [*said, *((call, why or False) for call, _, why in refused)]:
        if call in decisions:
            raise CommandError(f"there are two decisions on call {call!r}", "give one --approve or --refuse per call")
        if call not in waiting:
            raise not_waiting(call, options.run, waiting)
        decisions[call] = Decision(value, by=who)
    return decisions
