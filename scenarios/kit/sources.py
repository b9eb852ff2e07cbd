"""The data that scenarios work on: the files in `fixtures`, and SQLite databases that are filled from them."""

from __future__ import annotations

import atexit
import csv
import shutil
import sqlite3
import tempfile
from collections.abc import Callable
from contextlib import closing
from functools import cached_property
from pathlib import Path
from typing import Any

from kit.definition import SCENARIOS

FIXTURES = SCENARIOS / "fixtures"


def text_of(scenario: str, file: str) -> str:
    """The contents of fixtures/SCENARIO/FILE."""
    return (FIXTURES / scenario / file).read_text(encoding="utf-8")


def rows_of(scenario: str, name: str) -> list[dict[str, str]]:
    """The rows of fixtures/SCENARIO/NAME.csv."""
    with (FIXTURES / scenario / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def new_folder() -> Path:
    """A folder that is deleted when the process ends."""
    folder = tempfile.mkdtemp(prefix="kernai-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder).resolve()  # MCP servers compare paths without links


class Database:
    """A SQLite file for this process, made and filled at its first use. SQL may call `functions` of one text."""

    def __init__(self, fill: Callable[[sqlite3.Connection], object], *functions: Callable[[str], str]) -> None:
        self._fill = fill
        self._functions = functions

    @cached_property
    def uri(self) -> str:
        """Where it is; read it once before threads do."""
        path = new_folder() / "data.sqlite3"
        with closing(sqlite3.connect(path)) as connection, connection:
            self._fill(connection)
        return path.as_uri()

    def query(self, sql: str, **parameters: object) -> list[dict[str, Any]]:
        """The rows of a statement, which cannot change anything."""
        return self._run(f"{self.uri}?mode=ro", sql, parameters)

    def change(self, sql: str, **parameters: object) -> None:
        """Run one statement."""
        self._run(self.uri, sql, parameters)

    def _run(self, uri: str, sql: str, parameters: dict[str, object]) -> list[dict[str, Any]]:
        with closing(sqlite3.connect(uri, uri=True)) as connection, connection:
            connection.row_factory = sqlite3.Row
            for function in self._functions:
                connection.create_function(function.__name__, 1, function, deterministic=True)
            return [dict(row) for row in connection.execute(sql, parameters)]
