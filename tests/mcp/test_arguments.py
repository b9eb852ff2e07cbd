"""Checking arguments before they are sent: what is wrong is said so that it can be mended, and nothing can break it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernai.mcp.arguments import close_names, example, faults, kind_of

FILE = {
    "type": "object",
    "properties": {"path": {"type": "string"}, "head": {"type": "integer", "minimum": 1}, "mode": {"enum": ["r", "w"]}},
    "required": ["path"],
}
STRICT = {**FILE, "additionalProperties": False}

TABLE: list[tuple[dict[str, Any], dict[str, Any], list[str]]] = [
    (FILE, {"path": "a"}, []),
    (FILE, {"path": "a", "extra": 1}, []),
    (FILE, {}, ["arguments.path: required, but missing (string)"]),
    (FILE, {"path": 3}, ["arguments.path: expected string, received integer 3"]),
    (FILE, {"path": None}, ["arguments.path: expected string, received null"]),
    (FILE, {"path": "a", "head": "2"}, ['arguments.head: expected integer, received string "2"']),
    (FILE, {"path": "a", "head": 0}, ["arguments.head: 0 is less than the minimum of 1"]),
    (FILE, {"path": "a", "mode": "x"}, ['arguments.mode: must be one of "r", "w", received string "x"']),
    (FILE, {"pth": "a"}, [
        "arguments.path: required, but missing (string)", "arguments.pth: there is no such argument; did you mean 'path'?",
    ]),
    (STRICT, {"path": "a", "tail": 1}, ["arguments.tail: there is no such argument; there are path, head, mode"]),
    ({"type": "object", "additionalProperties": False}, {"a": 1}, ["arguments.a: there is no such argument; it takes none"]),
    (
        {"type": "object", "properties": {"x": {"type": "array", "items": {"type": "object", "required": ["id"]}}}},
        {"x": [{"id": 1}, {}]},
        ["arguments.x[1].id: required, but missing (any)"],
    ),
    (
        {"type": "object", "properties": {"x": {"anyOf": [{"type": "string"}, {"type": "null"}]}}},
        {"x": 3},
        ["arguments.x: expected string or null, received integer 3"],
    ),
    ({"type": "object", "properties": {"x": {"type": ["string", "null"]}}}, {"x": True}, [
        "arguments.x: expected string or null, received boolean true",
    ]),
]


@pytest.mark.parametrize("schema, arguments, told", TABLE)
def test_what_is_wrong_with_arguments(schema: dict[str, Any], arguments: dict[str, Any], told: list[str]) -> None:
    assert faults(schema, arguments) == told


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "nonsense"},
        {"type": 3},
        {"properties": 3},
        {"required": "path"},
        {"$ref": "#"},
        {"$ref": "https://example.org/schema.json"},
        {"properties": {"a": {"$ref": "file:///etc/passwd"}}},
        {"$schema": "https://example.org/none", "type": "object"},
        {"properties": {"a": {"pattern": "(a+)+$"}}},
        {"patternProperties": {"(a+)+$": False}, "additionalProperties": False},
    ],
)
def test_a_schema_that_is_broken_or_hostile_is_left_to_the_server(schema: dict[str, Any]) -> None:
    assert faults(schema, {"a": "a" * 5000 + "!"}) == []


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)
KEYWORDS = st.sampled_from([
    "type", "properties", "required", "enum", "const", "items", "anyOf", "oneOf", "not", "$ref", "additionalProperties",
    "minimum", "pattern", "patternProperties", "dependentRequired", "default",
])
OBJECTS = st.dictionaries(st.text(max_size=5), JSON, max_size=3)


@given(st.dictionaries(KEYWORDS, JSON, max_size=4), OBJECTS)
def test_no_schema_and_no_arguments_can_break_it(schema: dict[str, Any], arguments: dict[str, Any]) -> None:
    for line in faults(schema, arguments):
        assert line.startswith("arguments")
        assert len(line) < 1000
    assert isinstance(example(schema, arguments), dict)
    assert kind_of(schema)


def test_the_example_keeps_what_was_given_and_fills_in_what_is_missing() -> None:
    assert example(FILE, {"head": 3, "other": 1}) == {"head": 3, "path": "..."}
    assert example(FILE, {"pth": "notes.txt"}) == {"path": "notes.txt"}
    many = {"properties": {"a": {"type": "integer"}, "b": {"enum": ["x"]}, "c": {"default": [1]}}, "required": ["a", "b", "c"]}
    assert example(many, {}) == {"a": 1, "b": "x", "c": [1]}
    assert faults(many, example(many, {})) == []


@pytest.mark.parametrize(
    "name, known, close",
    [
        ("read-file", ["read_file", "write_file"], ["read_file"]),
        ("readFile", ["read_file", "write_file"], ["read_file", "write_file"]),
        ("READ_FILE", ["read_file"], ["read_file"]),
        ("xyz", ["read_file"], []),
    ],
)
def test_the_closest_names_are_found(name: str, known: list[str], close: list[str]) -> None:
    assert close_names(name, known) == close
