"""`kernai replay`: whether an agent decides as it did when a run was recorded. Calls nothing."""

from __future__ import annotations

import shlex
from argparse import ArgumentParser, Namespace
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from kernai.agents.agent import Agent
from kernai.command_line import output
from kernai.command_line.agents import FORMS, NAME_ONE, agent_of, agent_words
from kernai.command_line.errors import NO, OK, USAGE, CommandError
from kernai.command_line.options import add_made_agent_arguments
from kernai.command_line.recording import recorded_events
from kernai.command_line.runs_command import RunStore
from kernai.errors import KernaiError, ReplayDivergenceError, error_text
from kernai.runs.running import replay
from kernai.values.model import Model

DESCRIPTION = f"""\
Run an agent on what is recorded, and compare everything it decides: which calls it makes, what it tells the model, how
it ends. No model, no skill and no network is asked, so any recorded run is a test. AGENT is {FORMS}.

The recording is a file, or with --store a run of that store. Exit status: 0 the same, 1 different, 2 no recording."""
EXAMPLES = """\
kernai replay agent.py run.jsonl
kernai replay clerk.py --store runs.db refund-42
kernai replay agent.py talk.jsonl --run-id 4f0c2a91b7de"""


def add_arguments(parser: ArgumentParser) -> None:
    """See `Command`."""
    parser.add_argument("agent", metavar="AGENT", nargs="?", help=f"{FORMS}; its code is run")
    parser.add_argument(
        "recording", metavar="RECORDING|RUN", help="a recording: .json or .jsonl; with --store a run's id"
    )
    add_made_agent_arguments(parser)
    parser.add_argument("--store", metavar="FILE", help="the store that keeps the run")
    parser.add_argument("--run-id", metavar="ID", help="which run, where the recording holds several")
    parser.add_argument(
        "--model", metavar="VENDOR/NAME", help="the model that the run was recorded with, where it was not the agent's"
    )
    parser.add_argument("--json", action="store_true", help="what differs as JSON on stdout")


def run(options: Namespace) -> int:
    """See `Command`."""
    if not agent_words(options):
        raise CommandError(f"there is no agent before {options.recording!r}", NAME_ONE)
    with _store(options) as store:
        source, run_id = _source(options, store)
        with agent_of(options, "run") as agent:
            found, whole = _replayed(agent, run_id, {"model": _model(options.model), **source})
    if options.json:
        output.write_json(_data(found))
    elif found is not None:
        _show(options, found)
    else:
        output.write("the same" if whole else "the same, as far as the recording goes")
    return OK if found is None else NO


def _replayed(agent: Agent, run_id: str | None, given: dict[str, Any]) -> tuple[ReplayDivergenceError | None, bool]:
    """The first divergence, if there is one; and whether the recording holds the run's end."""
    try:
        with output.stdout_is_stderr():
            return None, replay(agent, run_id, **given) is not None
    except ReplayDivergenceError as divergence:
        return divergence, False
    except KernaiError as error:
        told = error_text(error)
        raise CommandError(told, "--run-id says which run of a recording with several", USAGE) from error


def _store(options: Namespace) -> AbstractContextManager[RunStore | None]:
    if options.store is None:
        return nullcontext()
    if options.run_id is not None:
        raise CommandError("--run-id is for a recording: with --store the second argument is it", "leave it out")
    return RunStore(options.store)


def _source(options: Namespace, store: RunStore | None) -> tuple[dict[str, Any], str | None]:
    if store is None:
        return {"recording": recorded_events(options.recording)}, options.run_id
    store.entries(options.recording)  # says what is wrong with the id
    return {"store": store.store}, options.recording


def _model(name: str | None) -> Model | None:
    if name is None:
        return None
    from kernai_providers.families import capabilities_of

    plain = name.partition("/")[2] or name
    return Model(plain, capabilities_of(plain))


def _data(found: ReplayDivergenceError | None) -> dict[str, Any]:
    if found is None:
        return {"same": True, "divergence": None}
    told = {"seq": found.seq, "event": found.event, "recorded": found.expected, "now": found.got}
    return {"same": False, "divergence": told}


def _show(options: Namespace, found: ReplayDivergenceError) -> None:
    output.write(f"--- {options.recording}", "bold")
    output.write(f"+++ {shlex.join(agent_words(options))}, now", "bold")
    output.write(f"@@ event {found.seq}: {found.event} @@", "cyan")
    for line in found.expected.splitlines():
        output.write(f"-{line}", "red")
    for line in found.got.splitlines():
        output.write(f"+{line}", "green")
