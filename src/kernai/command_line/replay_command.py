"""`kernai replay`: whether an agent decides as it did when a run was recorded. Calls nothing."""

from __future__ import annotations

from argparse import SUPPRESS, ArgumentParser, Namespace
from contextlib import nullcontext
from typing import Any

from kernai.command_line import output
from kernai.command_line.agents import NAME_ONE, agent_of, is_made
from kernai.command_line.options import AGENT_FORMS, Command, add_agent_arguments, same_agent
from kernai.command_line.output import NO, OK, CommandError
from kernai.command_line.recording import FORMS, Source, source
from kernai.command_line.stores import RunStore, command
from kernai.errors import KernaiError, ReplayDivergenceError, ReplayLoosenedError, error_text
from kernai.runs.resume_request import Replay
from kernai.runs.running import replay
from kernai.values.model import Model

DESCRIPTION = f"""\
Run an agent against a recording and compare every decision: which calls it makes, what it sends the model, and how it
ends. No model, skill or network is called, so any recorded run can serve as a test. AGENT is {AGENT_FORMS}.

An agent that decides the same but has lost a protection, such as an approval, counts as different too; use --accept for
a loss that you have reviewed. Other changes to the agent are listed, and count as differences with --strict.

The recording is a file, or a run in a store. Exit status: 0 the same, 1 different, 2 no recording."""
EXAMPLES = """\
kernai replay agent.py run.jsonl
kernai replay clerk.py runs.db refund-42
kernai replay clerk.py runs.db refund-42 --accept refund.approval --strict
kernai replay agent.py talk.jsonl --run-id 4f0c2a91b7de"""


def add_arguments(parser: ArgumentParser) -> None:
    add_agent_arguments(parser)
    parser.add_argument("words", metavar="RECORDING | STORE RUN", nargs="*", help=FORMS)
    parser.add_argument("--store", help=SUPPRESS)  # the older spelling: AGENT --store STORE RUN
    parser.add_argument("--run-id", metavar="RUN", help="which run, if the recording has several")
    parser.add_argument("--model", metavar="VENDOR/NAME", help="the model of the recorded run, if not the agent's own")
    parser.add_argument(
        "--accept", metavar="KEY", action="append", default=[], help="accept the loss of this protection; repeatable"
    )
    parser.add_argument("--strict", action="store_true", help="treat any change to the agent as a difference")
    parser.add_argument("--run-skills", action="store_true", help="call the skills and compare their results")
    parser.add_argument("--json", action="store_true", help="the difference as JSON on stdout")


def run(options: Namespace) -> int:
    words = options.words
    if is_made(options) and options.agent is not None:
        options.agent, words = None, [options.agent, *words]
    if not words and options.agent is not None and ".py" in options.agent:
        raise CommandError(f"there is no recording after {options.agent!r}", f"name {FORMS}")
    if not words:
        raise CommandError(f"there is no agent before {options.agent or 'the recording'!r}", NAME_ONE)
    recording = source(words if options.store is None else [options.store, *words])
    if recording.run_id is not None and options.run_id is not None:
        raise CommandError("--run-id is for a recording with several runs", "leave it out")
    found: Replay[Any] | ReplayDivergenceError
    try:
        found = _replayed(options, recording)
    except ReplayDivergenceError as divergence:
        found = divergence
    if options.json:
        output.write_json(_data(found, strict=options.strict))
    elif isinstance(found, ReplayLoosenedError):
        output.write("the agent decides the same, but has lost protections since the recording:", "bold")
        for key, words in found.loosened.items():
            output.write(f"- {words}", "red")
            output.write(f"  to accept it: --accept {key}")
    elif isinstance(found, ReplayDivergenceError):
        _show(found, str(recording), command(*same_agent(options, ("system", "skills"))).removeprefix("kernai "))
    else:
        output.write("the same" if found.result is not None else "the same, as far as the recording goes")
        for change in found.changes:
            output.write(f"changed: {change}", "red" if options.strict else "dim")
    return OK if _is_same(found, strict=options.strict) else NO


def _replayed(options: Namespace, recording: Source) -> Replay[Any]:
    with nullcontext() if recording.run_id is None else RunStore(recording.path) as store:
        if store is None:
            given: dict[str, Any] = {"recording": recording.events()}
        else:
            store.entries(recording.run_id or "")  # says what is wrong with the id
            given = {"store": store.store}
        if options.run_skills:
            given["skills"] = "run"
        run_id = options.run_id if store is None else recording.run_id
        with agent_of(options, "run") as agent, output.stdout_is_stderr():
            try:
                return replay(agent, run_id, model=_model(options.model), accept=options.accept, **given)
            except ReplayDivergenceError:
                raise
            except KernaiError as error:
                hint = "--run-id says which run of a recording with several"
                raise CommandError(error_text(error), hint) from error


def _is_same(found: Replay[Any] | ReplayDivergenceError, *, strict: bool) -> bool:
    return isinstance(found, Replay) and not (strict and found.changes)


def _data(found: Replay[Any] | ReplayDivergenceError, *, strict: bool) -> dict[str, Any]:
    """What is found, for JSON."""
    data: dict[str, Any] = {
        "same": _is_same(found, strict=strict), "divergence": None, "loosened": {}, "changes": [],
    }
    if isinstance(found, Replay):
        data["changes"] = list(found.changes)
    elif isinstance(found, ReplayLoosenedError):
        data["loosened"] = found.loosened
    else:
        data["divergence"] = {
            "seq": found.seq, "event": found.event, "recorded": found.expected, "now": found.got,
        }
    return data


def _model(name: str | None) -> Model | None:
    if name is None:
        return None
    from kernai_providers.vendors import capabilities_of

    plain = name.partition("/")[2] or name
    return Model(plain, capabilities_of(plain))


def _show(found: ReplayDivergenceError, recording: str, agent: str) -> None:
    output.write(f"--- {recording}", "bold")
    output.write(f"+++ {agent}, now", "bold")
    output.write(f"@@ event {found.seq}: {found.event} @@", "cyan")
    for sign, text, style in (("-", found.expected, "red"), ("+", found.got, "green")):
        for line in text.splitlines():
            output.write(f"{sign}{line}", style)


COMMANDS = {"replay": Command(add_arguments, run, DESCRIPTION, EXAMPLES)}
