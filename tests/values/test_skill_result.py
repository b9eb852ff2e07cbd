"""What a skill returned, in one shape."""

from __future__ import annotations

import enum
import json
import math
import types
import uuid
from collections import OrderedDict, namedtuple
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernai import KernaiError, Media, Result, SkillResult, Stop, StopReason, Usage
from kernai.values.skill_result import plain

IMAGE = Media.from_bytes(b"a", mime_type="image/png")
SOUND = Media.from_bytes(b"b", mime_type="audio/wav")


class Colour(enum.StrEnum):
    RED = "red"


class Level(enum.Enum):
    LOW = 1


@dataclass
class Item:
    name: str
    when: date | None = None
    inner: list[Item] = field(default_factory=list)


Pair = namedtuple("Pair", ["a", "b"])  # noqa: PYI024 - a named tuple without types is what is tested


class Model:
    """Speaks as pydantic's models do."""

    def model_dump(self, mode: str = "python") -> dict[str, object]:
        return {"n": 1, "mode": mode}

    def model_dump_json(self) -> str:
        return json.dumps(self.model_dump(mode="json"))


class Nameless:
    def __str__(self) -> str:
        return "nameless"


class Count:
    """Counts as an integer, as those of numpy do."""

    def __index__(self) -> int:
        return 7

    __int__ = __index__


class Array(Nameless):
    """Like an array of numpy, or without items like its longdouble, for which Python has no number."""

    def __init__(self, *items: object) -> None:
        self.tolist = lambda: items or self


PARTS: list[tuple[object, tuple[str | Media, ...]]] = [
    ("text", ("text",)),
    ("", ()),
    (None, ()),
    (IMAGE, (IMAGE,)),
    ([IMAGE, "between", SOUND], (IMAGE, "between", SOUND)),
    (["Ada", "Bob"], ('["Ada", "Bob"]',)),
    ([], ("[]",)),
    (True, ("True",)),
    (Colour.RED, ("red",)),
    (Level.LOW, ("Level.LOW",)),
    (datetime(2024, 1, 2, 3, 4), ("2024-01-02 03:04:00",)),  # noqa: DTZ001 - without a zone on purpose
    (Nameless(), ("nameless",)),
    (Item, (str(Item),)),
    (ValueError("oops"), ("oops",)),
    ({"a": 1}, ('{"a": 1}',)),
    ({3, 1, 2}, ("[1, 2, 3]",)),
    ([1, "a", None], ('[1, "a", null]',)),
    (Pair("a", "b"), ('["a", "b"]',)),
    (Item("é", date(2024, 1, 2), [Item("b")]),
     ('{"name": "é", "when": "2024-01-02", "inner": [{"name": "b", "when": null, "inner": []}]}',)),
    (Model(), ('{"n": 1, "mode": "json"}',)),
    (types.MappingProxyType({"a": 1}), ('{"a": 1}',)),
    ({"text": "see", "image": IMAGE, "more": [SOUND, IMAGE]},
     (f'{{"text": "see", "image": "{IMAGE.id}", "more": ["{SOUND.id}", "{IMAGE.id}"]}}', IMAGE, SOUND)),
    ([IMAGE, 5], (f'["{IMAGE.id}", 5]', IMAGE)),
]


@pytest.mark.parametrize("value, parts", PARTS)
def test_whatever_a_skill_returns_becomes_parts(value: object, parts: tuple[str | Media, ...]) -> None:
    result = SkillResult.of(value)
    assert result.parts == parts
    assert result.metadata == {}


SHARED = [1]
PLAIN: list[tuple[object, object]] = [
    (OrderedDict(b=1, a=2), {"b": 1, "a": 2}),
    ({"x": datetime(2024, 1, 2, 3, 4)}, {"x": "2024-01-02T03:04:00"}),  # noqa: DTZ001
    ([time(12, 30), timedelta(seconds=90)], ["12:30:00", "0:01:30"]),
    ([Decimal("1.50"), uuid.UUID(int=1)], ["1.50", "00000000-0000-0000-0000-000000000001"]),
    ([Colour.RED, Level.LOW, PurePosixPath("/a/b")], ["red", 1, "/a/b"]),
    ([{3, 1, 2}, frozenset("ba")], [[1, 2, 3], ["a", "b"]]),
    ([math.nan, math.inf, -math.inf], ["NaN", "Infinity", "-Infinity"]),
    ([Nameless()], ["nameless"]),
    ([SkillResult("t", metadata={"k": 1})], [{"text": "t", "media": [], "metadata": {"k": 1}}]),
    ([IMAGE], [IMAGE.id]),
    ({1: 0, None: 0, 2.5: 0, False: 0, date(2024, 1, 2): 0}, {"1": 0, "null": 0, "2.5": 0, "false": 0, "2024-01-02": 0}),
    ([Count(), Array(1.5, True), Array()], [7, [1.5, True], "nameless"]),
    (Result("hi", StopReason.FINAL, 1, Usage(), (), "r"), Result("hi", StopReason.FINAL, 1, Usage(), (), "r").to_dict()),
    ([SHARED, SHARED], [[1], [1]]),
]


@pytest.mark.parametrize("value, expected", PLAIN)
def test_values_inside_data_become_json(value: object, expected: object) -> None:
    assert plain(value) == expected
    assert json.loads(SkillResult.of([value, 0]).text) == [expected, 0]


def test_times_of_numpy_are_written_as_times() -> None:
    at = np.datetime64("2020-01-02T03:04:05", "ns")  # as pandas has them
    assert plain([at, np.array([at])]) == ["2020-01-02T03:04:05", ["2020-01-02T03:04:05"]]


def test_the_text_of_data_is_not_escaped() -> None:
    assert SkillResult.of(["é"]).text == '["é"]'


def circular() -> list[object]:
    value: list[object] = [1]
    value.append({"again": value})
    return value


def deep(levels: int) -> list[object]:
    value: list[object] = []
    for _ in range(levels - 1):
        value = [value]
    return value


async def forgotten() -> None: ...
FORGOTTEN = forgotten()
FORGOTTEN.close()  # otherwise Python warns about it


BAD: list[tuple[object, str]] = [
    (b"png", r"bytes have no text: return Media.from_bytes"),
    ({"image": b"png"}, "bytes have no text"),
    (object(), "a value of type object has no text of its own: return text, a dict"),
    ("Ada".title, "a value of type builtin_function_or_method has no text of its own"),
    ({"name": Nameless().__str__}, "a value of type method has no text"), (Future[str](), "a value of type Future has no text"),
    (Stop("guardrail", "no"), "a Stop was returned, which has no effect: raise it"),
    (FORGOTTEN, "a coroutine was not awaited: write the skill as 'async def'"),
    (circular(), "a list that contains itself"),
    *((deep(levels), "deeper than 200 levels") for levels in (201, 50_000)),
    ({"1": "a", 1: "b"}, "two keys of a dict are both '1'"),
]


@pytest.mark.parametrize("value, said", BAD, ids=range(len(BAD)))  # pytest would print the values, which cannot be
def test_what_has_no_honest_text_is_an_error_that_says_why(value: object, said: str) -> None:
    with pytest.raises(KernaiError, match=said):
        SkillResult.of(value)


def test_two_hundred_levels_are_written() -> None:
    assert SkillResult.of(deep(200)).text == "[" * 200 + "]" * 200


def test_text_media_and_metadata_of_a_result() -> None:
    result = SkillResult("see", [IMAGE, SOUND], {"pages": 2})
    assert SkillResult.of(result) is result
    assert result.parts == ("see", IMAGE, SOUND)
    assert (result.text, result.media, result.metadata) == ("see", (IMAGE, SOUND), {"pages": 2})
    assert (str(result), "see" in repr(result)) == ("see", True)
    assert SkillResult.of(["a", IMAGE, "b"]).text == "ab"
    assert (SkillResult(media=IMAGE).parts, SkillResult("a", None).parts) == ((IMAGE,), ("a",))
    assert [SkillResult(value).text for value in (5, {"a": [1]})] == ["5", '{"a": [1]}']
    assert SkillResult(["a", IMAGE], [IMAGE]).parts == ("a", IMAGE, IMAGE), "nothing is dropped"
    assert SkillResult([IMAGE, "a"]).__replace__(metadata={"b": 1}).parts == (IMAGE, "a"), "in their order"


def test_a_result_is_a_value_that_cannot_be_changed() -> None:
    given: dict[str, object] = {"a": 1}
    result = SkillResult("t", metadata=given)
    given["b"] = 2
    result.metadata["c"] = 3
    assert result.metadata == {"a": 1}
    for name in ("text", "parts", "media", "metadata"):
        with pytest.raises(AttributeError):
            setattr(result, name, None)
    assert SkillResult("a") == SkillResult.of("a")
    assert hash(SkillResult("a")) == hash(SkillResult("a"))
    assert SkillResult("a") not in (SkillResult("a", metadata={"k": 1}), "a")


@pytest.mark.parametrize("options, said", [
    ({"media": ["path.png"]}, "media may hold Media only, got str"), ({"media": PurePosixPath("a.png")}, "media may hold Media only, got Pure"),
    ({"metadata": [1]}, "metadata must be a mapping, got list"),
])
def test_a_wrong_argument_is_a_type_error(options: dict[str, Any], said: str) -> None:
    with pytest.raises(TypeError, match=said):
        SkillResult(**options)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.dates() | st.decimals() | st.uuids(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4) | st.tuples(inner, inner),
    max_leaves=15,
)


@pytest.mark.slow
@given(value=VALUES)
def test_any_data_becomes_valid_json_that_shares_nothing_with_it(value: object) -> None:
    made = plain(value)
    text = json.dumps(made, allow_nan=False)
    assert json.loads(text) == made
    assert not isinstance(value, (list, dict)) or made is not value
    assert all(isinstance(part, str) for part in SkillResult.of(value).parts)
