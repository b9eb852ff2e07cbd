"""`kernai diff`: where two recorded runs part."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any

from kernai.command_line import exit_codes, output
from kernai.command_line.recorded_events import FORMS, recorded_events
from kernai.command_line.recorded_scopes import scopes_of, without_dropped
from kernai.command_line.recording_diff import Compared, Difference, compare, difference_lines, entry_lines, title
from kernai.terminal_text import one_line

DESCRIPTION = """\
Show where two recorded runs part. Events are compared scope by scope (the run, each sub-run), in order; times, run ids,
durations and the ids of vendors' requests do not count, and neither does what a resume left out. Of each scope the
first difference is shown, behind the last event that is the same. Exit status: 0 the same, 1 different, 2 a file that
is no recording."""
EXAMPLES = """\
kernai diff before.jsonl after.jsonl
kernai diff before.json after.json --all
kernai diff runs.db:refund-42 runs.db:refund-42b
kernai diff a.jsonl b.jsonl --json | python -m json.tool"""

_STYLES = {"-": "red", "+": "green"}


def add_arguments(parser: ArgumentParser) -> None:
    """See `Command`."""
    parser.add_argument("a", metavar="A", help=FORMS)
    parser.add_argument("b", metavar="B", help="another one")
    parser.add_argument("--all", action="store_true", help="every difference, not the first of each scope")
    parser.add_argument("--json", action="store_true", help="the differences as JSON on stdout")


def run(options: Namespace) -> int:
    """See `Command`."""
    compared = compare(*(scopes_of(_counting(name)) for name in (options.a, options.b)))
    same = not any(one.differences for one in compared)
    if options.json:
        output.write_json(_data(options, compared, same=same))
    elif same:
        output.write(f"the same: {_events(sum(one.same for one in compared))}")
    else:
        _show(options, compared)
    return exit_codes.OK if same else exit_codes.NO


def _counting(name: str) -> list[dict[str, Any]]:
    """The events that count; a note tells of those that do not."""
    events = recorded_events(name)
    counting = without_dropped(events)
    if len(counting) < len(events):
        aside = _events(len(events) - len(counting))
        output.note(f"note: {name} was resumed; {aside} that tell of this are not compared")
    return counting


def _data(options: Namespace, compared: list[Compared], *, same: bool) -> dict[str, Any]:
    return {
        "same": same,
        "a": options.a,
        "b": options.b,
        "scopes": [
            {
                "run": one.place.run,
                "scope": one.place.scope,
                "same": one.same,
                "only_a": one.ours - one.same,
                "only_b": one.theirs - one.same,
                "differences": [each.to_dict() for each in _chosen(one, everything=options.all)],
            }
            for one in compared
        ],
    }


def _chosen(one: Compared, *, everything: bool) -> tuple[Difference, ...]:
    return one.differences if everything else one.differences[:1]


def _show(options: Namespace, compared: list[Compared]) -> None:
    several = any(one.place.run > 1 for one in compared)
    output.write(f"--- {options.a}", "bold")
    output.write(f"+++ {options.b}", "bold")
    for one in compared:
        for difference in _chosen(one, everything=options.all):
            _show_difference(one, difference, several=several)
    output.write()
    for one in compared:
        parted = bool(one.differences)
        told = f"{_events(one.same)} the same"
        if parted:
            told += f", {one.ours - one.same} only in A, {one.theirs - one.same} only in B"
        output.write(f"{one_line(one.place.name(several=several), 60):<20} {told}", "yellow" if parted else "dim")


def _show_difference(one: Compared, difference: Difference, *, several: bool) -> None:
    shown = difference.ours or difference.theirs
    assert shown is not None
    output.write()
    output.write(f"@@ {one_line(one.place.name(several=several), 60)}, {one_line(title(shown), 80)} @@", "cyan")
    if not one.ours or not one.theirs:
        output.write(f"  (all of it only in {'A' if one.ours else 'B'})", "dim")
    elif difference.after is None:
        output.write("  (nothing before it is the same)", "dim")
    else:
        head, *rest = entry_lines(difference.after)
        output.write(f"  after {one_line(' '.join([head, *rest]), output.columns() - 8)}", "dim")
    for line in difference_lines(difference):
        output.write(line, _STYLES.get(line[0]))


def _events(count: int) -> str:
    return f"{count:,} event{'' if count == 1 else 's'}"
