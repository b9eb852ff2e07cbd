"""The scenarios with pictures: their good runs, bad runs that their expectations detect, and the charts."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("PIL", reason="Pillow is not installed: pip install pillow")


import kernai
import text_only_fallback
from harness import ExpectationError, Outcome, UsageError
from kit import charts, packages
from kit.vendor_requests import request_bodies
from tests.scenarios.scenario_process import ENVIRONMENT, SCENARIOS


def with_vision_model(*turns: str) -> Outcome:
    """Run text_only_fallback with a vision model, which makes it a bad run."""
    text_only_fallback.draw_the_chart()
    definition = text_only_fallback.scenario.definition
    recorder = kernai.Recorder()
    with definition.agent(kernai.MockProvider(*turns), kernai.Models.LLAVA) as agent:
        return Outcome(kernai.execute(agent, definition.input, recorder=recorder), recorder.entries)


def test_the_expectation_detects_that_a_skill_for_vision_was_run() -> None:
    picture = kernai.Media.from_bytes(
        charts.draw("Spring harvest", charts.harvest("spring"), 40, numbered=True), mime_type="image/png"
    )
    call = f'<command name="measure_bars">{json.dumps({"image": picture.id, "line_kg": 40})}</command>'
    assert not text_only_fallback.no_vision_skill_was_run(with_vision_model(call, "<final>Seen: yes</final>"))


def test_the_expectation_detects_a_picture_that_reaches_a_vendor(monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = with_vision_model("<final>Seen: yes</final>")
    picture = outcome.result.messages[0].media[0].to_base64()
    assert [picture in body for _, body in request_bodies(outcome, "vision")] == [True] * 5
    assert [picture in body for _, body in request_bodies(outcome)] == [False] * 5

    monkeypatch.setattr(text_only_fallback, "request_bodies", lambda outcome: request_bodies(outcome, "vision"))
    with pytest.raises(ExpectationError, match="OpenAI would be sent no placeholder"):
        text_only_fallback.the_vendor_is_sent_the_placeholder_and_not_the_picture(outcome)


@pytest.mark.process
def test_without_pillow_one_line_says_what_to_install() -> None:
    command = [sys.executable, "-S", str(SCENARIOS / "drawn_image.py"), "--offline", "--no-log"]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, encoding="utf-8", check=False)
    assert (done.returncode, done.stderr) == (
        2, 'drawn_image: error: this scenario needs more than kernai: pip install "pillow>=10.4"\n',
    )


def test_an_outdated_package_is_reported_like_a_missing_one(monkeypatch: pytest.MonkeyPatch) -> None:
    packages.require("PIL", "jsonschema")
    installed = {"pillow": "10.3.0", "jsonschema": "4.20"}
    monkeypatch.setattr(packages, "version", installed.__getitem__)
    with pytest.raises(UsageError, match=r'more than kernai: pip install "pillow>=10\.4"$'):
        packages.require("PIL", "jsonschema")


# -------------------------------------------------------------------------------------------------- the charts


@given(
    kg=st.lists(st.integers(1, charts.MOST_KG), min_size=1, max_size=charts.MOST_BARS),
    line=st.integers(1, charts.MOST_KG),
    numbered=st.booleans(),
)
def test_measuring_a_chart_returns_the_values_it_was_drawn_from(kg: list[int], line: int, numbered: bool) -> None:
    bars = [charts.Bar(f"hive {number}", one) for number, one in enumerate(kg)]
    assert charts.measure(charts.draw("Harvest", bars, line, numbered=numbered), line) == kg
