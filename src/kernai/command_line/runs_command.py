"""Commands on the runs of a store: `kernai runs`, `approve`, `cancel`, `worker` and `store migrate`."""

from __future__ import annotations

import logging
import re
from argparse import ArgumentTypeError, Namespace
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from typing import Any

from kernai import Decision, KernaiError
from kernai._util.redaction import one_line
from kernai.command_line import output, stores
from kernai.command_line.agents import agents_in
from kernai.command_line.output import OK, CommandError, failing
from kernai.command_line.program import Command, argument, number, valid_text
from kernai.durable.lease import end_run
from kernai.durable.store import RUNNING, STATUSES, UNFINISHED, RunFilter
from kernai.events import RunStartRow, row_of
from kernai.values.result import count, dollars

_STYLES = {"running": "cyan", "queued": "cyan", "waiting": "yellow", "blocked": "yellow", "final": None}
_HEADS = ("RUN", "AGENT", "STATUS", "STEPS", "TOKENS", "COST", "LAST CHANGE", "INPUT")
_NUMBERS = (("steps", "{:,}".format), ("tokens", "{:,}".format), ("cost", dollars))
_LEAST_INPUT, _LONGEST_WHY = 20, 400  # characters


def _age(text: str) -> datetime:
    """An argparse type: the time that was this long ago."""
    found = re.fullmatch(r"(\d{1,5})([dhm])", text)
    if found is None:
        raise ArgumentTypeError(f"must be a number of at most 5 digits with d, h or m, such as 90d, got {text!r}")
    units = {"d": "days", "h": "hours", "m": "minutes"}
    return datetime.now(UTC) - timedelta(**{units[found[2]]: int(found[1])})


def _runs(options: Namespace) -> int:
    if options.delete and (options.agent is not None or options.limit is not None):
        raise CommandError("--delete takes --older-than and --status", "leave --agent and --limit out")
    if options.delete and options.older_than is None and options.status is None:
        raise CommandError("--delete would delete every run", "say which: --older-than AGE, --status STATUS")
    with stores.StoreAt(options.store) as store:
        if options.delete:
            deleted = store.store.delete(updated_before=options.older_than, status=options.status)
            if options.json:
                output.write_json({"deleted": deleted})
            else:
                output.write(f"{count(deleted, 'run')} deleted")
            return OK
        found = store.store.runs(status=options.status, agent=options.agent, updated_before=options.older_than)
        infos = list(found if options.limit is None else found.page(options.limit))
        runs = [
            {
                "run_id": one.run_id, "agent": one.agent, "status": one.status, "updated_at": one.updated_at,
                "tags": dict(one.tags), "steps": one.steps, "tokens": one.usage.total_tokens, "cost": one.usage.cost,
                "input": _input(store, one.run_id), "why": one.why, "pending": [call.to_dict() for call in one.pending],
            }
            for one in infos
        ]
    if options.json:
        output.write_json(runs)
    elif not runs:
        output.note(f"{store.path} has no {'such ' if found.wanted != RunFilter() else ''}runs")
    else:
        _show(runs)
        for one in infos:
            if one.why and all(call.reason != one.why for call in one.pending):
                output.note(f"{one.run_id} is {one.status}: {one_line(one.why, _LONGEST_WHY)}")
            waiting = [call for call in one.pending if call.call_id not in one.decisions]
            if one.pending and one.status != RUNNING:
                again = f"`{stores.command('resume', 'AGENT', store.path, one.run_id)}`"
                decided = f"has its decisions; {again} continues it, or a worker if it was submitted"
                what = f"waits for a decision: {stores.call_lines(waiting)}" if waiting else decided
                output.note(f"{one.run_id} {what}")
    return OK


def _input(store: stores.StoreAt, run_id: str) -> Any:
    """The run's input; None if its first entry is damaged."""
    try:
        (first,) = map(row_of, store.store.load(run_id, limit=1))
    except (KernaiError, ValueError):  # a damaged run must not prevent the listing of the others
        return None
    return first.input if isinstance(first, RunStartRow) else None


def _text(data: str | list[Any]) -> str:
    """The texts of an input, and the kinds of its media. In a damaged entry, a part may be any JSON."""
    said = [one if isinstance(one, dict) else {"outside": one} for one in ([data] if isinstance(data, str) else data)]
    return " ".join(str(one.get("outside", f"[{one.get('kind')}]")) for one in said)


def _show(runs: list[dict[str, Any]]) -> None:
    rows = [
        (
            one["run_id"], one_line(one["agent"] or "-", 40), one["status"],
            *("-" if one[name] is None else form(one[name]) for name, form in _NUMBERS), one["updated_at"],
        )
        for one in runs
    ]
    widths = [max(map(len, column)) for column in zip(_HEADS[:-1], *rows, strict=True)]
    left = max(output.columns() - sum(widths) - 2 * len(widths), _LEAST_INPUT)
    inputs = ["-" if one["input"] is None else one_line(_text(one["input"]), left) for one in runs]
    for line in (_HEADS, *((*row, given) for row, given in zip(rows, inputs, strict=True))):
        cells = [f"{cell:{align}{width}}" for cell, align, width in zip(line, "<<<>>><", widths, strict=False)]
        output.write("  ".join([*cells, line[-1]]), "dim" if line is _HEADS else _STYLES.get(line[2], "red"))


def _approve(options: Namespace) -> int:
    with stores.StoreAt(options.store) as store:
        info = store.existing(options.run)
        waiting = {one.call_id: one for one in info.pending}
        call, said = stores.decided(options.call, options.run, waiting)
        if options.no is not None and call != options.call:
            raise CommandError("an answer and --no exclude each other", "leave one of the two out")
        said = said if options.no is None else options.no or False
        by = stores.login_name() if options.by is None else options.by
        at: Any = store.store
        in_one = at.transaction() if output.is_address(options.store) else nullcontext()  # so that there is one job
        with failing("", "give a reason with --no, or just the call's id to approve", ValueError), in_one as postgres:
            at.decide(options.run, call, Decision(said, by=by))
            # a worker of a PostgreSQL store continues the run if it was submitted, and no limit has ended it
            is_continued = postgres is not None and info.status in UNFINISHED and at.enqueue(options.run)
        verdict = "approved" if options.no is None else "refused"
        output.write(f"{verdict}: {call} {stores.call_line(waiting[call])}")
        if (earlier := info.decisions.get(call)) is not None:
            value = one_line(earlier["decision"], _LONGEST_WHY)
            output.note(f"this replaces the decision of {earlier['by'] or 'somebody'}: {value}")
        if not is_continued:
            output.note(f"to continue the run: {stores.command('resume', 'AGENT', store.path, options.run)}")
    return OK


def _cancel(options: Namespace) -> int:
    with stores.StoreAt(options.store) as store:
        store.existing(options.run)
        is_closed = end_run(store.store, options.run, options.reason)
    output.write("closed" if is_closed else "the process that is working on it was asked to stop")
    return OK


def _work(options: Namespace) -> int:
    found = agents_in(options.agents)
    with stores.open_postgres(options.store) as store:
        from kernai.postgres import Workers  # needs the extra kernai[postgres]

        with failing("--queue", "name a queue, or leave it out", ValueError):
            chosen = {name: getattr(options, name) for name in ("concurrency", "queue", "grace", "accept")}
            workers = Workers(store, found, **chosen)
        output.note(f"working on runs of {', '.join(found)} in {store.name}; Ctrl-C ends")
        logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")  # unless the agents' file did
        workers.run()
    return OK


def _migrate(options: Namespace) -> int:
    with stores.open_postgres(options.store, create=True) as store:
        output.write(f"the tables in {store.name} are up to date")
    return OK


COMMANDS = {
    "runs": Command(_runs, (
        stores.STORE,
        argument("--status STATUS", "only runs with this status, such as waiting", choices=STATUSES),
        argument("--agent NAME", "only runs of this agent"),
        argument("--older-than AGE", "only runs unchanged for this long: 90d, 12h, 5m", _age),
        argument("--limit N", "only the first N", number(int, 1)),
        argument("--delete", "delete these runs; needs --older-than or --status"),
        argument("--json", "the list, or how many were deleted, as JSON on stdout"),
    ), """\
List the runs in a store, most recently changed first. The status of a run that has ended is its stop reason; `running`
means that a process is working on it, `abandoned` that its process died, `waiting` that a person must decide on a call,
`blocked` that a person must choose how to continue it, and `queued` that no worker has started it yet. `kernai view
STORE RUN` shows one of them.

With --delete, these runs are deleted instead of listed, except those that a process is working on.""", """\
kernai runs runs.db
kernai runs runs.db --json | python -m json.tool
kernai runs postgresql:///app --status waiting --limit 50
kernai runs runs.db --delete --older-than 90d --status final"""),
    "approve": Command(_approve, (
        stores.STORE, stores.RUN,
        argument("CALL[=ANSWER]", "the call's id, and the answer to its question", valid_text, name="call"),
        argument("--no REASON", "refuse the call, and give the model this reason", valid_text), stores.BY,
    ), """\
Approve or refuse a call that is waiting for a decision, or one that was running when its worker died. The decision is
saved in the store. A worker acts on it at once; without one, run `kernai resume`. To decide and continue in one step,
use `kernai resume --approve`, or `--in-flight` for calls that were running when `kernai run` died.""", """\
kernai approve postgresql:///app refund-42 1.0
kernai approve runs.db refund-42 1.0 --no "order 42 was never paid" --by ann"""),
    "cancel": Command(_cancel, (
        stores.STORE, stores.RUN,
        argument("--reason TEXT", "reason for the cancellation, for the recording", valid_text, default=""),
    ), """\
Cancel a run. A process that is working on it stops within seconds and records it as cancelled. A run that is waiting,
or whose process died, is closed at once. The recorded events are kept.""", """\
kernai cancel postgresql:///app refund-42
kernai cancel runs.db refund-42 --reason "the customer has left\""""),
    "worker": Command(_work, (
        argument("FILE.py|MODULE", "where the agents are defined; the code is executed", name="agents"),
        argument("--store STORE", "postgresql://...", required=True),
        argument("--concurrency N", "how many runs to process at once (default: 50)", number(int, 1), default=50),
        argument("--queue NAME", "the queue to take runs from (default: kernai)", valid_text, default="kernai"),
        argument("--grace SECONDS",
                 "on exit, how long runs may take to reach a point where another worker can continue (default: 30)",
                 number(float, 0.1), default=30.0),
        argument("--accept KEY...", "continue runs although their agent has lost this protection; the reason a run is "
                 "blocked gives the KEY"),
    ), """\
Process the runs that programs submit with `kernai.postgres.Workers`, until SIGTERM or Ctrl-C. You can start any number
of workers on any number of machines. The agents must be variables at the top level of the file; the variable's name is
the agent's name.""", """\
kernai worker agents.py --store postgresql:///app
kernai worker agents.py --store postgresql:///app --concurrency 10 --queue slow"""),
    "store": Command(_migrate, (
        argument("action", "what to do", choices=["migrate"]), argument("STORE", "postgresql://..."),
    ), """\
Create or upgrade the tables of a PostgreSQL store, in the schema `kernai`, and those of Procrastinate. No other command
changes the tables. It is safe to run this more than once.""", "kernai store migrate postgresql://ann@db.example.org/app"),
}
