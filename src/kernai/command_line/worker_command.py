"""`kernai worker`: works on runs that were submitted to a PostgreSQL store."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from kernai.command_line import output
from kernai.command_line.agents import agents_in
from kernai.command_line.errors import OK, CommandError
from kernai.command_line.options import number
from kernai.command_line.runs_command import is_address, open_postgres

DESCRIPTION = """\
Process the runs that programs submit with `kernai.postgres.Workers`, until SIGTERM or Ctrl-C. You can start any number
of workers on any number of machines. The agents must be variables at the top level of the file; the variable's name is
the agent's name."""
EXAMPLES = """\
kernai worker agents.py --store postgresql:///app
kernai worker agents.py --store postgresql:///app --concurrency 10 --queue slow"""


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("agents", metavar="FILE.py|MODULE", help="where the agents are defined; the code is executed")
    parser.add_argument("--store", metavar="STORE", required=True, help="postgresql://...")
    parser.add_argument(
        "--concurrency", type=number(int, 1), default=50, metavar="N",
        help="how many runs to process at once (default: 50)",
    )
    parser.add_argument(
        "--queue", default="kernai", metavar="NAME", help="the queue to take runs from (default: kernai)"
    )
    parser.add_argument(
        "--grace", type=number(float, 0.1), default=30.0, metavar="SECONDS",
        help="on exit, how long runs may take to reach a point where another worker can continue (default: 30)",
    )
    parser.add_argument(
        "--accept", action="append", default=[], metavar="KEY",
        help="continue runs although their agent has lost this protection; the reason a run is blocked gives the KEY",
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
