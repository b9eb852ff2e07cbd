"""`kernai diff`: where two recorded runs differ, ignoring their times and ids."""

from __future__ import annotations

import copy
import json
import re
import time
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import kernai as package
from kernai import Agent, JsonlSink, LlmResponse, Message, Model, Provider, Recorder
from kernai.command_line import diff_command, main
from kernai.command_line.diff_command import Difference, compare, difference_lines, scopes_of
from kernai.jsonio.json_data import MAX_DEPTH
from tests.command_line.conftest import Here, Screen
from tests.command_line.support import as_json, environment, write

PLAN = '<block type="plan">{"strategy": "parallel", "tasks": [{"id": "a", "input": "do a"}, {"id": "b", "input": "do b"}]}</block>'


class Fruiterer(Provider):
    """Answers according to the question, with other ids in each run."""

    def __init__(self, run: int, fruit: str = "pear") -> None:
        self.run = run
        self.fruit = fruit

    def call(self, messages: Any, model: Model, generation: Any, on_chunk: Callable[[str], object]) -> LlmResponse:
        last: Message = messages[-1]
        text = {"do a": f"<final>{self.fruit}</final>", "do b": "<final>b</final>", "go": PLAN}.get(last.text)
        return LlmResponse(
            text or "<final>done\nand dusted</final>", latency_ms=10 * self.run, total_tokens=5,
            metadata={"request_id": f"req_{self.run}", "response_id": f"resp_{self.run}", "model": "m"},
        )  # fmt: skip


def record(path: Path, run: int, *fruits: str, run_id: str | None = None) -> Path:
    with JsonlSink(path) as sink:
        for fruit in fruits or ("pear",):
            agent = Agent(instructions="x", provider=Fruiterer(run, fruit))
            package.run(agent, "go", recorder=Recorder(sink), run_id=run_id)
    return path


@pytest.fixture
def events(tmp_path: Path) -> list[dict[str, Any]]:
    return JsonlSink.read(record(tmp_path / "one.jsonl", 1))


def save(path: Path, events: Any) -> str:
    path.write_text(json.dumps(events), encoding="utf-8")
    return str(path)


def test_runs_that_differ_only_in_times_and_ids_are_the_same(here: Here, tmp_path: Path) -> None:
    for run in (1, 2):
        path = record(tmp_path / f"{run}.jsonl", run)
        error = f"openai: 500 (request id req_{run}); try later"
        path.write_text(path.read_text() + json.dumps({"event": "result", "data": {"error": error}}) + "\n")
    done = here("diff", "1.jsonl", "2.jsonl")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("the same: ")


def test_the_first_difference_of_each_scope_is_shown_with_the_event_before_it(here: Here, tmp_path: Path) -> None:
    record(tmp_path / "a.jsonl", 1)
    record(tmp_path / "b.jsonl", 2, "äpple")
    done = here("diff", "a.jsonl", "b.jsonl")
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.startswith("--- a.jsonl\n+++ b.jsonl\n")
    assert "@@ 0.a, step 0: llm_response @@\n  after step 0: messages_sent " in done.stdout
    assert '-  content: "<final>pear</final>"\n+  content: "<final>äpple</final>"\n' in done.stdout
    assert '@@ root, step 0: task_complete @@\n  after step 0: task_start task_id: "a"' in done.stdout
    assert "@@ 0.b" not in done.stdout
    counts = [line.split(None, 1) for line in done.stdout.splitlines()[-2:]]
    assert counts == [["0.a", "2 events the same, 4 only in A, 4 only in B"], ["0.b", "6 events the same"]]
    coloured = here("diff", "a.jsonl", "b.jsonl", screen=Screen(), env=environment(TERM="xterm", NO_COLOR="")).stdout
    codes = [code + char for code, char in re.findall(r"^\x1b\[(\d+)m(.)", coloured, re.MULTILINE)]
    assert codes[:6] + codes[-2:] == ["1-", "1+", "36@", "2 ", "31-", "32+", "330", "20"]
    everything = here("diff", "a.jsonl", "b.jsonl", "--all").stdout
    assert everything.count("@@ 0.a, ") > done.stdout.count("@@ 0.a, ") == 1
    shown = as_json(here("diff", "a.jsonl", "b.jsonl", "--json").stdout)
    scope = next(one for one in shown["scopes"] if one["scope"] == "0.a")
    assert (shown["same"], scope["run"]) == (False, 1)
    [difference] = scope["differences"]
    assert (difference["a"]["event"], difference["after"]["event"]) == ("llm_response", "messages_sent")
    assert as_json(here("diff", "a.jsonl", "a.jsonl", "--json").stdout)["same"] is True


def test_a_line_that_a_crash_cut_off_is_left_out_with_a_warning(here: Here, tmp_path: Path) -> None:
    lines = record(tmp_path / "one.jsonl", 1).read_text(encoding="utf-8").splitlines()
    path = str(write(tmp_path, "two.jsonl", "\n".join([*lines[:-1], lines[-1][:-9], ""])))
    done = here("diff", path, path)
    assert (done.returncode, done.stdout) == (0, f"the same: {len(lines) - 1} events\n")
    assert f'two.jsonl line={len(lines)} reason="this line was cut off, and is left out"\n' in done.stderr


def test_the_order_in_which_parallel_work_ended_is_ignored(tmp_path: Path, events: list[dict[str, Any]]) -> None:
    def move(name: str, changed: list[dict[str, Any]]) -> None:
        at = [i for i, event in enumerate(changed) if event["event"] == name]
        changed[at[0]], changed[at[1]] = changed[at[1]], changed[at[0]]

    other = copy.deepcopy(events)
    move("task_start", other)
    move("task_complete", other)
    assert main(["diff", save(tmp_path / "a.json", events), save(tmp_path / "b.json", other)]) == 0


@pytest.mark.parametrize("event", ["skill_result", "approval_given"])
def test_calls_are_compared_in_the_order_of_their_numbers(event: str) -> None:
    calls = [{"event": event, "step": 0, "scope": "", "data": {"call_id": f"0.{at}", "result": "x"}} for at in range(12)]
    [ordered] = scopes_of(reversed(calls)).values()
    assert [entry["data"]["call_id"] for entry in ordered] == [f"0.{at}" for at in range(12)]


Events = list[dict[str, Any]]
#: changes of a recording, and what is shown of the events that only the changed one has, or does not have
ONE_SIDED: dict[str, tuple[Callable[[Events], Events], str]] = {
    "an event before all others": (
        lambda events: [{**events[0], "event": "noticed", "data": {}}, *events],
        "@@ root, step 0: noticed @@\n  (nothing before it is the same)\n+step 0: noticed\n",
    ),
    "that the model began again": (
        lambda events: [*events, {**events[-1], "event": "model_restarted", "data": {"a": {}, "b": {"c": 1, "d": "x"}}}],
        '+step 1: model_restarted\n+  a: {}\n+  b:\n+    c: 1\n+    d: "x"\n',
    ),
    "the answer": (
        lambda events: [one for one in events if one["event"] != "final" or one["scope"]],
        "-step 1: final\n-  | done\n-  | and dusted\n",
    ),
    "a scope": (
        lambda events: [one for one in events if one["scope"] != "0.b"],
        "@@ 0.b, step 0: run_start @@\n  (all of it only in A)\n-step 0: run_start\n",
    ),
}


@pytest.mark.parametrize("change, shown", ONE_SIDED.values(), ids=ONE_SIDED.keys())
def test_events_in_only_one_run_are_shown_as_such(
    here: Here, tmp_path: Path, events: Events, change: Callable[[Events], Events], shown: str
) -> None:
    a, b = save(tmp_path / "a.json", events), save(tmp_path / "b.json", {"events": change(events)})
    forth, back = here("diff", a, b), here("diff", b, a)
    assert (forth.returncode, back.returncode) == (1, 1)
    assert shown in forth.stdout
    swapped = shown.translate(str.maketrans("+-", "-+")).replace("only in A", "only in B")
    assert swapped in back.stdout


def test_an_event_type_with_a_line_break_cannot_forge_a_line() -> None:
    forged = {"event": "final\n+step 0: result", "step": 0, "data": None}
    assert difference_lines(Difference(forged, None, None))[0] == r"-step 0: final\n+step 0: result"


def test_only_the_lines_around_a_change_in_a_long_text_are_shown() -> None:
    def entry(word: str) -> dict[str, Any]:
        lines = [f"line {at}" for at in range(100)]
        lines[50] = word
        return {"event": "final", "step": 0, "data": "\n".join(lines)}

    shown = difference_lines(Difference(entry("old"), entry("new"), None))
    assert shown[0] == " step 0: final"
    assert shown[4] == "   ... (43 lines that are the same)"
    assert shown[8:11] == ["   | line 49", "-  | old", "+  | new"]
    assert shown[15] == "   ... (41 lines that are the same)"
    assert len(shown) == 20


@pytest.mark.parametrize("run_id", [None, "nightly"])
def test_several_runs_in_a_file_are_compared_one_by_one_even_with_the_same_id(
    here: Here, tmp_path: Path, run_id: str | None
) -> None:
    record(tmp_path / "a.jsonl", 1, "pear", "pear", run_id=run_id)
    record(tmp_path / "b.jsonl", 2, "pear", "apple", run_id=run_id)
    record(tmp_path / "one.jsonl", 1)
    shown = here("diff", "a.jsonl", "b.jsonl").stdout
    assert "@@ run 2, 0.a, step 0: llm_response @@" in shown
    assert "@@ run 1, " not in shown
    assert "\nrun 1, root " in shown
    scopes = as_json(here("diff", "one.jsonl", "a.jsonl", "--json").stdout)["scopes"]
    assert {(each["run"], each["only_a"], each["only_b"] > 0) for each in scopes} == {(1, 0, False), (2, 0, True)}


def test_neither_the_start_of_a_sub_run_nor_a_missing_start_counts_as_another_run() -> None:
    def event(kind: str, scope: str = "") -> dict[str, Any]:
        return {"event": kind, "scope": scope, "run_id": "r"}

    first = [event("json"), event("run_start"), event("run_start", "0.a"), event("run_start", "0.a"), event("result")]
    again = [event("run_start"), event("run_start", "0.a")]
    assert [(place, len(entries)) for place, entries in scopes_of([*first, *again]).items()] == [
        ((1, ""), 3), ((1, "0.a"), 2), ((2, ""), 1), ((2, "0.a"), 1)]


def test_each_difference_is_shown_with_the_last_equal_event() -> None:
    ours, theirs = (scopes_of([{"event": "json", "data": one} for one in text]) for text in ("abcdeXf", "aBcdeYf"))
    [compared] = compare(ours, theirs)
    assert compared.same == 5
    assert [[entry and entry["data"] for entry in each] for each in compared.differences] == [["b", "B", "a"], ["X", "Y", "e"]]


DIFFERENT = {
    "a number and a text": (1, "1"),
    "control characters": ("a\x1b[1m", "a\x1b[2m"),
    "a control character and the end of its escape": ("\x9b", "u009b"), "two that differ at the end of theirs": ("\x9b", "\x9c"),
    "a carriage return": ("a\nb", "a\r\nb"),
    "a direction mark": ("a\u202eb", "ab"),
    "empty things": ({}, []),
    "a quote and an escaped one": ('a\n"', 'a\n\\"'),
    "keys that hold line breaks": ({"a\nb": 1}, {"a": {"b": 1}}),
    "long texts": ("x" * 5000 + "a", "x" * 5000 + "b"),
    "None and its name": (None, "null"),
    "a text and the list of its lines": ({"a": "| b\n| c"}, {"a": ["b", "c"]}),
}


@pytest.mark.parametrize("ours, theirs", DIFFERENT.values(), ids=DIFFERENT.keys())
def test_every_difference_is_visible_and_printable(ours: Any, theirs: Any) -> None:
    def scopes(data: Any) -> Any:
        return scopes_of([{"event": "json", "step": 0, "scope": "", "run_id": "r", "data": data}])

    [compared] = compare(scopes(ours), scopes(theirs))
    [difference] = compared.differences
    lines = difference_lines(difference)
    assert {line[0] for line in lines} >= {"-", "+"}
    assert all(line.isprintable() for line in lines)
    assert max(map(len, lines)) < 2100


def test_logs_with_other_events_can_be_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def odd(inner: str) -> str:
        nested = '{"a":' * MAX_DEPTH + inner + "}" * MAX_DEPTH
        text = f'[{{"event": "skill_result", "run_id": [1], "scope": 7, "step": "x", "data": {nested}}}, {{"event": "task_start"}}]'
        return str(write(tmp_path, f"{inner}.json", text))

    assert main(["diff", odd("1"), odd("2")]) == 1
    assert "@@ run 1, 7, step x: skill_result @@" in capsys.readouterr().out
    assert main(["diff", odd("1"), odd("1")]) == 0
    assert main(["diff", odd("1"), odd("2"), odd("3")]) == 2
    assert "give two recordings to compare, not 3" in capsys.readouterr().err
    for data, why in (("{}", "KeyError: 'from_seq'"), ("null", "'NoneType' object is not subscriptable")):
        assert main(["diff", *[str(write(tmp_path, "damaged.json", f'[{{"event": "run_resumed", "data": {data}}}]'))] * 2]) == 2
        assert f"damaged.json is damaged in a run_resumed: {why}" in capsys.readouterr().err


def events_with(*data: Any, kind: str = "json") -> list[dict[str, Any]]:
    return [{"event": kind, "step": 0, "data": one} for one in data]


def every_second(size: int) -> list[list[str]]:
    """Return the words of two texts in which every second word differs."""
    return [list(chain.from_iterable((f"{at}", f"{side}{at}") for at in range(size))) for side in "ab"]


MANY: dict[str, Callable[[], list[Any]]] = {
    "events of which every second differs": lambda: [events_with(*words) for words in every_second(2_000)],
    "lines of which every second differs": lambda: [events_with("\n".join(words)) for words in every_second(10_000)],
    "lines that come again and again": lambda: [events_with("\n".join(str(at * step % 101) for at in range(20_000))) for step in (3, 7)],
    "events that come again and again": lambda: [events_with(odd, *["same"] * 4_000, -odd) for odd in (1, 2)],
    "request ids that never end": lambda: [events_with({"error": " (request id" * 5_000 + end}) for end in "ab"],
    "request ids within each other": lambda: [events_with({"error": " (request id (" * 5_000 + end + ")" * 5_000}) for end in "ab"],
    "a line of a million": lambda: [events_with("x" * 1_000_000 + end) for end in "ab"],
}


@pytest.mark.slow
@pytest.mark.parametrize("make", MANY.values(), ids=MANY.keys())
def test_long_recordings_are_compared_in_less_than_quadratic_time(make: Callable[[], list[Any]]) -> None:
    ours, theirs = make()
    began = time.process_time()
    [compared] = compare(scopes_of(ours), scopes_of(theirs))
    assert compared.differences
    for difference in compared.differences:
        assert difference_lines(difference)
    assert time.process_time() - began < 4  # seconds; less than one in fact, and many with quadratic time


def test_repeated_events_are_matched_by_position() -> None:
    ours, theirs = (events_with(*["same"] * 5_000, odd, "once", *["same"] * 5_000) for odd in (1, 2))
    [compared] = compare(scopes_of(ours), scopes_of(theirs))
    assert (compared.same, len(compared.differences)) == (10_001, 1)


WORDS = st.lists(st.sampled_from("abc"), max_size=20)


@example(["c", "c"], ["x", "c"], 4)  # only the last item is equal
@example(["x", "c"], ["c", "c"], 4)
@example(["a", "b"], ["a", "a", "b"], 9)  # the start and the end overlap
@example(["a", "a", "b"], ["a", "b"], 9)
@given(WORDS, WORDS, st.sampled_from([0, 4, diff_command.MOST_MATCHED]))
def test_aligned_parts_cover_both_sequences_and_equal_parts_are_equal(ours: list[str], theirs: list[str], most: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(diff_command, "MOST_MATCHED", most)
        stretches = list(diff_command.aligned(ours, theirs))
    assert [one for _, a, _ in stretches for one in ours[a]] == ours
    assert [one for _, _, b in stretches for one in theirs[b]] == theirs
    assert [same for same, _, _ in stretches] == [at % 2 == (not stretches[0][0]) for at in range(len(stretches))]
    for same, a, b in stretches:
        assert (ours[a] == theirs[b]) == same


@given(st.permutations("abcdefghij"))
def test_as_many_as_possible_of_items_in_another_order_are_matched(ours: list[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(diff_command, "MOST_MATCHED", 0)
        stretches = list(diff_command.aligned(ours, sorted(ours)))
    longest: dict[str, int] = {}  # of the increasing sequences that end with each item
    for one in ours:
        longest[one] = 1 + max((longest[before] for before in longest if before < one), default=0)
    assert sum(a.stop - a.start for same, a, _ in stretches if same) == max(longest.values())
