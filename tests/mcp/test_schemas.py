"""Arguments are checked before they are sent. A model can correct what is reported, and no input breaks the check."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import example as hypothesis_example
from hypothesis import given
from hypothesis import strategies as st
from mcp_types import Tool

from kernai._util.api import close_matches
from kernai.mcp.language import tool_line
from kernai.mcp.schemas import example, faults, type_of
from tests.properties import json_data

FILE = {
    "type": "object",
    "properties": {"path": {"type": "string"}, "head": {"type": "integer", "minimum": 1}, "mode": {"enum": ["r", "w"]}},
    "required": ["path"],
}
STRICT = {**FILE, "additionalProperties": False}

REFERS = {
    "$defs": {"Color": {"enum": ["red", "blue"]}, "At": {"properties": {"x": {"type": "integer"}}, "required": ["x"]}},
    "allOf": [{"properties": {"color": {"$ref": "#/$defs/Color"}, "at": {"$ref": "#/$defs/At"}}, "required": ["color", "at"]}],
}

PAIR = {
    "$schema": "http://json-schema.org/draft-07/schema#", "required": ["at"],
    "properties": {"at": {"type": "array", "items": [{"type": "number"}, {"type": "boolean"}]}},
}
PATTERN = {"pattern": "^x"}
TABLE: list[tuple[dict[str, Any], Any, list[str]]] = [
    (REFERS, {"at": {"x": 1}}, ['arguments.color: required, but missing (one of "red", "blue")']),
    (FILE, {"path": "a", "extra": 1}, []),
    (FILE, {}, ["arguments.path: required, but missing (string)"]),
    (FILE, {"path": 3}, ["arguments.path: expected string, received integer 3"]),
    (FILE, {"path": "a", "head": "2"}, ['arguments.head: expected integer, received string "2"']),
    (FILE, {"path": "a", "head": 0}, ["arguments.head: 0 is less than the minimum of 1"]),
    (FILE, {"path": "a", "mode": "x"}, ['arguments.mode: expected one of "r", "w", received string "x"']),
    (FILE, {"pth": "a"}, [
        "arguments.path: required, but missing (string)", "arguments.pth: there is no such argument; did you mean 'path'?",
    ]),
    (STRICT, {"path": "a", "tail": 1}, ["arguments.tail: there is no such argument; there are path, head, mode"]),
    ({"type": "object", "properties": {f"tail{at}": {} for at in range(4)}, "additionalProperties": False}, {"tail": 1},
     ["arguments.tail: there is no such argument; did you mean 'tail3' or 'tail2' or 'tail1'?"]),
    ({"type": "object", "additionalProperties": False}, {"a": 1}, ["arguments.a: there is no such argument; it takes none"]),
    (
        {"type": "object", "properties": {"x": {"type": "array", "items": {"type": "object", "required": ["id"]}}}},
        {"x": [{"id": 1}, {}]},
        ["arguments.x[1].id: required, but missing (any value)"],
    ),
    (
        {"type": "object", "properties": {"x": {"anyOf": [{"type": "string"}, {"type": "null"}]}}},
        {"x": 3},
        ["arguments.x: expected string or null, received integer 3"],
    ),
    ({"properties": {"a": {}, "b": {}}, "anyOf": [{"required": ["a"]}, {"required": ["b", "c"]}]}, {}, ["arguments: needs a or b and c"]),
    ({"properties": {"a": {}}, "required": ["a", "z"]}, {"z": 1}, ["arguments.a: required, but missing (any value)"]),
    ({"oneOf": [{"required": ["a"]}, {"required": ["a", "b"]}]}, {"c": 1}, [
        "arguments: needs a or a and b", "arguments.c: there is no such argument; there are a",
    ]),
    *[
        ({"properties": {"price": {"multipleOf": of}}}, {"price": price}, wrong) for price, of, wrong in [
            (19.99, 0.01, []), (10**400, 0.1, []), (0.35, 0.1, ["arguments.price: 0.35 is not a multiple of 0.1"]),
        ]
    ],
    # many servers mark an argument as required although it has a default
    ({"properties": {"a": {"default": 1}, "b": {}}, "required": ["a", "b"]}, {"b": 1}, []),
    ({"properties": {"a": {"type": "integer", "default": 1}}, "required": ["a"]}, {"a": "1"},
     ['arguments.a: expected integer, received string "1"']),
    ({"properties": {"a": {"default": 1}, "b": {}}, "required": ["a", "b"]}, {}, ["arguments.b: required, but missing (any value)"]),
    ({"properties": {"o": {"properties": {"a": {"default": 1}}, "required": ["a"]}}}, {"o": {}}, []),
    ({"anyOf": [{"properties": {"a": {"default": 1}}, "required": ["a"]}, {"required": ["b"]}]}, {}, []),
    # names that the schema allows without listing them
    *[({"properties": {"b": {"type": "integer"}}, key: {}}, {"a": 1, "b": "x"}, ['arguments.b: expected integer, received string "x"'])
      for key in ("additionalProperties", "patternProperties")],
    ({"anyOf": [{"required": ["b"], "additionalProperties": True}]}, {"a": 1}, ["arguments: needs b"]),
    ({"type": "object", "properties": {"a": {}}}, None, ["arguments: expected object, received null"]),
    ({"minProperties": 2}, {"a": 1}, ["arguments: {'a': 1} does not have enough properties"]),
    # a pattern is never run, so whether it fits is unknown
    *[({"properties": {"a": {**one, "type": "string"}, "n": {"type": "integer"}}}, {"a": "y", "n": "x"}, ['arguments.n: expected integer, received string "x"'])
      for one in ({"not": PATTERN}, {"if": PATTERN, "then": False}, {"oneOf": [PATTERN, {"minLength": 1}]}, {"not": {"not": {"not": PATTERN}}})],
    ({"properties": {"a": {"items": PATTERN, "contains": PATTERN, "maxContains": 0}}}, {"a": ["y"]}, []),
    ({"properties": {"a": {"oneOf": [{**PATTERN, "type": "integer"}, {"type": "null"}]}}}, {"a": "y"},
     ['arguments.a: expected integer or null, received string "y"']),
]
#: arguments under a broken or hostile schema are left to the server
UNCHECKED: list[dict[str, Any]] = [
    {"type": "nonsense"}, {"type": 3}, {"properties": 3}, {"required": "path"}, {"$ref": "#"},
    {"$ref": "https://example.org/schema.json"}, {"properties": {"a": {"$ref": "file:///etc/passwd"}}},
    {"$schema": "https://example.org/none", "type": "object"},
    {"properties": {"a": {"pattern": "(a+)+$"}}}, {"patternProperties": {"(a+)+$": False}, "additionalProperties": False},
    {"properties": {"a": {"$schema": "https://json-schema.org/draft/2020-12/schema", "pattern": "(a+)+$"}}},
    {"not": {"$ref": "#"}}, {"if": {"$ref": "#"}}, {"oneOf": [{"not": {"$ref": "#"}}]},
]


@pytest.mark.parametrize("schema, arguments, messages", [*TABLE, *((one, {"a": "a" * 5000 + "!"}, []) for one in UNCHECKED)])
def test_errors_in_arguments_are_reported_with_their_paths(
    schema: dict[str, Any], arguments: Any, messages: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    def deeper(levels: int) -> list[str]:
        return deeper(levels - 1) if levels else faults(schema, arguments)

    assert [deeper(levels) for levels in range(5)] == [messages] * 5  # however deep the stack is already
    assert capfd.readouterr() == ("", "")


def chain(levels: int, last: dict[str, Any], *keywords: str) -> dict[str, Any]:
    """Return a schema with two references to the next level on each level, so that its paths double."""
    each = {f"l{n}": {word: [{"$ref": f"#/$defs/l{n + 1}"}] * 2 for word in keywords} for n in range(levels)}
    return {"type": "object", "$ref": "#/$defs/l0", "$defs": {**each, f"l{levels}": last}}


LONG_NAMES = [f"the_long_name_of_tool_{n}_which_does_something_useful_with_files_and_folders_{n * 7919}" for n in range(600)]
ALL_REQUIRED = {"properties": {name: {} for name in LONG_NAMES}, "required": LONG_NAMES}
#: schemas that take minutes or years unless the work is bounded
ENDLESS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (chain(28, {"required": ["a"]}, "allOf"), {}),
    (chain(28, {"required": ["a"]}, "anyOf"), {}),
    (chain(28, {"required": ["a"]}, "oneOf", "anyOf"), {}),
    ({**chain(28, {"type": "array", "prefixItems": [{}]}, "allOf"), "unevaluatedItems": False}, {}),
    ({"properties": {"a": {"items": {"enum": [*range(20_000)]}}}}, {"a": [*range(20_000, 30_000)]}),
    ({"properties": {"a": {"items": {"const": [0] * 1000}}}}, {"a": [[*[0] * 999, 1]] * 5000}),
    ({"properties": {"a": {"uniqueItems": True}}}, {"a": [{"n": n} for n in range(3_000)] * 2}),
    ({"allOf": [{"properties": {"a": {"anyOf": [{"type": "integer"}] * 50}}}] * 50}, {"a": "a" * 30_000}),
    ({"properties": {"a": {"items": {"$ref": "#far"}}}, "$defs": {str(n): {"$anchor": f"at{n}"} for n in range(1000)} | {"far": {"$anchor": "far", "type": "null"}}},
     {"a": [None] * 100_000}),
]


@pytest.mark.slow
@pytest.mark.parametrize("schema, arguments", ENDLESS)
def test_arguments_are_left_to_the_server_if_checking_them_takes_too_much_work(schema: dict[str, Any], arguments: dict[str, Any]) -> None:
    assert faults(schema, arguments) == []


@pytest.mark.slow
def test_large_arguments_are_checked_in_less_than_quadratic_time() -> None:
    assert len(faults(ALL_REQUIRED, {})) == 10
    assert len(faults({**ALL_REQUIRED, "additionalProperties": False}, {f"{name}?": 1 for name in LONG_NAMES})) == 10
    assert len(example(ALL_REQUIRED, {f"{name}?": 1 for name in LONG_NAMES})) == 600


def test_a_misspelt_name_is_found_among_thousands_of_long_ones() -> None:
    assert close_matches(LONG_NAMES[500].replace("useful", "usefull").upper(), LONG_NAMES)[0] == LONG_NAMES[500]
    assert close_matches("x" * 1_000_000, LONG_NAMES) == []
    assert close_matches(LONG_NAMES[3][:-1], ["y" * 1_000_000, LONG_NAMES[3]]) == [LONG_NAMES[3]]
    both = ["read_file", "write_file"]
    assert [close_matches(one, both, 3) for one in ("read-file", "readFile", "READ_FILE", "xyz")] == [both[:1], both, both[:1], []]


def test_each_thread_has_its_own_budget_of_work() -> None:
    rows = {"properties": {"a": {"items": FILE}}}
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda n: faults(rows, {"a": [{"path": "a"}] * 2000 + [{"path": n}]}), range(8)))
    assert found == [[f"arguments.a[2000].path: expected string, received integer {n}"] for n in range(8)]


@pytest.mark.parametrize("schema, line", [
    # a required argument with a default is optional
    ({"properties": {"raw": {"type": "boolean", "default": False}, "url": {}}, "required": ["raw", "url"]}, "raw?: boolean, url: any value"),
    (REFERS, 'color: one of "red", "blue", at: any value'),
    ({"properties": {"\x1bof": {"enum": [*range(99)]}}}, f"of?: one of {', '.join(map(str, range(16)))}…"),
    ({"properties": {"a": {"$ref": "#/gone"}}}, "a?: any value"),
    (PAIR, "at: list of 2: (number, boolean)"),
])
def test_a_listing_shows_the_arguments_of_a_tool(schema: dict[str, Any], line: str) -> None:
    assert tool_line(Tool(name="shoot", input_schema={"type": "object", **schema})) == f"- shoot({line})"


@pytest.mark.parametrize("schema, kind", [
    ({"type": ["string", "null"], "format": "date"}, "string (date) or null"),
    ({"oneOf": [{"type": "integer", "minimum": 1}, {"const": "a"}]}, 'integer, at least 1 or "a"'),
    ({"type": "array", "items": {"type": "integer"}, "minItems": 1}, "list of integer"),
    ({"enum": ["x" * 300]}, f'"{"x" * 80}…" (300 characters)'),
    ({"type": [""]}, "any value"), ({"anyOf": 3}, "any value"), (True, "any value"), ([], "any value"),
])
def test_the_type_of_an_argument_is_described_in_a_few_words(schema: Any, kind: str) -> None:
    assert type_of(schema) == kind


JSON = json_data()
KEYWORDS = st.sampled_from([
    "type", "properties", "required", "enum", "const", "items", "anyOf", "oneOf", "not", "$ref", "additionalProperties",
    "minimum", "pattern", "patternProperties", "dependentRequired", "default",
])
OBJECTS = st.dictionaries(st.text(max_size=5), JSON, max_size=3)


@hypothesis_example({"type": [""]}, {})
@given(st.dictionaries(KEYWORDS, JSON, max_size=4), OBJECTS)
def test_no_schema_and_no_arguments_break_the_check(schema: dict[str, Any], arguments: dict[str, Any]) -> None:
    for line in faults(schema, arguments):
        assert line.startswith("arguments")
        assert len(line) < 1000
    assert isinstance(example(schema, arguments), dict)
    assert type_of(schema)


def test_the_example_keeps_given_arguments_and_fills_in_missing_ones() -> None:
    assert example(FILE, {"head": 3, "other": 1}) == {"head": 3, "path": "..."}
    assert [example(FILE, {"pth": one}) for one in ("notes.txt", 3)] == [{"path": "notes.txt"}, {"path": "..."}]
    deep = {"type": "object", "required": ["x"], "properties": {"x": {"type": ["integer", "null"]}}}
    assert example({"properties": {"o": deep, "u": 3}, "required": ["o", "u"]}, {}) == {"o": {"x": 1}, "u": "..."}
    many = {"properties": {"a": {"type": "integer"}, "b": {"enum": ["x"]}, "c": {"default": [1]}}, "required": ["a", "b", "c"]}
    assert [example(one, {}) for one in (many, PAIR)] == [{"a": 1, "b": "x", "c": [1]}, {"at": [1.5, True]}]
    rows = {"properties": {"rows": {"items": {"properties": {"n": {"type": "integer"}, "s": {"type": "string"}}}}}, "minProperties": 2}
    assert [example(rows, {"rows": [{"n": "3", "s": 4}]}), example(REFERS, {"At": {"x": "2"}})] == [{"rows": [{"n": 3, "s": "4"}]}, {"at": {"x": 2}, "color": "red"}]
    assert [example(FILE, {"path": 3, **one}) for one in ({"head": "2"}, {"Head": 2})] == [{"path": "3", "head": 2}] * 2
    tens = {"properties": {"tens": {"type": "array", "items": {"type": "integer", "minimum": 5, "multipleOf": 10}, "minItems": 1}}}
    assert [example(tens, {"tens": given}) for given in ([3, 10], [4])] == [{"tens": [10]}, {}]  # two faults in one place
    strict = {"properties": {"o": {**STRICT, "required": ["mode"]}}}  # a wrong value in an object, and unknown names
    assert example(strict, {"o": {"mode": "x", "Head": 2, "tail": 1}}) == {"o": {"head": 2, "mode": "r"}}
    for items in (deep, {"anyOf": [{"type": "null"}, deep]}):
        nested = {"properties": {"os": {"items": items}}, "required": ["os"]}
        assert example(nested, {"os": [{"x": "2"}, {"y": 3}, {"xs": 4}]}) == {"os": [{"x": 2}, {"y": 3, "x": 1}, {"x": 4}]}
    assert [example(FILE, one) for one in ({"path": "a", "mode": None, "head": 0}, {"path": ["a"], "head": {"n": 1}})] == [{"path": "a"}, {"path": "..."}]
    assert example({"properties": {"a": {}}, "required": ["a", "z"]}, {"z": 1}) == {"z": 1, "a": "..."}
    assert example({"required": ["a"], "anyOf": [{"required": [one]} for one in "yz"]}, {"z": [1]}) == {"z": [1], "a": "..."}
    ways = {"properties": {"a": {}, "b": {"type": "integer"}}, "anyOf": [{"properties": {"a": {"const": 2}}, "required": ["a"]}, {"required": ["b"]}]}
    assert [example(ways, one) for one in ({}, {"b": 1}, {"b": "x"})] == [{"a": 2}, {"b": 1}, {"a": 2}]
    broken = {"properties": {"n": {"$ref": "#/$defs/n"}, "gone": {"$ref": "#/gone"}}, "$defs": {"n": {"type": "integer"}}}
    above = {"$schema": "http://json-schema.org/draft-04/schema#", "properties": {"n": {"type": "integer", "minimum": 0, "exclusiveMinimum": True}}}
    assert [example(broken, {"n": "x"}), example(above, {"n": 0}), example({"additionalProperties": False}, {"other": 1})] == [{}, {}, {}]
