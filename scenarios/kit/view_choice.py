"""How a run is shown: drawn on a terminal, as plain text anywhere else."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import kernai
from kit import standard_output
from kit.definition import Definition
from kit.plain_view import PlainView
from kit.provider_choice import Choice
from kit.run import Run


class View(Protocol):
    """What shows a run: `begin`, then events within `live`, then `report`."""

    def begin(self, definition: Definition, choice: Choice) -> None: ...

    def live(self) -> AbstractContextManager[None]: ...

    def __call__(self, event: kernai.Event) -> None: ...

    def report(self, run: Run, files: Sequence[str]) -> None: ...


def view_for(*, plain: bool) -> View:
    """The drawn view where standard output is a terminal that can be drawn on and `rich` is installed."""
    if plain or not standard_output.can_be_drawn_on():
        return PlainView()
    try:
        from kit.rich_view import RichView
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "rich":
            raise
        return PlainView()
    return RichView()
