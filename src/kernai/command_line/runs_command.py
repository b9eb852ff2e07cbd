"""`kernai runs`: what a store keeps."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from kernai.command_line import output
from kernai.command_line.exit_codes import OK
from kernai.command_line.run_store import RunStore
from kernai.terminal_text import one_line

DESCRIPTION = """\
List the runs that a store keeps, the last changed first. The status of a run that has ended is its stop reason;
`waiting` says that a person is to decide on a call, and `running` that the run goes on, or that its process died."""
EXAMPLES = """\
kernai runs runs.db
kernai runs runs.db --json | python -m json.tool"""

_STYLES = {"running": "cyan", "waiting": "yellow", "final": None}
_HEADS = ("RUN", "AGENT", "STATUS", "LAST CHANGE")


def add_arguments(parser: ArgumentParser) -> None:
    """See `Command`."""
    parser.add_argument("store", metavar="STORE", help="a file that --store has made")
    parser.add_argument("--json", action="store_true", help="the list as JSON on stdout")


def run(options: Namespace) -> int:
    """See `Command`."""
    with RunStore(options.store) as store:
        runs = store.store.runs()
    if options.json:
        output.write_json([
            {"run_id": one.run_id, "agent": one.agent, "status": one.status, "updated_at": one.updated_at}
            for one in runs
        ])
        return OK
    rows = [(one.run_id, one_line(one.agent or "-", 40), one.status, one.updated_at) for one in runs]
    if not rows:
        output.note(f"{options.store} keeps no run")
        return OK
    widths = [max(map(len, column)) for column in zip(_HEADS, *rows, strict=True)]
    for row in (_HEADS, *rows):
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        output.write(line.rstrip(), "dim" if row is _HEADS else _STYLES.get(row[2], "red"))
    return OK
