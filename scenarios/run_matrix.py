#!/usr/bin/env python3
"""Run every scenario against every (provider, model) pair, each in a process of its own, and compare such runs.

Examples:
    python scenarios/run_matrix.py --offline                        every scenario, with the bundled tapes
    python scenarios/run_matrix.py --pair openai/gpt-6-luna --pair ollama/llama3.1 --jobs 4
    python scenarios/run_matrix.py 'cyclic*' inventory_lookup --pair anthropic
    python scenarios/run_matrix.py --list
    python scenarios/run_matrix.py --compare before.json now.json

Without --pair and --offline, the pair is the scenario's own choice.
Exit status: 0 if every cell passed, 1 if one failed, 2 for wrong usage, 130 after Ctrl-C; with --compare 1 if
something fails that passed before.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import NoReturn
from urllib.parse import quote

from harness import UsageError

from kernai._util.redaction import printable
from kernai.command_line.program import number
from kit.matrix_cell import DEFAULT, TAPE, Cell, Children, Pair, run_cell
from kit.matrix_comparison import NEWLY_FAILING, compare, show_comparison
from kit.matrix_report import Styled, Table, View, cell_line, show_matrix, view_for
from kit.matrix_result import CellResult, Matrix
from kit.options import Parser
from kit.scenario_files import ScenarioFile, find_scenarios, select_scenarios
from kit.standard_output import FAILED, INTERRUPTED, PASSED, exit_status

HERE = Path(__file__).resolve().parent
MOST_JOBS = 4  # by default: vendors limit the number of concurrent requests
TIMEOUT_SECONDS = 300.0


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    return exit_status("run_matrix", lambda: _main(_command_line(arguments)))


def _main(options: argparse.Namespace) -> int:
    view = view_for(plain=options.plain)
    if options.compare is not None:
        return _compare(options.compare, view)
    scenarios = select_scenarios(find_scenarios(options.folder), options.scenarios)
    if options.list:
        _list(scenarios, view)
        return PASSED
    return _run(options, scenarios, view)


def _compare(paths: Sequence[Path], view: View) -> int:
    comparison = compare(*map(Matrix.load, paths))
    show_comparison(comparison, view)
    return FAILED if comparison.of(NEWLY_FAILING) else PASSED


def _list(scenarios: Sequence[ScenarioFile], view: View) -> None:
    table = Table(("scenario", "tape", "description"))
    for one in scenarios:
        has_tape = Styled("yes", "good") if one.tape.is_file() else Styled("no", "bad")
        table.rows.append([Styled(printable(one.name)), has_tape, Styled(printable(one.description))])
    view.table(table)


# ------------------------------------------------------------------------------------------------------ the run


def _run(options: argparse.Namespace, scenarios: Sequence[ScenarioFile], view: View) -> int:
    now = datetime.now(UTC)
    stamp = f"matrix-{now:%Y%m%dT%H%M%S}-{os.getpid()}"
    logs = options.logs or options.folder / "logs"
    output = options.output or logs / f"{stamp}.json"
    pairs = _pairs(options)
    _make_writable(logs / stamp, output)
    # quoted: a model's name may contain any character, and two models must not share a folder
    places = [(one, pair, f"{stamp}/{one.name}-{quote(pair.label, safe='')}") for one in scenarios for pair in pairs]
    cells = [Cell(one, pair, logs, place) for one, pair, place in places]
    view.line(Styled(f"{len(scenarios)} x {len(pairs)} cells, {options.jobs} at a time"))
    _interrupt_once()
    began = time.perf_counter()
    results = _results(cells, options, view)
    done = {result.key for result in results}
    keys = [(cell.scenario.name, cell.pair.label) for cell in cells]
    matrix = Matrix(
        started_at=f"{now:%Y-%m-%dT%H:%M:%SZ}",
        seconds=time.perf_counter() - began,
        scenarios=tuple(one.name for one in scenarios),
        pairs=tuple(pair.label for pair in pairs),
        cells=tuple(sorted(results, key=lambda result: keys.index(result.key))),
        not_run=tuple(key for key in keys if key not in done),
    )
    try:
        matrix.write(output)
    finally:
        show_matrix(matrix, view)
    view.line()
    view.line(Styled(f"matrix: {printable(str(output))}"))
    return INTERRUPTED if matrix.not_run else FAILED if matrix.failed else PASSED


def _results(cells: Sequence[Cell], options: argparse.Namespace, view: View) -> list[CellResult]:
    """The outcome of each cell, running as many at once as asked for; after an interrupt, of the cells that ended."""
    children = Children()
    running: list[Future[CellResult | None]] = []
    with ThreadPoolExecutor(options.jobs) as pool:
        try:
            running += (pool.submit(run_cell, cell, options.timeout, children) for cell in cells)
            _follow(running, view)
        except (KeyboardInterrupt, OSError):  # or the reader of the output has closed it, as `head` does
            with suppress(OSError):
                view.line(Styled("interrupted: stopping what runs, and writing what is done", "bad"))
        finally:
            children.stop()  # also after an error here: no child must keep running
    return [result for result in (one.result() for one in running) if result is not None]


def _follow(running: Sequence[Future[CellResult | None]], view: View) -> None:
    left = set(running)
    with view.progress(len(running)) as progress:
        while left:  # in steps, since a signal that comes just before an endless wait does not end it
            ended, left = wait(left, 1.0, FIRST_COMPLETED)
            for result in filter(None, (future.result() for future in ended)):
                progress.done(*cell_line(result), is_bad=not result.passed)


def _interrupt_once() -> None:
    """Treat the first signal to end as Ctrl-C, and ignore all later ones: the work after it is short, and must be done.

    The children have sessions of their own, so a signal to this process does not reach them.
    """
    names = ("SIGINT", "SIGTERM", "SIGHUP")
    numbers = [getattr(signal, name) for name in names if hasattr(signal, name)]

    def interrupt(*_: object) -> NoReturn:
        for one in numbers:
            signal.signal(one, signal.SIG_IGN)
        raise KeyboardInterrupt

    for one in numbers:
        if signal.getsignal(one) != signal.SIG_IGN:  # as after `nohup`
            signal.signal(one, interrupt)


def _make_writable(folder: Path, output: Path) -> None:
    """Create the files that are written to, before anything is paid for."""
    if output.is_dir():
        raise UsageError(f"--output takes a file, and {output} is a folder")
    try:
        if output.exists() and output.stat().st_size:
            Matrix.load(output)  # only a matrix may be replaced
    except (OSError, UsageError) as error:
        raise UsageError(f"--output: {output} exists and is not a matrix, so it is left unchanged") from error
    try:
        folder.mkdir(parents=True, exist_ok=True)
        output.parent.mkdir(parents=True, exist_ok=True)
        output.touch()
    except OSError as error:
        raise UsageError(f"cannot write to {error.filename}: {error.strerror}") from error


# --------------------------------------------------------------------------------------------- the command line


def _pairs(options: argparse.Namespace) -> list[Pair]:
    """The pairs that were asked for, without duplicates."""
    asked = [_pair(text) for text in options.pair] + ([TAPE] if options.offline else [])
    return list(dict.fromkeys(asked or [DEFAULT]))


def _pair(text: str) -> Pair:
    provider, slash, model = text.partition("/")
    if not provider.strip() or (slash and not model.strip()):
        raise UsageError(f"--pair takes PROVIDER/MODEL or PROVIDER, not {text!r}")
    named = Pair(text, ("--", model, provider))  # without a model, the provider's default
    return next((pair for pair in (TAPE, DEFAULT) if pair.label == text), named)


def _command_line(arguments: Sequence[str] | None) -> argparse.Namespace:
    about, _, epilog = __doc__.partition("\n\n")
    parser = Parser("python scenarios/run_matrix.py", about, epilog)
    add = parser.add_argument
    add("scenarios", nargs="*", metavar="SCENARIO", help="names or globs of scenarios; all by default")
    add("--pair", action="append", default=[], metavar="PROVIDER/MODEL",
        help="a model to run; may be repeated; PROVIDER alone is its default model")
    add("--offline", action="store_true", help="the bundled tapes as a pair, called tape")
    add("--jobs", type=number(int, 1), default=min(os.cpu_count() or 1, MOST_JOBS), metavar="N",
        help="processes at once; %(default)s by default")
    add("--timeout", type=number(float, 0.1), default=TIMEOUT_SECONDS, metavar="SECONDS",
        help="for one cell, which then fails; %(default)g by default")
    add("--output", type=Path, metavar="FILE", help="the matrix as JSON; scenarios/logs/matrix-STAMP.json by default")
    add("--logs", type=Path, metavar="DIR", help="where logs and output of the cells go; scenarios/logs by default")
    add("--folder", type=Path, default=HERE, metavar="DIR", help="the folder of the scenarios; this one by default")
    add("--list", action="store_true", help="list the scenarios and run nothing")
    add("--compare", nargs=2, type=Path, metavar=("BEFORE", "NOW"), help="compare two matrices and run nothing")
    add("--plain", action="store_true", help="no colours and no progress bar, even on a terminal")
    options = parser.parse_args(arguments)
    _check(options)
    return options


def _check(options: argparse.Namespace) -> None:
    """Reject options about runs for commands that run nothing."""
    idle = "--compare" if options.compare else "--list" if options.list else None
    about_a_run = ["pair", "offline", "output", "logs"] + (["scenarios", "list"] if options.compare else [])
    given = [name for name in about_a_run if getattr(options, name)]
    if idle and given:
        first = options.scenarios[0] if given[0] == "scenarios" else f"--{given[0]}"
        raise UsageError(f"{idle} runs nothing: leave {first} out")


if __name__ == "__main__":
    sys.exit(main())
