"""A pytest plugin: write ``pytest_plugins = ["kernai.testing.plugin"]`` in the uppermost `conftest.py`.

- `mock_model` makes a strict `MockProvider`; the test fails if it does not use all answers.
- `recorded_run` replays a recording stored next to the test. ``pytest --kernai-record`` makes the recordings.
- A failed `assert` that compares conversations (`result.messages`) or messages shows which message differs, and how.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest

from kernai import Agent, JsonlSink, Message, MockProvider, Recorder, Result, execute
from kernai._util.redaction import one_line, printable
from kernai.events import RunStartRow
from kernai.loop.run_state import recorded_parts
from kernai.runs.run_request import RunOptions, check_options
from kernai.testing.contracts import assert_replays
from kernai.values.message import INPUT_PARTS, as_parts

LONGEST_SHOWN = 100
_PASSED = pytest.StashKey[bool]()
#: the test that uses each recording
_USED_BY = pytest.StashKey[dict[Path, str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds ``--kernai-record``."""
    parser.getgroup("kernai").addoption(
        "--kernai-record", action="store_true", help="make the recordings of recorded_run again, with real runs"
    )


@pytest.fixture
def mock_model(request: pytest.FixtureRequest) -> Iterator[Callable[..., MockProvider]]:
    """``mock_model(*answers)``: a `MockProvider(strict=True)`. The test fails if it does not use all answers."""
    made: list[MockProvider] = []

    def make(*answers: Any, **options: Any) -> MockProvider:
        made.append(MockProvider(*answers, strict=True, **options))
        return made[-1]

    yield make
    if request.node.stash.get(_PASSED, default=False):  # otherwise the report already says what is wrong
        for one in made:
            one.check()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    """Remembers whether a test has passed: it has not failed, not even as expected, and was not skipped."""
    report = yield
    if call.when == "call":
        item.stash[_PASSED] = report.passed
    return report


@pytest.fixture
def recorded_run(request: pytest.FixtureRequest) -> Callable[..., Result[Any]]:
    """``recorded_run(agent, input)``: replays the recording of this test with the agent, and returns the `Result`.

    The recording is ``recordings/MODULE.TEST.jsonl`` in the folder of the test; a second run in the same test needs a
    `name`. With ``pytest --kernai-record``, the agent really runs, with the options of `execute`, and is recorded.
    Otherwise nothing is called, and `assert_replays` compares the agent with the recording; `accept` and `strict` are
    its options. The test fails if the text of the input differs from the recording.
    """
    own: set[Path] = set()
    used_by = request.config.stash.setdefault(_USED_BY, {})

    def run(
        agent: Agent[Any], input: Any, /, *, name: str = "", accept: Iterable[str] = (), strict: bool = False,
        **options: Any,
    ) -> Result[Any]:
        __tracebackhide__ = True
        check_options(options, RunOptions, "name", "accept", "strict")
        if "recorder" in options:
            raise TypeError("recorded_run takes no recorder: it has its own, which makes the recording")
        # a parameter may be a long text, and a file's name has at most 255 characters
        test = re.sub(r"[^\w.-]+", "-", request.node.name).strip("-")[: 247 - len(request.path.stem + name)]
        path = request.path.parent / "recordings" / ".".join(filter(None, [request.path.stem, test, name, "jsonl"]))
        user = used_by.setdefault(path, request.node.nodeid)
        if path in own or user != request.node.nodeid:
            pytest.fail(f"{user} uses {path} too: name this run, recorded_run(..., name='second')", pytrace=False)
        own.add(path)
        if request.config.getoption("--kernai-record"):
            recorder = Recorder()
            recorded_now = execute(agent, input, recorder=recorder, **options)
            path.parent.mkdir(parents=True, exist_ok=True)  # a name may have slashes, as names of models do
            path.unlink(missing_ok=True)  # now that the new recording is complete
            with JsonlSink(path) as sink:
                for event in recorder.entries:
                    sink.record(event)
            return recorded_now
        if not path.exists():
            pytest.fail(f"there is no recording {path}: make it with pytest --kernai-record", pytrace=False)
        inputs = (one["data"]["input"] for one in JsonlSink.read(path) if one["event"] == RunStartRow.type)
        recorded = _texts(next(inputs, []))
        texts = _texts(recorded_parts(as_parts(input, "input", INPUT_PARTS)))
        if texts != recorded:
            pytest.fail(f"the input is {texts!r}, in {path} it was {recorded!r}: pytest --kernai-record", pytrace=False)
        replayed = {key: value for key, value in options.items() if key in ("model", "context")}
        result = assert_replays(agent, path, accept=accept, strict=strict, **replayed)
        if result is None:
            pytest.fail(f"the recording {path} stops in the middle of the run: pytest --kernai-record", pytrace=False)
        return result

    return run


def _texts(given: str | Sequence[Any]) -> list[str]:
    """The texts of a recorded input. Media are left out, because their ids may depend on where their files are."""
    parts = [given] if isinstance(given, str) else given
    texts = (one.get("outside") if isinstance(one, Mapping) else one for one in parts)
    return [one for one in texts if isinstance(one, str)]


def pytest_assertrepr_compare(op: str, left: object, right: object) -> list[str] | None:
    """The lines that pytest shows for two conversations that are not equal."""
    one, other = _conversation(left), _conversation(right)
    if op != "==" or one is None or other is None or list(one) == list(other):  # say, a tuple and a list
        return None
    return ["the conversations differ:", *_compared(one, other)]


def _conversation(value: object) -> Sequence[Message] | None:
    if isinstance(value, Message):
        return [value]
    if isinstance(value, (list, tuple)) and all(isinstance(one, Message) for one in value):
        return value
    return None


def _compared(left: Sequence[Message], right: Sequence[Message]) -> Iterator[str]:
    for at, (one, other) in enumerate(zip_longest(left, right)):
        if one is None or other is None:
            message, side = (one, "left") if other is None else (other, "right")
            yield f"[{at}] only on the {side}: {message.role}: {one_line(message.text, LONGEST_SHOWN)}"
        elif one == other:
            yield f"[{at}] {one.role}: {one_line(one.text, LONGEST_SHOWN)}"
        else:
            yield f"[{at}] {one.role if one.role == other.role else f'{one.role}, not {other.role}'}:"
            lines = difflib.ndiff(other.text.splitlines(), one.text.splitlines())
            yield from (f"    {printable(line).rstrip()}" for line in lines)
            if printable(one.text) == printable(other.text):
                contents = [one_line(repr(each.content), LONGEST_SHOWN) for each in (one, other)]
                yield f"    with different content: {' and '.join(contents)}"
