"""`kernai store migrate`: makes the tables of a PostgreSQL store, or brings them up to date."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from kernai.command_line import output
from kernai.command_line.errors import OK, CommandError
from kernai.command_line.runs_command import is_address, open_postgres

DESCRIPTION = """\
Create or upgrade the tables of a PostgreSQL store, in the schema `kernai`, and those of Procrastinate. No other command
changes the tables. It is safe to run this more than once."""
EXAMPLES = "kernai store migrate postgresql://ann@db.example.org/app"


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("action", choices=["migrate"], help="what to do")
    parser.add_argument("store", metavar="STORE", help="postgresql://...")


def run(options: Namespace) -> int:
    if not is_address(options.store):
        raise CommandError("only a PostgreSQL store has tables to migrate", "name one as postgresql://...")
    with open_postgres(options.store, create=True) as store:
        output.write(f"the tables in {store.name} are up to date")
    return OK
