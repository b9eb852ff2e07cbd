"""`kernai approve`: a decision on a call that waits, kept for whoever continues the run."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from kernai.command_line import output
from kernai.command_line.errors import OK, CommandError
from kernai.command_line.runs_command import RunStore, call_line, command, login_name, not_waiting
from kernai.durable.approvals import Decision

DESCRIPTION = """\
Approve or refuse a call that is waiting for a decision, or one that was running when its process died. The decision is
saved in the store. A worker acts on it at once; without one, run `kernai resume`."""
EXAMPLES = """\
kernai approve postgresql:///app refund-42 1.0
kernai approve runs.db refund-42 1.0 --no "order 42 was never paid" --by ann"""


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("store", metavar="STORE", help="a file created by --store, or postgresql://...")
    parser.add_argument("run", metavar="RUN", help="the run's id; `kernai runs STORE` lists them")
    parser.add_argument("call", metavar="CALL", help="the call's id")
    parser.add_argument("--no", metavar="REASON", help="refuse the call, and give the model this reason")
    parser.add_argument(
        "--by", metavar="NAME", help="who made the decision, for the recording (default: your login name)"
    )


def run(options: Namespace) -> int:
    with RunStore(options.store) as store:
        info = store.info(options.run)
        waiting = {} if info is None else {one.call_id: one for one in info.pending}
        if options.call not in waiting:
            store.entries(options.run)  # says if there is no such run
            raise not_waiting(options.call, options.run, waiting)
        by = login_name() if options.by is None else options.by
        try:
            store.store.decide(options.run, options.call, Decision(True if options.no is None else options.no, by=by))
        except ValueError as error:
            raise CommandError(f"--no: {error}", "say why, or leave it out to approve") from error
        verdict = "approved" if options.no is None else "refused"
        output.write(f"{verdict}: {options.call} {call_line(waiting[options.call])}")
        if not store.has_job(options.run):
            output.note(f"to continue the run: {command('resume', 'AGENT', store.path, options.run)}")
    return OK
