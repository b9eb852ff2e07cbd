"""What the program shows on stderr during a run."""

from __future__ import annotations

import pytest

import docs_tables
from kernai.command_line.narrator import Narrator
from kernai.events import KINDS, Event, Row
from kernai.jsonio.json_data import loads


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("verbose", [False, True])
def test_an_event_of_any_kind_is_one_line_or_none(
    kind: type[Row], verbose: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    event = Event(kind.type, loads(docs_tables.documented(kind)[1]))
    assert type(event.row) is kind
    Narrator(verbose=verbose)(event)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("\n") <= 1


def test_a_long_value_fills_the_line_of_a_terminal_and_no_more(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    Narrator()(Event("progress", {"data": "x"}))
    Narrator()(Event("skill_execute", {"skill": "look", "params": {"text": "x" * 200}, "call_id": "0.0"}, 0))
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("  call look ")
    assert len(line) == 80
