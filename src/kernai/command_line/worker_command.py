"""`kernai worker`: works on runs that were submitted to a PostgreSQL store."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from kernai.command_line import output
from kernai.command_line.agents import agents_in
from kernai.command_line.errors import OK, CommandError
from kernai.command_line.options import number
from kernai.command_line.runs_command import is_address, open_postgres

DESCRIPTION = """\
Work on the runs that programs submit with `kernai.postgres.Workers`, until SIGTERM or Ctrl-C. Start as many workers as
you like, on as many machines. The agents are those at the top level of the file, under their variables' names."""
EXAMPLES = """\
kernai worker agents.py --store postgresql:///app
kernai worker agents.py --store postgresql:///app --concurrency 10 --queue slow"""


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("agents", metavar="FILE.py|MODULE", help="has the agents; its code runs")
    parser.add_argument("--store", metavar="STORE", required=True, help="postgresql://...")
    parser.add_argument("--concurrency", type=number(int, 1), default=50, metavar="N", help="runs at once (50)")
    parser.add_argument("--queue", default="kernai", metavar="NAME", help="take the runs of this queue (kernai)")
    parser.add_argument(
        "--grace", type=number(float, 0.1), default=30.0, metavar="SECONDS",
        help="how long runs may take to reach a point where another worker can continue (30)",
    )
    parser.add_argument(
        "--accept", action="append", default=[], metavar="KEY",
        help="continue runs whose agent protects less than it did; why a run is blocked names the key",
    )


def run(options: Namespace) -> int:
    if not is_address(options.store):
        raise CommandError("workers need a PostgreSQL store", "name one as --store postgresql://...")
    found = agents_in(options.agents)
    with open_postgres(options.store) as store:
        from kernai.postgres import Workers  # an extra

        workers = Workers(
            store, found, concurrency=options.concurrency, queue=options.queue, grace=options.grace,
            accept=options.accept,
        )
        output.note(f"working on runs of {', '.join(found)} in {store.name}; Ctrl-C ends")
        workers.run()
    return OK
