"""The bar of ``map_runs(on_progress=True)``, on stderr: drawn by tqdm or rich if installed, else a line of text."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kernai.runs.mapping import Progress

_WHAT = "runs"
Show = Callable[["Progress[Any]"], None]


@contextmanager
def progress_bar(total: int) -> Iterator[Show]:
    """What is to be called after each run."""
    draw = next((draw for name, draw in _BARS.items() if find_spec(name) is not None), _as_text)
    with draw(total) as show:
        yield show


@contextmanager
def _by_tqdm(total: int) -> Iterator[Show]:
    from tqdm.auto import tqdm

    with tqdm(total=total, desc=_WHAT, file=sys.stderr) as bar:

        def show(progress: Progress[Any]) -> None:
            bar.set_postfix_str(_about(progress), refresh=False)
            bar.update()

        yield show


@contextmanager
def _by_rich(total: int) -> Iterator[Show]:
    from rich.console import Console
    from rich.progress import Progress as Bar

    with Bar(console=Console(stderr=True)) as bar:
        task = bar.add_task(_WHAT, total=total)
        yield lambda progress: bar.update(task, advance=1, description=f"{_WHAT} {_about(progress)}".strip())


@contextmanager
def _as_text(total: int) -> Iterator[Show]:
    """Rewrites one line of a terminal; elsewhere only the last state is written."""
    shown = ""

    def show(progress: Progress[Any]) -> None:
        nonlocal shown
        shown = f"{_WHAT}: {progress.done}/{total} {_about(progress)}".rstrip()
        if sys.stderr.isatty():
            sys.stderr.write(f"\r{shown}\x1b[K")
            sys.stderr.flush()

    try:
        yield show
    finally:
        if shown:
            sys.stderr.write("\n" if sys.stderr.isatty() else f"{shown}\n")


def _about(progress: Progress[Any]) -> str:
    cost = progress.usage.cost
    facts = [f"{progress.failed} failed"] if progress.failed else []
    return ", ".join([*facts, *([] if cost is None else [f"${cost:.4f}"])])


_BARS = {"tqdm": _by_tqdm, "rich": _by_rich}
