"""`dev.py bench model --provider`: what anyone with a key runs to add rows to docs/model-results.md."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from vendor_wires import WIRES, Answering
from wire_server import WireServer

ROOT = Path(__file__).resolve().parents[2]
TABLE = re.compile(r"^\| model \| way \|.*$", re.MULTILINE)


def bench(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "benchmarks/run.py", "model", "--quick", *arguments]
    names = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "no_proxy": "*", **environment}
    return subprocess.run(command, cwd=ROOT, env=names, capture_output=True, text=True, check=False, timeout=120)


@pytest.mark.process
def test_any_provider_gives_rows_in_the_form_of_the_table() -> None:
    wire = WIRES["openai"]
    turns = ["<final>yes</final>"] * 10 + ["I do not know."] * 10
    with WireServer(Answering(wire, turns, key="sk-test", model="gpt-4o-mini")) as server:
        done = bench("--provider", "openai/gpt-4o-mini", OPENAI_API_KEY="sk-test", OPENAI_BASE_URL=wire.base_url(server.url))
    assert "`openai/gpt-4o-mini` | free | 10 | 0 | 10 | 0 | 0 | 0 | 0 |" in done.stdout, done.stderr
    assert "`openai/gpt-4o-mini` | native | 10 | 0 | 10 | 0 | 0 | 0 | 0 |" in done.stdout
    page = (ROOT / "docs" / "model-results.md").read_text(encoding="utf-8")
    assert TABLE.findall(done.stdout) == TABLE.findall(page)


@pytest.mark.process
def test_a_vendor_that_refuses_ends_the_benchmark_with_its_error() -> None:
    wire = WIRES["openai"]
    with WireServer(Answering(wire, [], key="sk-test")) as server:
        done = bench("--provider", "openai/gpt-4o-mini", OPENAI_API_KEY="sk-wrong", OPENAI_BASE_URL=wire.base_url(server.url))
    assert done.returncode == 1
    assert "ProviderError" in done.stderr
