"""JSON out of anything, and data out of JSON that a model wrote."""

from __future__ import annotations

import enum
import json
import math
import sys
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kernai import Media, StopReason
from kernai.jsonio.json_data import (
    MAX_DEPTH,
    JsonRefusedError,
    JsonSyntaxError,
    copied,
    digest,
    dumps,
    dumps_data,
    jsonable,
    loads,
    loads_flat,
)


@dataclass
class Point:
    x: int
    y: Any


class Rank(enum.IntEnum):
    FIRST = 1


class Named(str, enum.Enum):  # noqa: UP042 - not a StrEnum, which `str` shows as its value
    N = "n"


class Exporting:
    def to_dict(self) -> dict[str, object]:
        return {"point": Point(1, {2})}


class Grumpy:
    def __str__(self) -> str:
        raise RuntimeError("no")

    def to_dict(self) -> dict[str, object]:
        raise RuntimeError("no")


@pytest.mark.parametrize("value,data", [
    (None, None), (True, True), (3, 3), ("é", "é"), (1.5, 1.5), (-0.0, -0.0), (Named.N, "n"), (Rank.FIRST, 1),
    (StopReason.FINAL, "final"), ([1, (2, [3])], [1, [2, [3]]]), ({"a": {"b": ()}}, {"a": {"b": []}}),
    (type("Text", (str,), {"__str__": repr})("é"), "é"), (MappingProxyType({"a": 1}), {"a": 1}), ({1: 2, None: 3}, {"1": 2, "None": 3}), ({Named.N: "a"}, {"n": "a"}), (frozenset({1}), [1]),
    (Point(1, Point(2, None)), {"x": 1, "y": {"x": 2, "y": None}}), (Exporting(), {"point": {"x": 1, "y": [2]}}),
    (Decimal("1.10"), "1.10"), (date(2026, 1, 2), "2026-01-02"), (ValueError("x"), "x"),
    (float("nan"), "nan"), (float("inf"), "inf"), (-math.inf, "-inf"), (b"a", "b'a'"), ({"b": 1, "a": 2}, {"b": 1, "a": 2}),
    (10**4000, hex(10**4000)), (1 - 10**4000, 1 - 10**4000), ({"a": Grumpy()}, {"a": "<Grumpy>"}), ({Grumpy(): 1}, {"<Grumpy>": 1}),
])  # fmt: skip
def test_anything_becomes_json_data(value: object, data: object) -> None:
    assert jsonable(value) == data
    assert dumps(value) == json.dumps(data, separators=(",", ":"))


ODD = [
    [Grumpy()], Point, Exporting, Media, 10**5000, {"n": -(10**5000)}, {10**5000: 1}, iter(()), int,
]  # fmt: skip


@pytest.mark.parametrize("value", ODD, ids=lambda value: type(value).__name__)
def test_a_part_that_cannot_be_written_does_not_lose_the_rest(value: object) -> None:
    assert json.loads(dumps({"before": 1, "odd": value, "after": 2}))["after"] == 2


def test_data_that_contains_itself_ends_soon() -> None:
    inside, mapping = list[Any](), dict[str, Any]()
    inside += [inside, inside]
    mapping["self"] = mapping
    assert json.loads(dumps({"inside": inside, "mapping": mapping, "after": 1})) == {
        "inside": ["…", "…"], "mapping": {"self": "…"}, "after": 1}
    assert copied(mapping) == {"self": "…"}


def nested(levels: int) -> Any:
    made: Any = "bottom"
    for _ in range(levels):
        made = [made]
    return made


def test_what_nests_too_deep_is_cut() -> None:
    assert json.dumps("…") in dumps(nested(5000))
    assert ["bottom" in dumps(nested(levels)) for levels in (MAX_DEPTH, 5000)] == [True, False]


TEXT = st.text(st.characters() | st.sampled_from('\ud800\udfff\x00\u2028"'))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT | st.binary() | st.dates() | st.complex_numbers(),
    lambda inner: st.lists(inner) | st.dictionaries(TEXT | st.integers(), inner) | st.tuples(inner, inner),
    max_leaves=20,
)


@given(VALUES)
def test_the_text_is_one_line_of_strict_ascii_json(value: object) -> None:
    text = dumps(value)
    assert text.isascii()
    assert "\n" not in text
    assert jsonable(loads(text)) == loads(text) == jsonable(value)


@pytest.mark.parametrize("text,said", [
    *((text, "line 1") for text in ("", "{", "[1,]", "1 2", "NaN", "[Infinity]", "-Infinity", "{'a': 1}")),
    ("[1,\n 2 3]", "Expecting ',' delimiter at line 2, column 4 (character 7)"), ("\n]", "line 2, column 1 (character 1)"),
    ('{"a": "NaN", "b": NaN}', "NaN is not a JSON value at line 1, column 19 (character 18)"),
    *((broken, "line 1") for broken in ("[]" * 5000, '"' + "[" * 5000)),  # neither nests deeply
    ('{"a": 1, "a": 2} tail', "Extra data at line 1, column 18"),
])  # fmt: skip
def test_a_syntax_error_says_what_is_wrong_and_where(text: str, said: str) -> None:
    with pytest.raises(JsonSyntaxError) as error:
        loads(text, unique_keys=True)
    assert said in str(error.value)


_KEYS = st.sampled_from(["a", "b", "a:", ":", "{"])
_PAIRS = st.recursive(
    st.sampled_from([1, "a", "x: y", "{[", None]),
    lambda inner: st.lists(inner, max_size=3) | st.lists(st.tuples(_KEYS, inner), max_size=3).map(tuple),
    max_leaves=8,
)


@given(_PAIRS, st.sampled_from([",", " ,\n"]), st.sampled_from([":", " : "]), st.sampled_from(["", " ", "\r\n"]))
def test_the_text_is_read_as_the_json_module_reads_it_but_for_keys_that_come_twice(
    data: Any, comma: str, colon: str, space: str
) -> None:
    def written(value: Any) -> str:  # an object is a tuple of its pairs
        if isinstance(value, tuple):
            return f"{{{comma.join(json.dumps(key) + colon + written(one) for key, one in value)}}}"
        return f"[{comma.join(map(written, value))}]" if isinstance(value, list) else json.dumps(value)

    def has_twice(value: Any) -> bool:
        if isinstance(value, tuple):
            return len(dict(value)) < len(value) or any(has_twice(one) for _, one in value)
        return isinstance(value, list) and any(map(has_twice, value))

    text = f"{space}{written(data)}{space}"
    assert loads(text) == json.loads(text)
    assert loads_flat(text) in (None, loads(text))
    assert loads_flat(f"{text}x") is None
    if has_twice(data):
        assert loads_flat(text) is None
        with pytest.raises(JsonRefusedError, match="is given twice"):
            loads(text, unique_keys=True)
    else:
        assert loads(text, unique_keys=True) == json.loads(text)


@pytest.mark.parametrize("text,said", [
    ("[1e999]", "the number 1e999 is out of range"), ("9" * 5000, "too many digits"), ("[" * 300, "nested deeper"),
    ('[{"a": 1, "a": 2}, ' + "[" * 200 + "]" * 200 + "]", "nested deeper"), ('{"a": 0, "é": 1, "\\u00e9": 2}', '"é" is given twice'),
    ('{"a": 1, "a": 2}'.replace("a", "b" * 80), '"b{80}" is given twice'), ('{"a": 1, "a": 2}'.replace("a", "b" * 81), r'"b{80}…" \(81 characters\)'),
])  # fmt: skip
def test_of_several_reasons_not_to_use_json_the_depth_comes_first(text: str, said: str) -> None:
    with pytest.raises(JsonRefusedError, match=said):
        loads(text, unique_keys=True)


def test_a_stack_without_a_bound_is_not_used_up() -> None:
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(10**6)
    try:
        assert loads_flat('{"a": ' + "[" * 500_000) is None
        with pytest.raises(JsonRefusedError, match="nested deeper"):
            loads("[" * 500_000)
    finally:
        sys.setrecursionlimit(before)


@pytest.mark.parametrize("opening,closing", ["[]", ('{"a":', "}")])
def test_nesting_is_bounded_but_for_brackets_in_strings(opening: str, closing: str) -> None:
    assert loads_flat('{"a": [1]}') == {"a": [1]}, "most calls are read this way"
    assert loads_flat('{"a": ' + (opening * 4_900)[:4_900]) is None
    assert loads(opening * MAX_DEPTH + '"' + "[{" * 5000 + '\\"["' + closing * MAX_DEPTH)
    for deep in (MAX_DEPTH + 1, 200_000):
        with pytest.raises(ValueError, match="nested deeper than 200"):
            loads(opening * deep + "1" + closing * deep)


@example('[["[')  # exactly as deep as is allowed
@given(st.lists(st.sampled_from(["[", "]", "{", "}", '"', "\\", "a", ","]), max_size=40).map("".join))
def test_the_depth_is_that_of_the_brackets_outside_of_strings(text: str) -> None:
    text = text.replace("[", "[" * 100).replace("{", "{" * 100)
    depth = deepest = 0
    in_string = escaped = False
    for sign in text:
        if in_string:
            in_string, escaped = not (sign == '"' and not escaped), sign == "\\" and not escaped
        elif sign == '"':
            in_string = True
        else:
            depth += (sign in "[{") - (sign in "]}")
            deepest = max(deepest, depth)
    try:
        loads(text)
        said = ""
    except ValueError as error:
        said = str(error)
    assert ("nested deeper" in said) is (deepest > MAX_DEPTH)


@given(VALUES | st.sampled_from([[math.nan], {1, 2}, {"a": object}, {("a",): 1}, Exporting(), Grumpy()]))
def test_data_are_written_alike_without_the_walk(value: Any) -> None:
    assert dumps_data(value) == dumps(value)


def test_a_digest_does_not_depend_on_the_order_of_keys() -> None:
    assert digest({"a": 1, "b": {"c": 2, "d": 3}}) == digest({"b": {"d": 3, "c": 2}, "a": 1})
    assert [digest(""), digest({})] == ["e3b0c44298fc", "44136fa355b3"]  # of SHA-256
