"""`kernai cancel`: ends a run, also one that another process works on."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from kernai.command_line import output
from kernai.command_line.errors import OK
from kernai.command_line.runs_command import RunStore
from kernai.durable.lease import end_run

DESCRIPTION = """\
Cancel a run. A process that is working on it stops within seconds and records it as cancelled. A run that is waiting,
or whose process died, is closed at once. The recorded events are kept."""
EXAMPLES = """\
kernai cancel postgresql:///app refund-42
kernai cancel runs.db refund-42 --reason "the customer has left\""""


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("store", metavar="STORE", help="a file created by --store, or postgresql://...")
    parser.add_argument("run", metavar="RUN", help="the run's id; `kernai runs STORE` lists them")
    parser.add_argument("--reason", metavar="TEXT", default="", help="reason for the cancellation, for the recording")


def run(options: Namespace) -> int:
    with RunStore(options.store) as store:
        store.entries(options.run)  # says if there is no such run
        is_closed = end_run(store.store, options.run, options.reason)
    output.write("closed" if is_closed else "the process that is working on it was asked to stop")
    return OK
