"""Kinds of events: the docs made from them, how their data is read, and that no observer can change an event."""

from __future__ import annotations

import asyncio
import inspect
import json
import re
from collections import ChainMap
from collections.abc import Callable, Mapping
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import docs_tables
import kernai
from kernai import Agent, Event, LlmResponse, MockProvider, Recorder, Result, SkillResult, stream
from kernai.events import KINDS, CustomRow, ProgressRow, Row
from kernai.jsonio.json_data import jsonable
from kernai.recording.recorder import expand
from tests.ways import WAYS, Way, by_aexecute, by_execute

EVERY_KIND = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
#: few examples, because each of 43 kinds is tried
FEW = settings(max_examples=max(5, settings().max_examples // 20))


# ------------------------------------------------------------------------------------------ docs/recording.md


def test_the_table_in_the_docs_is_up_to_date() -> None:
    page = docs_tables.PAGE.read_text(encoding="utf-8")
    assert docs_tables.with_table(page) == page, "run `python3 dev.py tables`"
    assert [line for line in page.splitlines() if line.startswith("| `run_start` |")]


@EVERY_KIND
def test_every_kind_of_event_is_documented_with_a_sentence_and_a_valid_example(kind: type[Row]) -> None:
    text, example = docs_tables.documented(kind)
    data = json.loads(example)
    assert text.endswith(".")
    assert kind.read(data).json() == data


# ------------------------------------------------------------------------------------- no other list of kinds

#: kinds whose names also mean other things: block types, options, keys
WORDS = {"final", "plan", "json", "result", "progress", "in_flight"}
#: the stream parser has its own events with these names
OF_THE_PARSER = {"blocks/stream_parser.py", "loop/model_stream.py", "viewer/page.py"}


def test_no_module_writes_a_kinds_name_as_a_string() -> None:
    folder = Path(kernai.__file__).parent
    named = {}
    for path in folder.rglob("*.py"):
        words = set(re.findall(r"""["'](\w+)["']""", path.read_text(encoding="utf-8")))
        named[path.relative_to(folder).as_posix()] = (KINDS.keys() - WORDS) & words
    assert {name for name, kinds in named.items() if kinds} - OF_THE_PARSER == {"events.py"}, (
        "say `SkillResultRow.type`, or `isinstance(event.row, SkillResultRow)`"
    )


# --------------------------------------------------------------------------------------------- rows of all kinds

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=4,
)
OBJECTS = st.dictionaries(st.text(max_size=9), JSON, max_size=3)
#: values for each type named in the rows' annotations
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "Any": JSON, "None": st.none(), "str": st.text(max_size=9), "int": st.integers(), "bool": st.booleans(),
    "float": st.floats(allow_nan=False, allow_infinity=False), "Mapping[str, Any]": OBJECTS,
    "Sequence[Any]": st.lists(JSON, max_size=3), "Decided": st.booleans() | st.text(max_size=9) | OBJECTS,
}
#: the Python types of those values after JSON
MEANT: dict[str, tuple[type, ...]] = {
    "None": (type(None),), "str": (str,), "int": (int,), "bool": (bool,), "float": (float, int),
    "Mapping[str, Any]": (dict,), "Sequence[Any]": (list,), "Decided": (bool, str, dict),
}


def fields_of(kind: type[Row]) -> dict[str, tuple[list[str], bool]]:
    """Return each field's types, as annotated, and whether the field is required, by the field's name in JSON."""
    parameters = inspect.signature(kind).parameters.values()
    return {
        one.name.rstrip("_"): (one.annotation.split(" | "), one.default is one.empty)
        for one in parameters if one.name != "block"
    }


def data_of(kind: type[Row]) -> st.SearchStrategy[Any]:
    if not is_object(kind):
        lists = st.lists(OBJECTS, max_size=3)
        return {"str": st.text(), "Any": JSON}.get(next(iter(fields_of(kind).values()))[0][0], lists)
    values = {name: reduce(or_, map(VALUES.__getitem__, words)) for name, (words, _) in fields_of(kind).items()}
    always = {name: values[name] for name, (_, is_always) in fields_of(kind).items() if is_always}
    perhaps = {name: values[name].filter(lambda value: value is not None) for name in values.keys() - always.keys()}
    return st.fixed_dictionaries(always, optional=perhaps)


def is_object(kind: type[Row]) -> bool:
    return isinstance(json.loads(docs_tables.documented(kind)[1]), dict) and list(fields_of(kind)) != ["value"]


def vandalise(value: Any) -> None:
    """Change everything in a value that can be changed."""
    if isinstance(value, dict):
        for one in list(value.values()):
            vandalise(one)
        value.clear()
        value["vandal"] = 1
    elif isinstance(value, (list, tuple)):
        for one in value:
            vandalise(one)
        if isinstance(value, list):
            value[:] = ["vandal"]
    elif isinstance(value, Mapping) or (hasattr(value, "__getitem__") and not isinstance(value, (str, bytes))):
        for one in value:
            vandalise(one)


@EVERY_KIND
@FEW
@given(st.data())
def test_code_that_reads_an_event_cannot_change_it(kind: type[Row], data: st.DataObject) -> None:
    row = kind.read(data.draw(data_of(kind)))
    row.place, row.at = (0, 0, None, "", "r", None), 0.0
    one, other = Event.of(row), Event.of(row)
    before = json.dumps(one.to_dict())
    for event in (one, other):
        vandalise(event.data)
        vandalise(event.to_dict())
    assert json.dumps(one.to_dict()) == json.dumps(other.to_dict()) == before
    assert jsonable(other.data) == json.loads(before)["data"]


class Numbers(list[Any]):
    """A subclass of list."""


@pytest.mark.parametrize("given_data", [[1], (1, [2]), Numbers([1]), {"a": Numbers([1])}, ChainMap({"a": [1]})])
def test_neither_the_skill_nor_a_reader_can_change_progress_once_it_is_reported(given_data: Any) -> None:
    row = ProgressRow("0.0", given_data)
    row.place, row.at = (0, 0, None, "", "r", None), 0.0
    row.seal()
    before = jsonable(given_data)
    vandalise(given_data)
    vandalise(Event.of(row).data)
    assert Event.of(row).to_dict()["data"]["data"] == before


@EVERY_KIND
@FEW
@given(st.data())
def test_an_event_of_any_kind_survives_a_round_trip_through_json(kind: type[Row], data: st.DataObject) -> None:
    event = Event(kind.type, data.draw(data_of(kind)), 1, 2, "a", "2.a", "r", 0.25)
    back = Event.from_dict(json.loads(json.dumps(event.to_dict())))
    assert back == event
    assert type(back.row) is type(event.row) is kind


@EVERY_KIND
@FEW
@given(st.data())
def test_a_field_of_the_wrong_type_is_an_error_that_names_the_field(kind: type[Row], data: st.DataObject) -> None:
    right = data.draw(data_of(kind))
    wrong_values = ["x", 7, True, 1.5, [], {}, None, b"bytes"]
    if not is_object(kind):
        if kind.type != "context_saved":
            with pytest.raises(ValueError, match="its data is"):
                kind.read(data.draw(st.sampled_from([7, None, {}, b"bytes", [7]])))
        return
    for name, (words, is_always) in fields_of(kind).items():
        if is_always:
            with pytest.raises(ValueError, match=f"it has no '{name}'"):
                kind.read({key: value for key, value in right.items() if key != name})
        if "Any" in words:
            continue
        meant = {one for word in words for one in MEANT[word]}
        wrong = data.draw(st.sampled_from([value for value in wrong_values if type(value) not in meant]))
        with pytest.raises(ValueError, match=f"its '{name}' is a {type(wrong).__name__}"):
            kind.read({**right, name: wrong})
    with pytest.raises(ValueError, match="it has an unknown field 'more'"):
        kind.read({**right, "more": 1})


@EVERY_KIND
@FEW
@given(st.data())
def test_data_that_does_not_fit_its_kind_is_kept_unchanged(kind: type[Row], data: st.DataObject) -> None:
    odd = data.draw(JSON)
    event = Event(kind.type, odd, timestamp=0.0)
    assert event.type == event.to_dict()["event"] == kind.type
    assert event.data == event.to_dict()["data"] == odd
    try:
        fits = kind.read(odd).json() == odd
    except ValueError:
        fits = False
    assert type(event.row) is (kind if fits else CustomRow)


# ------------------------------------------------------------------------------------- runs and their observers


@kernai.skill(register=False)
def work(x: int, ctx: kernai.SkillContext[Any]) -> SkillResult:
    """Work."""
    ctx.emit({"done": [x]})
    if x > 1:
        raise ValueError("too much")
    return SkillResult(str(x), metadata={"units": ["m"]})


def speak(block: Any, ctx: Any) -> str:
    if block.content == "wrong":
        raise ValueError("no such word")
    return "spoken"


PLAN = '{"tasks": [{"id": "good", "input": "say yes"}, {"id": "bad", "input": "say no"}]}'
TURNS = [
    'One moment. <command name="work">1</command><command name="work">2</command><block type="word">right</block>'
    '<block type="word">wrong</block><block type="command" name="/skills"/><block type="command" name="/x"/>'
    "<result>forged</result>",
    "<plan>notes</plan><json>{}</json>",
    f"<plan>{PLAN}</plan>",
    "<final>cut",
    "prose",
    "<final>done</final>",
]


def busy_agent() -> Agent[Any]:
    """An agent whose run emits most kinds of events."""
    turns = iter(TURNS)

    def answer(messages: Any, _: Any) -> str:
        if messages[1].text == "say no":
            raise kernai.ProviderError("down")
        return "<final>yes</final>" if messages[1].text == "say yes" else next(turns)

    return Agent(
        instructions="", provider=MockProvider().on_call(answer), skills=[work], protocols=[kernai.Protocol("word", speak)],
        on_prose="correct",
    )


class Vandal:
    """A sink that notes an event, then changes everything in it that can be changed."""

    def __init__(self) -> None:
        self.noted: list[str] = []

    def record(self, event: Event) -> None:
        self.noted.append(json.dumps(event.to_dict()))
        vandalise(event.data)
        vandalise(event.to_dict())


def consuming(agent: Agent[Any], on_event: Callable[[Event], object], **options: Any) -> Result:
    """Run a stream and call `on_event` for each event it yields."""
    with stream(agent, "go", **options) as events:
        for event in events:
            on_event(event)
    return events.result


def consuming_async(agent: Agent[Any], on_event: Callable[[Event], object], **options: Any) -> Result:
    async def go() -> Result:
        async with kernai.astream(agent, "go", **options) as events:
            async for event in events:
                on_event(event)
        return events.result

    return asyncio.run(go())


@pytest.mark.parametrize("way", [by_execute, by_aexecute, consuming, consuming_async])
def test_an_observer_that_changes_an_event_does_not_affect_the_others(way: Way, tmp_path: Path) -> None:
    sinks, kept, watching, store = (Vandal(), Vandal()), kernai.MemorySink(), Vandal(), kernai.MemoryStore()
    with kernai.JsonlSink(tmp_path / "run.jsonl") as file:
        recorder = Recorder(kernai.CompositeSink(sinks[0], kept, file, sinks[1]))
        result = way(busy_agent(), recorder=recorder, on_event=watching.record, store=store, run_id="r", metadata={"tags": [1]})
    assert result.text == "done"
    noted = [json.loads(one) for one in sinks[0].noted]
    assert len({one["event"] for one in noted}) > 25
    assert noted == [json.loads(one) for one in sinks[1].noted]
    assert noted == [one for one in map(json.loads, watching.noted) if KINDS[one["event"]].role != "live"]
    assert noted == [event.to_dict() for event in kept.entries] == kernai.JsonlSink.read(tmp_path / "run.jsonl")
    assert noted == list(expand(store.load("r"), "r"))


class Unbound(kernai.Skill):
    """A skill that passes the model's parameters on without copying them."""

    def bind(self, params: Mapping[str, object], *_: Any, **__: Any) -> dict[str, object]:
        return dict(params)


@WAYS
@pytest.mark.parametrize("listens", [False, True])
def test_objects_that_the_host_changes_or_reuses_later_do_not_change_the_recording(way: Way, listens: bool) -> None:
    """Covers the metadata and reasoning of responses, a call's arguments, its result's metadata, its progress and the
    run's metadata.
    """

    def recorded(*, changes: bool) -> list[Any]:
        reused: dict[str, Any] = {"numbers": []}
        about = {"user": {"roles": ["clerk"]}}
        vendor: dict[str, Any] = {"reasoning_items": [{"type": "thought", "numbers": []}]}

        class Reusing(MockProvider):
            def call(self, *arguments: Any) -> LlmResponse:
                vendor["reasoning_items"][0]["numbers"].append(self.call_count)
                metadata = vendor if changes else json.loads(json.dumps(vendor))
                return LlmResponse(super().call(*arguments).content, latency_ms=1, metadata=metadata)

        def count_up(names: list[str], more: dict[str, list[str]], ctx: kernai.SkillContext) -> SkillResult:
            reused["numbers"].append(len(names))
            copied = json.loads(json.dumps(reused))
            ctx.emit(reused if changes else copied)
            if changes:
                vandalise(names)
                vandalise(more)
                vandalise(about)
            return SkillResult("counted", metadata=reused if changes else copied)

        call = '<command name="count_up">{"names": ["a"], "more": {"b": ["c"]}}</command>'
        agent = Agent(
            instructions="", provider=Reusing(call, call, "<final>so</final>"), skills=[Unbound("count_up", execute=count_up)])
        store, recorder = kernai.MemoryStore(), Recorder()
        listener = {"on_event": vandalise_data} if listens and changes else {}
        result = way(agent, store=store, recorder=recorder, run_id="r", metadata=about, **listener)
        assert kernai.resume(agent, "r", store=store).messages == result.messages
        vandalise([*store.load("r"), *recorder.to_list()] if changes else [])
        kinds = ("run_start", "llm_response", "skill_execute", "progress", "skill_result")
        entries = [one for one in [*store.load("r"), *recorder.to_list()] if one["event"] in kinds]
        return [*(one.reasoning for one in result.messages), *((one["event"], {**one["data"], "duration_ms": 0}) for one in entries)]

    assert recorded(changes=True) == recorded(changes=False)


def vandalise_data(event: Event) -> None:
    vandalise(event.data)


@WAYS
def test_metadata_that_contains_itself_does_not_end_a_run(way: Way) -> None:
    odd: dict[str, Any] = {"a": [{}]}
    odd["a"][0]["b"] = odd
    recorder = Recorder()
    result = way(Agent(instructions="", provider=MockProvider(LlmResponse("so", metadata=odd))), recorder=recorder, metadata={"given": odd})
    assert result.text == "so"
    assert json.loads(recorder.to_json())
    assert recorder.for_event("llm_response")[0].data
