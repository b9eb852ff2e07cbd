"""Sixty types, each with valid and invalid answers in every format; and generated types, checked with jsonschema."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, NotRequired, TypedDict, TypeVar, Union
from uuid import UUID

import annotated_types as at
import jsonschema  # type: ignore[import-untyped]  # its stubs are a package of their own
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typing_extensions import TypeAliasType

from kernai import Context
from kernai.blocks.parser import parse
from kernai.errors import SkillInputError
from kernai.inputs.answer_type import AnswerType
from kernai.inputs.trusted import Trusted
from tests.properties import json_data

NEW = sys.version_info >= (3, 12)
T = TypeVar("T")


class Colour(Enum):
    RED = "red"
    BLUE = "blue"
    BOTH = "red", "blue"


class Point(NamedTuple):
    x: int
    y: int = 0


class Options(TypedDict):
    name: str
    size: NotRequired[int]


@dataclass(frozen=True)
class Tag:
    Text = str
    name: Text  # type: ignore[valid-type]  # a name in the class


@dataclass
class Page(Generic[T]):
    items: list[T]
    more: bool = False


@dataclass(kw_only=True)
class Labelled(Page[int], Generic[T]):
    label: T


@dataclass
class Numbers(Labelled[str]):
    total: int = 0


class Dated(TypedDict, Generic[T]):
    day: T


class Noted(Dated[int], Generic[T]):
    note: NotRequired[T]


class Planned(Dated[date]):
    place: str


class Held(Planned): ...


class HeldByBoth(Held, Dated[date]): ...


def with_own_variable() -> Any:
    """A class as Python 3.12 makes it of ``class Own[U]``: nothing but the class itself knows its variable."""
    U = TypeVar("U")

    @dataclass
    class Own(Generic[U]):
        __type_params__ = (U,)  # type: ignore[misc]  # a value here
        value: U
        next: Own[U] | None = None

    return Own


OWN = with_own_variable()


@dataclass
class Tree:
    name: str
    children: list[Tree] = dataclasses.field(default_factory=list)


@dataclass
class Node(Generic[T]):
    value: T
    next: Node[T] | None = None


class Order(pydantic.BaseModel):
    number: int
    note: str | None = None


@pydantic.dataclasses.dataclass
class Sale:
    amount: int = pydantic.Field(ge=1)
    note: str = pydantic.Field(default="-")
    paid: bool = False


class Paid(pydantic.BaseModel):
    to: Trusted[str]


class Between:
    """A constraint of another library, with a bound that is not set."""

    def __init__(self, le: int | None, ge: int | None) -> None:
        self.le, self.ge = le, ge


UserId = NewType("UserId", int)
Code = NewType("Code", str)
Pair = TypeAliasType("Pair", tuple[T, T], type_params=(T,))
Endless = TypeAliasType("Endless", "int | Endless | None")  # type: ignore[misc]  # on purpose
Groups = TypeAliasType("Groups", "dict[str, Annotated[list[Groups], at.MinLen(1)]] | int")
Nested = TypeAliasType("Nested", "list[Nested] | int")

UUID_TEXT = "123e4567-e89b-42d3-a456-426614174000"
NEW_YEAR = datetime.fromisoformat("2026-01-01T00:00:00Z")
#: the type, a valid answer and its value, and an invalid one
TYPES: list[tuple[Any, Any, Any, Any]] = [
    (int, 5, 5, "5.5"),
    (float, 1, 1.0, "x"),
    (Union[None, int], None, None, "x"),  # noqa: UP007 - both may be written
    (date, "2026-11-20", date(2026, 11, 20), "20.11."),
    (datetime, "2026-11-20T12:00:00", datetime(2026, 11, 20, 12), "noon"),  # noqa: DTZ001 - as it was given
    (time, "12:00:00", time(12), "noon"),
    (Decimal, "19.99", Decimal("19.99"), "a"),
    (UUID, UUID_TEXT, UUID(UUID_TEXT), "1"),
    (list[int], [1, 2], [1, 2], ["a"]),
    (tuple[int, str], [1, "a"], (1, "a"), [1]),
    (tuple[int, ...], [1, 2], (1, 2), ["a"]),
    (set[int], [1, 2], {1, 2}, [1, 1]),
    (frozenset[str], ["a"], frozenset("a"), ["a", "a"]),
    (set[Tag], [{"name": "a"}], {Tag("a")}, [{"name": "a"}, {"name": "a"}]),
    (Sequence[int], [1], [1], 1),
    (Mapping[str, int], {"a": 1}, {"a": 1}, {"a": "b"}),
    (Mapping, {"a": 1}, {"a": 1}, []),
    (int | list[int], [1], [1], "a"),
    (Literal["a", 1], "a", "a", "b"),
    (Colour, "red", Colour.RED, "green"), (Colour, "BOTH", Colour.BOTH, ["red", "blue"]),
    (Point, {"x": 1}, Point(1), {"y": 1}),
    (list[Point], [{"x": 1, "y": 2}], [Point(1, 2)], [[1, 2]]),
    (Options, {"name": "a"}, {"name": "a"}, {"size": 1}),
    (Tag, {"name": "a"}, Tag("a"), {}),
    (Page[int], {"items": [1]}, Page([1]), {"items": ["a"]}),
    (Page[Page[Page[str]]], {"items": [{"items": [{"items": ["a"]}]}]}, Page([Page([Page(["a"])])]), {"items": ["a"]}),
    (Numbers, {"items": [1], "label": "a", "total": 1}, Numbers([1], label="a", total=1), {"items": ["a"], "label": "a"}),
    (Noted[str], {"day": 1, "note": "a"}, {"day": 1, "note": "a"}, {"day": "a"}),
    *[(it, {"day": "2026-11-20", "place": "a"}, {"day": date(2026, 11, 20), "place": "a"}, {"day": 1, "place": "a"})
      for it in (Planned, HeldByBoth, *([Held] if NEW else []))],
    (Tree, {"name": "a", "children": [{"name": "b"}]}, Tree("a", [Tree("b")]), {"name": "a", "children": [1]}),
    (Node[int], {"value": 1, "next": {"value": 2}}, Node(1, Node(2)), {"value": 1, "next": {"value": "a"}}),
    (OWN[int], {"value": 1, "next": {"value": 2}}, OWN(1, OWN(2)), {"value": 1, "next": {"value": "a"}}),
    (Order, {"number": 1}, Order(number=1), {"number": "a"}),
    (Sale, {"amount": 1}, Sale(1), {"amount": 0}),
    (UserId, 5, 5, "a"),
    (dict[Code, int], {"a": 1}, {"a": 1}, {"a": "b"}),
    (Pair[int], [1, 2], (1, 2), [1]),
    (Groups, {"a": [1]}, {"a": [1]}, {"a": []}),
    (Nested, 5, 5, "a"),
    (Annotated[int, "how many"], 5, 5, "a"),
    (Annotated[int, at.Ge(1)], 1, 1, 0),
    (Annotated[int, at.Gt(1), at.Lt(3)], 2, 2, 3),
    (Annotated[int, Between(None, 3)], 3, 3, 2),
    (Annotated[float, at.Interval(ge=0, le=float("inf"))], 0.5, 0.5, -1),
    (Annotated[int, at.MultipleOf(5)], 10, 10, 11), (Annotated[Decimal, at.MultipleOf(Decimal("1e-40"))], "1.5", Decimal("1.5"), "1e-41"),
    (Annotated[list[int], at.Len(1, 2)], [1], [1], []),
    (Annotated[set[Literal["a", "b"]], at.MinLen(2)], ["a", "b"], {"a", "b"}, ["a"]),
    (Annotated[dict[str, int], at.Len(2, 2)], {"a": 1, "b": 2}, {"a": 1, "b": 2}, {"a": 1}),
    (list[Annotated[date, at.Gt(date(2026, 1, 1))]], ["2026-11-20"], [date(2026, 11, 20)], ["2026-01-01"]),
    (Annotated[datetime, at.Ge(NEW_YEAR)], "2026-01-01T00:00:00Z", NEW_YEAR, "2026-01-01T00:00:00"),
    (Annotated[Decimal, at.Gt(Decimal("1.5")), at.Lt(Decimal("1.7"))], "1.6", Decimal("1.6"), "1.5"),
    *((Annotated[Decimal, at.Gt(0), at.Lt(most)], "0.5", Decimal("0.5"), "10") for most in (1, 10)),
    (Annotated[list[int], at.Predicate(lambda items: items == sorted(items))], [1, 2], [1, 2], [2, 1]),
    (Annotated[int | None, at.Ge(1)], None, None, 0),
    (list[Annotated[str, pydantic.Field(pattern="^a", max_length=2)]], ["ab"], ["ab"], ["b"]),
    (Annotated[UserId, at.Ge(1)], 1, 1, 0),
    (list[at.LowerCase[str]], ["a"], ["a"], ["A"]), (list[Annotated[str, at.LowerCase]], ["a"], ["a"], ["A"]),
]
EACH = pytest.mark.parametrize("output, right, value, wrong", TYPES, ids=range(len(TYPES)))


@EACH
def test_a_valid_answer_is_read_with_or_without_a_code_fence(output: Any, right: Any, value: Any, wrong: Any) -> None:
    answer, text = AnswerType(output), json.dumps(right)
    for said in (text, f"\n {text}\n", f"```json\n{text}\n```", f"```\n{json.dumps(right, indent=2)}\n```"):
        found = answer.read(said)
        assert (found, type(found)) == (value, type(value))
    assert answer.read(answer.text_of(value)) == value


@pytest.mark.parametrize("step", [0.1, 0.3, 1e-5])
def test_multiples_of_a_fraction_are_computed_in_decimals(step: float) -> None:
    """In binary floating point, 0.3 is not a multiple of 0.1."""
    answer = AnswerType(Annotated[float, at.MultipleOf(step), at.Ge(step * 2.5), at.Le(step * 3.5)])
    written = f"{step * 3:.12g}"
    assert answer.read(written) == float(written)
    assert written in answer.usage()
    with pytest.raises(SkillInputError, match="a multiple of"):
        answer.read(f"{step * 2.75:.12g}")


@EACH
def test_wrong_truncated_and_wordy_answers_are_errors(output: Any, right: Any, value: Any, wrong: Any) -> None:
    answer, text = AnswerType(output), json.dumps(right)
    truncated = [text[:-1]] if text[0] in '[{"' else []
    for said in (json.dumps(wrong), f"Here it is: {text}", f"{text}\nAnything else?", "", *truncated):
        with pytest.raises(SkillInputError) as caught:
            answer.read(said)
        assert caught.value.faults
    with pytest.raises(SkillInputError) as caught:
        AnswerType(tuple[int, output]).read(json.dumps(["?", right]))
    assert [path for path, _ in caught.value.faults] == ["[0]"]  # a fault elsewhere does not count as one of this type


@pytest.mark.parametrize("output, said, value, repairs", [
    (list[int], "[1, 2,]", [1, 2], ["trailing comma"]),
    (dict[str, Any], "{'a': True}", {"a": True}, ["single-quoted string", "Python literal"]),
    (dict[str, int], "```json5\r\n{a: 1} // one\r\n```", {"a": 1}, ["unquoted key", "comment"]),
    (list[int] | str, "[1,]", [1], ["trailing comma"]),
    (list[int] | str, "{code: 1}", "{code: 1}", []),
    (Any, "None", "None", []),
    (Literal["a", "b"], "'a'", "a", ["single-quoted string"]),
    (str, "'a'", "'a'", []),
    (int, "``` json\n5```", 5, []),
])  # fmt: skip
def test_json_with_mistakes_that_lose_nothing_is_an_answer_unless_text_is_allowed(
    output: Any, said: str, value: Any, repairs: list[str]
) -> None:
    found, made = AnswerType(output).repaired(said, repair="json")
    assert (found, list(made)) == (value, repairs)
    if repairs:
        with pytest.raises(SkillInputError):
            AnswerType(output).read(said, repair=False)


@pytest.mark.parametrize("output, example", [
    (Annotated[str, at.MinLen(10)], ".........."),
    (Annotated[int, at.Predicate(lambda n: n % 2 == 0)], "0"),
    (Annotated[str, at.Predicate(str.isupper)], "ANSWER"),
    (Annotated[str, pydantic.Field(pattern=r"^\d{4}-\d\d-\d\d$")], "2024-01-31"),
    (Annotated[float, at.Gt(0), at.Lt(1)], "0.5"),
    (Annotated[str, pydantic.Field(pattern="^very odd$")], None),
    (Annotated[str, pydantic.Field(pattern="^very odd$", examples=["odd", "very odd"])], "very odd"),
    (Annotated[date | None, pydantic.Field(ge=date(2027, 1, 1), examples=[date(2027, 5, 1)])], '"2027-05-01"'),
])  # fmt: skip
def test_an_example_for_a_constrained_type_is_valid_or_left_out(output: Any, example: str | None) -> None:
    usage = AnswerType(output).usage()
    assert usage == ("" if example is None else f'<block type="final">{example}</block>')


def test_the_example_is_of_the_type_as_which_a_wrong_answer_was_read() -> None:
    for tag, text in (Tag, '{"name": 5}'), (Annotated[Tag, at.Predicate(bool)], '{"name": 5}'), (list[Tag], '[{"name": 5}]'):
        with pytest.raises(SkillInputError, match=r'Usage: <block type="final">\[?\{"name"'):
            AnswerType(Point | tag).read(text)


@EACH
def test_the_schema_accepts_the_answer_and_the_example_that_a_model_reads_is_valid(
    output: Any, right: Any, value: Any, wrong: Any
) -> None:
    answer = AnswerType(output)
    schema = answer.schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    json.dumps(schema, allow_nan=False)  # as it is sent to vendors
    assert jsonschema.Draft202012Validator(schema).is_valid(right)
    blocks = parse(answer.usage()).blocks
    if any(one in str(output) for one in ("Predicate", "pattern")):  # an example of these need not be found
        assert len(blocks) <= 1
    else:
        [block] = blocks
        assert block.type == "final"
        answer.read(block.content)  # raises where it is wrong


class Nobody(Enum):
    pass


@dataclass
class Holder:
    good: int
    bad: complex


@dataclass
class Seeded:
    n: int
    seed: dataclasses.InitVar[int]


@dataclass(init=False)
class Unmade:
    n: int


@pytest.mark.parametrize("output, message", [
    (Annotated[int, at.MinLen(1)], "does not apply to integer"),
    (Annotated[date, at.Ge(1)], "does not apply to date"),
    (Annotated[bool, at.Ge(0)], "does not apply to boolean"), (Annotated[int, at.Ge], "Ge is a class"),
    (Annotated[int, at.MultipleOf(True)], "does not apply to integer"),  # type: ignore[arg-type]
    (Annotated[float, at.MultipleOf(0)], "does not apply to number"),
    (Annotated[str, at.MinLen(-1)], "does not apply to string"),
    (Annotated[str, pydantic.StringConstraints(to_lower=True)], "to_lower=True is not supported"),
    (Annotated[str | None, at.Ge(1)], "does not apply to string or null"),
    (Annotated[int, pydantic.Field(strict=True)], "strict"), (Annotated[int, pydantic.Field(5)], r"Field\(default=...\) in Annotated"),
    (Annotated[datetime, at.Timezone(None)], "tz"),
    (Annotated[int, at.Predicate(asyncio.sleep)], "Predicate must be a plain function of the value"),  # type: ignore[arg-type]
    (set[tuple[list[int], ...]], "cannot be in a set"),
    *((one, "keys must be plain str; mark or") for one in (dict[Annotated[str, at.MinLen(3)], int], dict[int, str], dict[Literal["a"], int])),
    (tuple[int, *tuple[str, ...]], "unpacks a tuple, which is not supported"),
    (Literal[b"x"], "is not a JSON value"),
    *([] if NEW else [(Held, "Held cannot be resolved: the type variable ~T has no type")]),
    (Nobody, "Nobody has no members"),
    (list[dataclasses.make_dataclass("Deps", ["cap"], bases=(Context,))], r"is a Context, .* ctx: SkillContext\[Deps\]"),  # type: ignore[misc]
    (set[Tree], "cannot be in a set"),
    (list[set[list[int]]], r"set\[list\[int\]\] is not possible: a list\[int\] cannot be in a set"),
    *((one, "is not supported; supported are") for one in (Union, list[int, str], dict[str], dict[str, int, int], object, bytes, T, 5, type)),  # type: ignore[misc]
    ("Missing", "'Missing' cannot be resolved"), (type("Vague", (pydantic.BaseModel,), {"__annotations__": {"n": "Missing"}}), "define `Missing`"),
    ("list[", "cannot be resolved"),
    (Holder, "output: field 'bad' of Holder: the type complex"),
    (Seeded, "Seeded cannot be created from its fields: missing a required argument: 'seed'"),
    (Unmade, "Unmade cannot be created from its fields: got an unexpected keyword argument 'n'"),
    (Page, "type variable"),
    (Pair, "type variable"),
    (Endless, "Endless is defined in terms of itself"),
    (list[Trusted[str]], "Trusted marks the inputs of skills"),
    (Paid, "Trusted marks the inputs of skills"),
])
def test_a_type_or_constraint_that_cannot_be_checked_is_an_error_at_definition(output: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        AnswerType(output)


# ------------------------------------------------------------------------------------------------------ generated

_BOUND = st.integers(-3, 6)
_ATOMS = st.sampled_from([int, bool, str, None, Literal["a", 1], Literal[True, "b"], Colour, Any])
_CONSTRAINED = st.one_of(
    st.builds(lambda low: Annotated[int, at.Ge(low)], _BOUND),
    st.builds(lambda low, high: Annotated[int, at.Gt(low), at.Le(high)], _BOUND, _BOUND),
    st.builds(lambda high: Annotated[float, at.Lt(high)], _BOUND),
    st.builds(lambda of: Annotated[int, at.MultipleOf(of)], st.integers(2, 4)),  # `typing` takes 1 for True above
    st.builds(lambda low, more: Annotated[str, at.Len(low, low + more)], st.integers(0, 2), st.integers(0, 2)),
    st.just(Annotated[str, pydantic.Field(pattern="^a")]),
)
_HASHABLE = st.sampled_from([int, str, Literal["a", "b", "c"]])


def _record(kinds: list[Any], required: list[bool]) -> Any:
    fields: list[Any] = [
        (f"f{at}", kind) if needed else (f"f{at}", kind, dataclasses.field(default=None))
        for at, (kind, needed) in enumerate(zip(kinds, sorted(required, reverse=True), strict=False))
    ]
    return dataclasses.make_dataclass("Record", fields, kw_only=True)


def _larger(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        inner.map(lambda item: list[item]),  # type: ignore[valid-type]
        inner.map(lambda item: dict[str, item]),  # type: ignore[valid-type]
        inner.map(lambda item: tuple[item, ...]),  # type: ignore[valid-type]
        st.tuples(inner, inner).map(lambda pair: tuple[pair[0], pair[1]]),  # type: ignore[valid-type]
        st.tuples(inner, inner).map(lambda pair: Union[pair]),  # noqa: UP007 - of what is only known now
        _HASHABLE.map(lambda item: set[item]),  # type: ignore[valid-type]
        st.builds(lambda item, low: Annotated[Sequence[item], at.MinLen(low)], inner, st.integers(0, 2)),  # type: ignore[valid-type]
        inner.map(lambda item: Page[item]),  # type: ignore[valid-type]
        st.builds(_record, st.lists(inner, min_size=1, max_size=3), st.lists(st.booleans(), min_size=3, max_size=3)),
    )


GENERATED = st.recursive(_ATOMS | _CONSTRAINED, _larger, max_leaves=6)
VALUES = json_data(
    st.sampled_from([None, True, False, -1, 0, 1, 2, 3, 6, 2.5, "", "a", "ab", "abc", "b", "c", "red", "x", "19.99"]),
    st.sampled_from(["f0", "f1", "f2", "items", "more", "k", "name", "size", "x", "children", "value", "next"]),
)


def fitting(schema: Any, definitions: Any) -> st.SearchStrategy[Any]:
    """Values that nearly fit a schema, so that many of them do fit it."""
    if "$ref" in schema:
        return st.deferred(lambda: fitting(definitions[schema["$ref"].rpartition("/")[2]], definitions))
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    if "anyOf" in schema:
        return st.one_of([fitting(one, definitions) for one in schema["anyOf"]])
    kind = schema.get("type")
    if kind == "array":
        if "prefixItems" in schema:
            return st.tuples(*[fitting(one, definitions) for one in schema["prefixItems"]]).map(list)
        return st.lists(fitting(schema.get("items", {}), definitions), min_size=schema.get("minItems", 0), max_size=3)
    if kind == "object" and "properties" in schema:
        parts = {key: fitting(one, definitions) for key, one in schema["properties"].items()}
        required = {key: parts[key] for key in schema.get("required", ())}
        others = {key: one for key, one in parts.items() if key not in required}
        return st.fixed_dictionaries(required, optional=others) | st.fixed_dictionaries({}, optional=parts)
    if kind == "object":
        return st.dictionaries(st.sampled_from("kl"), fitting(schema.get("additionalProperties", {}), definitions), max_size=2)
    near = {"integer": st.integers(-4, 8), "number": st.integers(-4, 8) | st.just(2.5), "boolean": st.booleans(),
            "null": st.none(), "string": st.sampled_from(["", "a", "ab", "b", "abcd", "1.5"])}.get(str(kind), VALUES)
    return near | near | near | st.sampled_from([1, "a", 1.5, None, []])


@pytest.mark.slow
@pytest.mark.parametrize("kinds", [GENERATED, *map(st.just, (Decimal, Options, Point, Tree, Node[int] | Tag))], ids=range(6))
@given(data=st.data())
@settings(max_examples=int(os.environ.get("KERNAI_TYPES", "40")), deadline=None)
def test_exactly_the_answers_that_the_schema_accepts_are_read(kinds: st.SearchStrategy[Any], data: st.DataObject) -> None:
    answer = AnswerType(list[data.draw(kinds)])  # type: ignore[misc]  # in a list, so that no bare text counts
    schema = answer.schema()
    judge = jsonschema.Draft202012Validator(schema)
    near = fitting(schema, schema.get("$defs", {}))
    for value in [data.draw(near), data.draw(near), data.draw(st.lists(VALUES, max_size=2))]:
        if "RED" in json.dumps(value) or "BLUE" in json.dumps(value):
            continue  # the name of an enum's member is accepted for its value, though no schema says so
        try:
            answer.read(json.dumps(value))
            is_read = True
        except SkillInputError:
            is_read = False
        assert judge.is_valid(value) is is_read, (value, schema)
