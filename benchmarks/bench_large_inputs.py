"""The cost of large texts from outside, 5 MB of each or 1 MB of JSON, and of a run with a large registry.

- `look_at`, which looks for calls in each result of a skill, against the 60 ms that it may take for a megabyte;
  `quoted_calls`, for texts that contain calls, against one `re.finditer` for whole blocks.
- `json_data.loads`, with unique keys, against `json.loads`.
- JSON in single quotes, parsed and distinguished from tags, against the same in double quotes.
- A run of one call with 1,000 skills in the registry, against one with 10.

All times are processor times of the process.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import kernai
from kernai import Agent, MockProvider, Skill, execute, parse
from kernai.blocks.quotations import look_at, quoted_calls
from kernai.inputs.table import read_json
from kernai.jsonio.json_data import loads
from support import Measure, best, compare, emit, timed

PROSE = """The report names two offices. The one in Lyon closed in March, so only Turin counts for the second half of
the year, and the figure in the summary still holds both: R&D <p> is not in it. It may have changed.

"""
HTML = '<p class="note">Some <b>bold</b> words &amp; a <a href="/page?a=1&b=2">link</a>, &nbsp; and if a < b.</p>\n'
ESCAPES = 'print("\\033[1m%s\\n\\tname:\\t\\x1b[0m" % "\\\\d+", \'C:\\\\dir\', "\\u00e9")  # arguments & parameters\n'
SOURCE = Path(argparse.__file__).read_text(encoding="utf-8")
CALL = '<block type="command" name="search">{"query": "tea", "limit": 10}</block>\n'
BLOCK = re.compile(r'<block type="([^"]*)"(?: name="([^"]*)")?>(.*?)</block>', re.DOTALL)
ROW = {"id": 17, "name": "Ada", "tags": ["a", "b"], "note": "plain", "at": "12:30", "part": 0.5}


def cpu(work: Callable[..., object], *given: object) -> Measure:
    return timed(lambda: work(*given), time.process_time)


def texts(rounds: int) -> None:
    pieces = {
        "prose": PROSE, "HTML": HTML, "code with escapes": ESCAPES, "JSON": json.dumps([ROW]),
        "code with `name` and `arguments`": SOURCE, "the same and an é": SOURCE + "é\n",
    }  # fmt: skip
    for name, piece in pieces.items():
        text = piece * (1_000_000 // len(piece))
        (taken,) = best(rounds, cpu(look_at, text))
        emit(f"look for calls in 1 MB, {name}, against what it may take", taken * 1e6 / len(text), 0.060, "<= 1", "ms")
    for name, piece, aim in (("blocks", CALL, "<= 8"), ("HTML and blocks", HTML + CALL, "<= 80")):
        text = piece * (5_000_000 // len(piece))
        ours, floor = (cpu(lambda find, text: list(find(text)), find, text) for find in (quoted_calls, BLOCK.finditer))
        compare(f"quoted_calls of 5 MB, {name}, against finditer", ours, floor, aim, rounds=rounds)


def json_texts(rounds: int) -> None:
    documents = {
        "rows": [ROW] * 10_000, "one long text": {"text": PROSE * 5_000}, "numbers": list(range(150_000)),
        "many keys": {f"key {number}": number for number in range(45_000)},
    }  # fmt: skip
    for name, data in documents.items():
        text = json.dumps(data)
        ours, floor = cpu(partial(loads, unique_keys=True), text), cpu(json.loads, text)
        compare(f"loads of 1 MB, {name}, against json.loads", ours, floor, "<= 2", rounds=rounds)
    double = json.dumps({"rows": [{"name": "Ada", "note": "a text of some length", "n": 17}] * 15_000})
    quotes = double.replace('"', "'"), double
    ours, floor = (cpu(partial(read_json, repair=True), text) for text in quotes)
    compare("1 MB in single quotes, read, against double ones", ours, floor, "<= 10", rounds=rounds)
    ours, floor = (cpu(parse, f'<block type="command" name="a">{text}</block>') for text in quotes)
    compare("1 MB in single quotes, a block, against double ones", ours, floor, "<= 10", rounds=rounds)


def registry(rounds: int) -> None:
    agent, seconds = Agent(instructions="", skills="all"), list[float]()
    call = f'<block type="command" name="skill_1">{json.dumps({"text": "x"})}</block>'

    def runs() -> None:
        for _ in range(200):
            execute(agent, "Go.", provider=MockProvider(call, "<final>done</final>"))

    before = kernai.skills.snapshot()
    try:
        for count in (10, 1000):
            for number in range(count):
                kernai.skills.register(Skill(f"skill_{number}", execute=lambda text: text))
            seconds += best(rounds, cpu(runs))
    finally:
        kernai.skills.restore(before)
    few, many = seconds
    emit("a run beside 1,000 skills, against 10", many / 200, few / 200, "<= 1.3", "us")


def main(*, quick: bool = False) -> None:
    """Emits all figures; `quick` measures each less often."""
    rounds = 2 if quick else 7
    texts(rounds)
    json_texts(rounds)
    registry(rounds)
