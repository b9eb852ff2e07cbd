"""`kernai replay`: whether an agent decides as it did when a run was recorded. Calls nothing."""

from __future__ import annotations

from argparse import SUPPRESS, ArgumentParser, Namespace
from contextlib import nullcontext
from typing import Any

from kernai.command_line import output
from kernai.command_line.agents import NAME_ONE, agent_of, is_made
from kernai.command_line.errors import NO, OK, CommandError
from kernai.command_line.options import AGENT_FORMS, add_agent_arguments, same_agent
from kernai.command_line.recording import FORMS, source
from kernai.command_line.runs_command import RunStore, command
from kernai.errors import KernaiError, ReplayDivergenceError, error_text
from kernai.runs.running import replay
from kernai.values.model import Model

DESCRIPTION = f"""\
Run an agent on a recording, and compare everything it decides: which calls it makes, what it sends the model, how it
ends. No model, skill or network is called, so any recorded run is a test. AGENT is {AGENT_FORMS}.

The recording is a file, or a run in a store. Exit status: 0 the same, 1 different, 2 no recording."""
EXAMPLES = """\
kernai replay agent.py run.jsonl
kernai replay clerk.py runs.db refund-42
kernai replay agent.py talk.jsonl --run-id 4f0c2a91b7de"""


def add_arguments(parser: ArgumentParser) -> None:
    add_agent_arguments(parser)
    parser.add_argument("words", metavar="RECORDING | STORE RUN", nargs="*", help=FORMS)
    parser.add_argument("--store", help=SUPPRESS)  # the older spelling: AGENT --store STORE RUN
    parser.add_argument("--run-id", metavar="RUN", help="which run, if the recording holds several")
    parser.add_argument("--model", metavar="VENDOR/NAME", help="the model of the recorded run, if not the agent's own")
    parser.add_argument("--json", action="store_true", help="the difference as JSON on stdout")


def run(options: Namespace) -> int:
    words = options.words
    if is_made(options) and options.agent is not None:
        options.agent, words = None, [options.agent, *words]
    if not words:
        raise CommandError(f"there is no agent before {options.agent or 'the recording'!r}", NAME_ONE)
    recording = source(words if options.store is None else [options.store, *words])
    if recording.run_id is not None and options.run_id is not None:
        raise CommandError("--run-id is for a recording with several runs", "leave it out")
    with nullcontext() if recording.run_id is None else RunStore(recording.path) as store:
        if store is None:
            given: dict[str, Any] = {"recording": recording.events()}
        else:
            store.entries(recording.run_id or "")  # says what is wrong with the id
            given = {"store": store.store}
        run_id = options.run_id if store is None else recording.run_id
        with agent_of(options, "run") as agent, output.stdout_is_stderr():
            found, whole = None, True
            try:
                whole = replay(agent, run_id, model=_model(options.model), **given) is not None
            except ReplayDivergenceError as divergence:
                found = divergence
            except KernaiError as error:
                hint = "--run-id says which run of a recording with several"
                raise CommandError(error_text(error), hint) from error
    if options.json:
        output.write_json({"same": found is None, "divergence": found and {
            "seq": found.seq, "event": found.event, "recorded": found.expected, "now": found.got
        }})
    elif found is not None:
        _show(found, str(recording), command(*same_agent(options, ("system", "skills"))).removeprefix("kernai "))
    else:
        output.write("the same" if whole else "the same, as far as the recording goes")
    return OK if found is None else NO


def _model(name: str | None) -> Model | None:
    if name is None:
        return None
    from kernai_providers.families import capabilities_of

    plain = name.partition("/")[2] or name
    return Model(plain, capabilities_of(plain))


def _show(found: ReplayDivergenceError, recording: str, agent: str) -> None:
    output.write(f"--- {recording}", "bold")
    output.write(f"+++ {agent}, now", "bold")
    output.write(f"@@ event {found.seq}: {found.event} @@", "cyan")
    for sign, text, style in (("-", found.expected, "red"), ("+", found.got, "green")):
        for line in text.splitlines():
            output.write(f"{sign}{line}", style)
