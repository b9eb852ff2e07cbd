"""The viewer with 10,000 events, in headless Chromium: opening, scrolling, searching; and making the page.

Needs playwright and a Chromium on PATH; without these, only making the page is measured, and a line says so. The
recording is the same each time: one run of 2,000 steps, each with one call and a result of 900 characters.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from kernai.viewer import render_page
from support import compare, emit, timed

EVENTS = 10_000
VIEWS = {"conversation": "", "events": "#e1"}

READY = "() => new Promise((next) => requestAnimationFrame(() => requestAnimationFrame(() => next(performance.now()))))"
SCROLL = """async (id) => {
  const pane = document.getElementById(id);
  const frames = [];
  for (let at = 0, last = performance.now(); at < 300; at++) {
    pane.scrollTop += 120;
    await new Promise((next) => requestAnimationFrame(next));
    const now = performance.now();
    frames.push(now - last);
    last = now;
  }
  return frames.sort((one, other) => one - other);
}"""
SEARCH = """() => {
  const field = document.getElementById("search");
  field.value = "page 1900";
  const begun = performance.now();
  field.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter", bubbles: true }));
  document.body.offsetHeight;
  return performance.now() - begun;
}"""


def recording(events: int) -> list[dict[str, Any]]:
    """The entries of a run, with half a second for each step."""
    begun = datetime(2026, 11, 20, 9, 0, tzinfo=UTC)
    entries: list[dict[str, Any]] = []

    def add(event: str, data: object, step: int, **more: object) -> None:
        at = (begun + timedelta(milliseconds=100 * len(entries))).isoformat(timespec="milliseconds")
        entries.append({
            "event": event, "data": data, "step": step, "depth": 0, "task_id": None, "scope": "", "run_id": "run-1",
            "timestamp": at.replace("+00:00", "Z"), **more,
        })

    add("run_start", {"run_id": "run-1", "input": "Read the archive.", "model": "m", "agent": "archivist"}, 0)
    for step in range(events // 5):
        text = f"Page {step} comes next. {'Some words of a model. ' * 10}"
        called = f'{text}<block type="command" name="read">{{"page": {step}}}</block>'
        result = f"page {step}: {'text of a page ' * 60}"
        new = [{"role": "assistant", "content": called}, {"role": "user", "content": result}]
        add("messages_sent", new, step, since=2 * step)
        add("llm_response", {"content": called, "latency_ms": 90, "prompt_tokens": 900, "completion_tokens": 60}, step)
        add("blocks_parsed", [{"type": "command", "name": "read", "content": f'{{"page": {step}}}'}], step)
        add("skill_execute", {"call_id": f"{step}.0", "skill": "read", "params": {"page": step}}, step)
        add("skill_result", {"call_id": f"{step}.0", "skill": "read", "result": result, "duration_ms": 90}, step)
    return entries


@contextmanager
def browser() -> Iterator[Any]:
    """A headless Chromium; or None, after printing what is missing."""
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
    if path is None or find_spec("playwright") is None:
        print("viewer: playwright or Chromium is missing: opening and scrolling are not measured", file=sys.stderr)
        yield None
        return
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        yield made
        made.close()


def measure(page: Any, address: str, view: str, rounds: int) -> None:
    """Measures opening (the best of several), then scrolling and a first search in the last page that was opened."""
    opened = []
    for _ in range(rounds):
        page.goto("about:blank")
        page.goto(address + VIEWS[view])
        opened.append(page.evaluate(READY))
    frames = page.evaluate(SCROLL, f"panel-{view}")
    for name, milliseconds, limit, aim in (
        ("10,000 events open", min(opened), 2.0, "<= 1"),
        ("95 of 100 frames while scrolling", frames[int(len(frames) * 0.95)], 1 / 60, "<= 2"),
        ("the longest frame", frames[-1], 0.1, "<= 1"),
        ("the first search", page.evaluate(SEARCH), 0.5, "<= 1"),
    ):
        emit(f"{view}: {name}", milliseconds / 1000, limit, aim, "ms")


def main(*, quick: bool = False) -> None:
    """Emits lines for making the page, and for each of its views in the browser."""
    rounds = 2 if quick else 5
    entries = recording(EVENTS)
    made, floor = timed(lambda: render_page(entries, title="a run")), timed(lambda: json.dumps(entries))
    compare("making the page (json.dumps)", made, floor, "<= 15", rounds=rounds)
    with tempfile.TemporaryDirectory() as folder, browser() as chromium:
        if chromium is None:
            return
        file = Path(folder) / "run.html"
        file.write_text(render_page(entries, title="a run"), encoding="utf-8")
        for view in VIEWS:
            page = chromium.new_page(viewport={"width": 1400, "height": 900})
            measure(page, file.as_uri(), view, rounds)
            page.close()
