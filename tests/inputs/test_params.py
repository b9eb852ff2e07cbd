"""Reading parameters out of a command block's text."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any, Literal, TypedDict

import pytest
from annotated_types import Gt, Predicate
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

import kernai
from kernai import Agent, Block, Input, MockProvider, Recorder, Skill, SkillInputError, execute, parse
from kernai.jsonio.json_data import JsonRefusedError, JsonSyntaxError, loads
from kernai.jsonio.tolerant_json import read_tolerantly
from tests.properties import assert_linear, json_data


def skill_with(**types: Any) -> Skill:
    return Skill("probe", execute=lambda **given: given, inputs=types)


@dataclass
class Ticket:
    title: str


ONE = skill_with(x=str)
TWO = skill_with(a=str, b=Input(int, default=1))
NONE = skill_with()


@pytest.mark.parametrize("content",
    ["", "plain text", '"quoted"', "[1, 2]", "null", "5", "{", "{name} says hi", "{'a': 1}", '{"a": 1, "a": 2} tail',
     '{"a": NaN, "a": 1}', '{"a": -Infinity}', '{"a": "x\ny"}', "\ufeff{}", "\u00a0{}", '{"a": 01}',
     '{"a": ' + "5" * 5000 + " oops}", '{"a": 1e999, }',
     # JSON with mistakes is not repaired: it may be code
     "{ code: 1 }", "{'a': 1,}", '{"y": 1,}', "```\n{x: 1}\n```", "{x}", "['a']", "{x: y}", '{x: "a", y: "b"}', '{x: "a"} + x',
     '{x: "a"', '{ x: { y: "a" } }'])
def test_text_that_is_not_a_json_object_is_the_value_of_the_only_input(content: str) -> None:
    assert ONE.read(content) == {"x": content}
    assert ONE.call(content) == {"x": content}


@pytest.mark.parametrize("content, expected", [
    (" ", ""),
    ("\n/etc/hosts\n", "/etc/hosts"),
    ("\r\n  a word \t\r\n", "a word"),
    ("\n\n  def f():\n    pass\n\n", "  def f():\n    pass"),
    (" \n\t\n  x\r\n  y  \r\n \t", "  x\r\n  y  "),
    ("\u00a0x\u00a0", "\u00a0x\u00a0"),
])
def test_blank_lines_around_the_only_input_are_removed_but_not_its_indentation(content: str, expected: str) -> None:
    assert ONE.read(content) == {"x": expected}


@pytest.mark.parametrize("content", ["", " ", "\n", "\r\n\t"])
@pytest.mark.parametrize(
    "skill", [skill_with(lines=Input(int, default=None)), skill_with(a=Input(str, default="x"), b=Input(int, default=1))]
)
def test_an_empty_call_uses_the_defaults_if_every_input_has_one(skill: Skill, content: str) -> None:
    assert skill.read(content) == {}
    assert skill.call(content) == {name: one.default for name, one in skill.inputs.items()}


def test_other_text_for_several_inputs_or_none_is_under_input() -> None:
    assert TWO.read("text") == {"input": "text"}
    assert NONE.read("text") == {"input": "text"}
    assert NONE.call("ignored") == {}
    assert skill_with(input=str, n=Input(int, default=1)).call("text") == {"input": "text", "n": 1}
    with pytest.raises(SkillInputError, match="a: required, but missing") as caught:
        TWO.call("text { and }")
    assert "JSON" not in str(caught.value)


@pytest.mark.parametrize("annotation, content, expected", [
    (int, "-3", -3), (Annotated[int, Predicate(bool)], "-3", -3), (int, " \n5\t", 5), (int | None, "5", 5), (int | float, "5", 5), (float | int | None, "5", 5),
    (float, "5", 5.0), (float, "-1e3", -1000.0), (int | float, "5.0", 5.0),
    (bool, " false ", False), (bool | None, "true", True), (bool | int, "1", 1), (Literal[1, 2], "2", 2), (Literal[True], "true", True), (int | Literal["all"], "5", 5),
])  # fmt: skip
def test_a_bare_literal_becomes_a_number_or_boolean_if_that_is_the_only_input(
    annotation: Any, content: str, expected: object
) -> None:
    [value] = skill_with(x=annotation).read(content).values()
    assert value == expected
    assert type(value) is type(expected)


@pytest.mark.parametrize("annotation, content", [
    (int, "five"), (int, ""), (int, "5.0"), (int, "1e3"), (int, "+5"), (int, "1_000"), (int, "007"), (int, "5 6"),
    (int, "٥"), (int, "5\u00a0"), (int, "5" * 5000), (int, "true"),  # noqa: RUF001 - a digit, and not an ASCII one
    (float, "nan"), (float, "NaN"), (float, "inf"), (float, "-Infinity"), (float, "1e999"), (float, ".5"),
    (float, "5."), (float, "1,5"), (float, "0x10"),
    (bool, "True"), (bool, "maybe"), (bool, "1"), (bool, ""),
    (int | None, "null"), (Literal[1, 2], "3"), (list[int], "[1, 2"), (int | list[int], "1]"),
])  # fmt: skip
def test_text_that_is_no_exact_literal_stays_text_and_is_refused_by_the_type(annotation: Any, content: str) -> None:
    skill = skill_with(x=annotation)
    assert skill.read(content) == {"x": content}
    with pytest.raises(SkillInputError, match=r"x: expected .*, received string"):
        skill.call(content)


@pytest.mark.parametrize("annotation", [str, str | int, Any, Literal["5", 5], Decimal])
def test_a_literal_stays_text_where_text_is_allowed(annotation: Any) -> None:
    assert skill_with(x=annotation).read("5") == {"x": "5"}


# ------------------------------------------------------------------------------------- JSON that cannot be taken

@pytest.mark.parametrize("content, reason", [
    ('{"a": 1, "b": 2, "a": 3}', 'the key "a" is given twice'),
    ('{"x": {"deep": [{"k": 1, "k": 1}]}}', 'the key "k" is given twice'),
    ('{"x": ' + "5" * 5000 + "}", "too many digits"),
    ('{"x": 1e999}', "the number 1e999 is out of range"),
    ('{"x": ' + "[" * 200 + "]" * 200 + "}", "deeper than 200 levels"),
    ('{"x":' * 200_000 + "1" + "}" * 200_000, "deeper than 200 levels"),
])
@pytest.mark.parametrize("skill", [ONE, TWO, NONE])
def test_an_object_that_would_lose_something_is_an_input_error_with_the_reason(skill: Skill, content: str, reason: str) -> None:
    params = skill.read(content)
    assert params == {"input": content}  # what the event shows
    with pytest.raises(SkillInputError, match=reason) as caught:
        skill.bind(params)
    assert [path for path, _ in caught.value.faults] == [""]
    assert "Usage: <block" in str(caught.value)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("content, said", [
    ('{"a": 1,\n "b": }', "Expecting value at line 2, column 7 (character 15)"),
    ('{"say": "NaN", "b": -Infinity}', "-Infinity is not a JSON value at line 1, column 21 (character 20)"),
    ('{"a": 1', "Expecting ',' delimiter at line 1, column 8"),
    ("{'a': 1, b}", "Expecting ':' delimiter at line 1, column 11"),
    ("{'a': 'x}", "Unterminated string starting at line 1, column 7"), ("{'a': '\\q'}", "Invalid string at line 1, column 7"),
])
def test_a_fault_after_text_that_looks_like_json_says_what_is_wrong_with_the_json(content: str, said: str) -> None:
    with pytest.raises(SkillInputError) as caught:
        TWO.call(content)
    text = str(caught.value)
    assert text.startswith("a: required, but missing")
    assert "looks like JSON, but is not valid JSON" in text
    assert said in text


@pytest.mark.parametrize("content, expected, repairs", [
    ("{'a': 'it\\'s \"so\"', 'b': 2}", {"a": 'it\'s "so"', "b": 2}, ["single-quoted string"]),
    ("{'a': 'it\\'s'}", {"a": "it's"}, ["single-quoted string"]),
    ("""{"a": "x', 'b': 'y", "c": ''}""", {"a": "x', 'b': 'y", "c": ""}, ["single-quoted string"]),
    ('{"a": "x", "c": 2,}', {"a": "x", "c": 2}, ["trailing comma"]),
    ('{"a": "x", "b": [1, 2,]}', {"a": "x", "b": [1, 2]}, ["trailing comma"]),
    ("{'a': 'C:\\\\\"x\\\\\\' \\\"'}", {"a": "C:\\\"x\\' \""}, ["single-quoted string"]),
    ('{"a": "x", "b": None}', {"a": "x", "b": None}, ["Python literal"]),
    ('{a: "x", b: []}', {"a": "x", "b": []}, ["unquoted key"]),
    ('{"a": "one\ntwo\tthree"}', {"a": "one\ntwo\tthree"}, ["raw control character"]),
    ('{"a": "x" /* why */, // and\n "b": 2 # so\n}', {"a": "x", "b": 2}, ["comment"]),
    ('```json\n{"a": "x"}\n```', {"a": "x"}, ["code fence"]),
    (" ```\n{a: 'x\ty'}\n```\n", {"a": "x\ty"}, ["code fence", "unquoted key", "single-quoted string", "raw control character"]),
])
def test_json_with_mistakes_is_read_if_nothing_is_lost(content: str, expected: dict[str, object], repairs: list[str]) -> None:
    params = TWO.read(content)
    assert params == expected
    assert getattr(params, "repairs", None) == repairs
    assert [*TWO.table.dropped(params)] == [name for name in params if name == "c"]
    assert TWO.read(content, repair=False) == {"input": content}


@pytest.mark.parametrize(
    "content",
    ['{"a": "x"', '{"a": "x', '{"a": "x}', '{"a" "x"}', '{"a": "x" "b": 2}', '{"a": "\\q",}', '{"a": NaN,}', "{'a': 1 2}",
     '{"a": "x",,}', "{1: 2}", "{None: 1}", '{"a": 1}}', '{"a": 0x1}', "{'a': u'x'}", '```\n{"a": "x",}', '[{"a": "x",}]', '{"a": (1, 2)}'],
)  # fmt: skip
def test_json_whose_meaning_would_be_a_guess_is_an_error(content: str) -> None:
    assert TWO.read(content) == {"input": content}
    with pytest.raises(SkillInputError):
        TWO.call(content)


@pytest.mark.parametrize("content, reason", [
    *((twice, "is given twice in one object") for twice in ('{"a": 1, "a": 2,}', "{'a': 1, 'a': 2}", "{'a': 1, \"a\": 2}", '{"a": {"k": 1, k: 2}}')),
    ("{'a': " + "[" * 200 + "]" * 200 + "}", "nested deeper than 200 levels"), ("{'a': " + "9" * 5000 + "}", "too many digits"),
])
def test_an_object_that_would_lose_something_is_not_repaired(content: str, reason: str) -> None:
    with pytest.raises(SkillInputError, match=reason):
        TWO.call(content)


@given(value=json_data())
def test_json_and_python_s_own_notation_are_read_to_the_same_value(value: Any) -> None:
    assert read_tolerantly(json.dumps(value, indent=1)) == (value, [])
    with suppress(ValueError):  # of what Python escapes in its own way
        assert read_tolerantly(repr(value))[0] == value


@given(text=st.text(alphabet="{}[]:,'\"\\/*#\n `ab1-.TrueNon", max_size=40))
def test_strict_json_is_read_the_same_with_and_without_repair(text: str) -> None:
    try:
        strict = loads(text, unique_keys=True)
    except ValueError:
        with suppress(JsonSyntaxError, JsonRefusedError):
            assert read_tolerantly(text)[1]
    else:
        assert read_tolerantly(text) == (strict, [])


@pytest.mark.parametrize("opening, piece, closing", [
    ("", "[/*", ""), ("", "{'", ""), ("{a:'", "\\", ""), ("", "#", ""), ("", "[", ""), ("", "{/*x*/", ""), ("", "``` \n", ""),
    ("['", "a", "']"), ("['", "\\'", "']"), ("['", "\\\\", "']"), ("['", '"', "']"), ("['", "\\n", "']"), ("[", "'a', ", "]"),
    ("[", "'\\'', ", "]"), ("[", "'a' ", "]"), ("['", "a\n", "']"), ("{'a': [", "{'b': 1}, ", "]}"),
])  # fmt: skip
def test_any_text_is_read_or_refused_in_linear_time(opening: str, piece: str, closing: str) -> None:
    def read(size: int) -> None:
        with suppress(JsonSyntaxError, JsonRefusedError):
            read_tolerantly(opening + piece * (4 * size // len(piece)) + closing)

    assert_linear(read)


# ------------------------------------------------------------------------------------- JSON for a single input


@pytest.mark.parametrize("content", [
    '{"x": "/var/a",}', "{'x': '/var/a'}", '```json\n{"x": "/var/a"}\n```', '{x: "/var/a"}',
    '{ // old\n "x": "/var/a"}', '{ # old\n/* "x" * */ "x" /**/ : "/var/a"}',
])
def test_json_that_names_the_input_is_never_its_text(content: str) -> None:
    assert ONE.call(content) == {"x": "/var/a"}
    strict = ONE.read(content, repair=False)
    assert strict == {"x" if content[:2] in ("{x", "``") else "input": content}


@pytest.mark.parametrize("content", ['{"x": "/var/a"', '{"x": "/var/a', "{'x': /var/a}", '{"x":'])
def test_broken_json_that_names_the_input_is_an_error_and_not_its_text(content: str) -> None:
    params = ONE.read(content)
    assert params == {"input": content}
    with pytest.raises(SkillInputError, match=r"it is not valid JSON: .* line 1"):
        ONE.bind(params)


@pytest.mark.parametrize("annotation, content, expected", [
    (dict, '{"status": "open"}', {"status": "open"}),
    (dict, "{status: 'open'}", {"status": "open"}),
    (dict[str, int], '{"a": "1"}', {"a": 1}),
    (dict, "{}", {}), (Input(dict, default=None), "{}", None), (dict | None, '{"status": "open"}', {"status": "open"}),
    (list[str], "['a',]", ["a"]),
    (tuple[int, int], "[1, 2]", (1, 2)),
    (Any, '{"status": "open"}', {"status": "open"}),
    (Any, "[1]", [1]),
    *((Any, text, text) for text in ("[1] see below", "{status: 1}")),
    (dict, '{"x": {"status": "open"}}', {"status": "open"}),
    (Any, '{"x": 5}', 5),
])
def test_a_single_input_of_any_structure_accepts_json_that_does_not_name_it(
    annotation: Any, content: str, expected: object
) -> None:
    kernai.configure(repair=True)
    assert skill_with(x=annotation).call(content) == {"x": expected}


@pytest.mark.parametrize("inputs, content, shown", [
    ({"x": str}, '{"status": "<open>"}', '{"x": "{\\"status\\": \\"\\u003copen>\\"}"}'),
    ({"x": Ticket}, '{"title": "leak"}', '{"x": {"title": "leak"}}'),
    ({"x": list[str]}, '["a", "b"]', '{"x": ["a", "b"]}'), ({"x": Literal["a", "b"]}, '"b"', '{"x": "b"}'),
    ({"x": list[Ticket]}, "[{'title': 'leak'}]", '{"x": [{"title": "leak"}]}'),
    ({"x": list[Ticket]}, '{"x": [{"titel": "leak"}]}', '{"x": [{"title": "leak"}]}'),
    # a number in quotes, and a text without them
    ({"x": int, "y": bool}, '{"x": "5", "y": "true", "z": "1"}', '{"x": 5, "y": true}'),
    ({"x": str, "y": str}, '{"x": 2022, "y": "<"}', '{"x": "2022", "y": "\\u003c"}'),
    ({"x": list[dict[str, int]], "y": Input(int, default=3)}, '{"x": [{"a": 1}, {"a": "2"}]}', '{"x": [{"a": 1}, {"a": 2}]}'),
    ({"x": float}, '{"x": "1.5",}', '{"x": 1.5}'), ({"x": list[dict[str, int]]}, '{"x": "[{\\"a\\": 1}]"}', '{"x": [{"a": 1}]}'),
    # a sample, if something else is wrong too, or if it is unclear what was meant
    ({"x": int, "y": int}, '{"x": "5"}', '{"x": 1, "y": 1}'),
    *(({"x": int}, content, '{"x": 1}') for content in ('{"x": "five"}', '{"x": "1.5"}', '{"x": [5]}', '{"status": 1}')),
    *(({"x": list[str]}, content, '{"x": ["..."]}') for content in ("[1]", '["a"')),
    ({"x": Literal["a"]}, '{"x": 5}', '{"x": "a"}'), ({"x": str}, '{"x": 3.10}', '{"x": "..."}'),
    ({"x": Decimal}, '{"x": 3.10}', '{"x": "3.1"}'), ({"x": Annotated[Decimal, Gt(20)]}, '{"x": 4}', '{"x": "21"}'),
])
def test_json_with_another_structure_or_with_wrong_quotes_is_an_error_that_shows_the_call_to_copy(
    inputs: dict[str, Any], content: str, shown: str
) -> None:
    skill = skill_with(**inputs)
    with pytest.raises(SkillInputError) as caught:
        skill.call(content)
    usage = str(caught.value).rpartition("\nUsage: ")[2]
    assert usage == f'<block type="command" name="probe">{shown}</block>'
    skill.call(parse(usage).blocks[0].content)


# ------------------------------------------------------------------------------------------- fields that do not exist


@dataclass
class Filters:
    status: str | None = None
    limit: int = 10
    inner: Filters | None = None


class Sorting(TypedDict, total=False):
    order: str


class Loose(BaseModel):
    order: str = ""


@pytest.mark.parametrize("annotation, value, dropped, meant", [
    (Filters, {"statuss": "open"}, ["x.statuss"], {"x.statuss": "x.status"}),
    (Filters, {"status": None, "statuss": "open", "z": 1}, ["x.statuss", "x.z"], {}),
    (Filters | None, {"inner": {"limt": 1}, "a b": 1}, ['x["a b"]', "x.inner.limt"], {"x.inner.limt": "x.inner.limit"}),
    (list[Filters], [{}, {"limits": 1}], ["x[1].limits"], {"x[1].limits": "x[1].limit"}),
    (tuple[int, Filters], [1, {"z": 1}], ["x[1].z"], {}),
    (list[Filters], [{"limits": 1}] * 25, [f"x[{at}].limits" for at in range(25)], {f"x[{at}].limits": f"x[{at}].limit" for at in range(25)}),
    (dict[str, Sorting], {"any": {"orders": ""}}, ["x.any.orders"], {"x.any.orders": "x.any.order"}),
    (Filters | Sorting, {"order": "", "limit": 1, "z": 1}, ["x.z"], {}),
    (Annotated[Sorting, Predicate(lambda _: True)], {"z": 1}, ["x.z"], {}),
    # types that accept any field, or check their fields themselves
    (Filters | dict[str, int], {"z": 1}, [], {}),
    (Loose, {"z": 1}, [], {}),
])
def test_fields_that_no_record_has_are_reported_with_their_place(
    annotation: Any, value: object, dropped: list[str], meant: dict[str, str]
) -> None:
    skill = Skill("find", execute=lambda x: "found", inputs={"x": annotation})
    recorder = Recorder()
    agent = Agent(instructions="", skills=[skill])
    provider = MockProvider(str(Block("command", "find", json.dumps({"x": value}))), "<final>done</final>")
    messages = execute(agent, "Go.", provider=provider, recorder=recorder).messages
    (call,) = recorder.for_event("skill_execute")
    assert call.data.get("dropped", []) == dropped
    assert messages[2].text.startswith('<block type="result" name="find">found</block>')
    hints = [f"{json.dumps(name)}, did you mean {json.dumps(one)}?" for name, one in meant.items()]
    assert [hint in messages[2].text for hint in hints] == [at < 20 for at in range(len(hints))]
    if dropped:  # a change by a person or a middleware is refused
        hint = f"; did you mean {meant[dropped[0]]!r}?" if dropped[0] in meant else ""
        with pytest.raises(ValueError, match=re.escape(f"{dropped[0]!r} is not an input of find{hint}")):
            skill.rebind({}, {"x": value})


# ----------------------------------------------------------------------------------------------------- properties

OBJECTS = st.dictionaries(st.text(), json_data(), max_size=4)


@given(value=OBJECTS, ascii_only=st.booleans(), space=st.sampled_from(["", " ", "\n", "\t \r\n"]))
def test_the_keys_of_any_json_object_are_the_parameters(value: dict[str, object], ascii_only: bool, space: str) -> None:
    for skill in (ONE, TWO, NONE):
        assert skill.read(space + json.dumps(value, ensure_ascii=ascii_only) + space) == value


@given(content=st.text(alphabet='{}[]":,\\ \n01eE.-+aN"tfuI') | st.text())
def test_reading_never_fails_and_loses_nothing(content: str) -> None:
    for skill in (ONE, TWO, NONE, skill_with(x=float)):
        params = skill.read(content)
        assert isinstance(params, dict)
        with suppress(SkillInputError):
            skill.bind(params)
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        assert content in TWO.read(content).values()
    else:
        if not isinstance(value, dict):
            assert TWO.read(content) == {"input": content}
