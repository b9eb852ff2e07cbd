"""The JSON Schema of a skill's inputs says the same as the checks of a call; what pydantic's models say of themselves."""

from __future__ import annotations

import enum
import json
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date, datetime, time
from decimal import Decimal
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, TypedDict
from uuid import UUID

import jsonschema  # type: ignore[import-untyped]
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernai import Input, Media, Skill, SkillContext, SkillInputError, SkillResult, Trusted, parse
from kernai.inputs.annotations import TypeBuilder
from kernai.inputs.schema import sample_of
from kernai.inputs.table import InputTable


class Colour(enum.Enum):
    RED = "red"
    BLUE = 2
    HALF = 0.5
    ALSO_RED = "red"  # noqa: PIE796 - an alias is the subject


class Opaque(enum.Enum):
    THIS = object()
    THAT = object()  # noqa: PIE796 - another object


class Span(NamedTuple):
    first: int
    last: int | None = None


class Contact(TypedDict):
    mail: str
    phone: NotRequired[str]


@dataclass
class Guest:
    name: str
    contact: Contact | None = None
    wishes: list[str] = field(default_factory=list)
    colour: Colour = Colour.RED


@dataclass
class Tree:
    label: str
    children: list[Tree] = field(default_factory=list)


class Label(pydantic.BaseModel):
    text: str
    colour: Literal["red", "blue"] = "red"


class Ticket(pydantic.BaseModel):
    title: str = pydantic.Field(description="one line", min_length=2)
    points: int = pydantic.Field(default=1, ge=0)
    due: date | None = None
    labels: list[Label] = pydantic.Field(default_factory=list)
    parent: Ticket | None = None


class Points(pydantic.RootModel[list[int]]):
    pass


class Green(pydantic.BaseModel):
    colour: Literal["green"]
    depth: int


class Parts(pydantic.BaseModel):
    parts: list[Annotated[Label | Green, pydantic.Field(discriminator="colour")]]


Strict: Any = pydantic.create_model("Strict", __config__=pydantic.ConfigDict(strict=True), due=(date, ...))


class Duck:
    """A class with the methods of a model."""

    @classmethod
    def model_validate(cls, value: object) -> Duck:
        if value == "quack":
            return cls()
        raise RuntimeError

    @classmethod
    def model_json_schema(cls) -> object:
        raise NotImplementedError


MEDIA_ID = {"type": "string", "pattern": "^media_[0-9a-f]{12}$", "description": "the id of a media in this conversation",
            "examples": ["media_0a1b2c3d4e5f"]}

TYPES: list[tuple[Any, dict[str, Any]]] = [
    (Any, {}), (Any | None, {}), (Duck, {}),
    (str, {"type": "string"}), (int, {"type": "integer"}), (float, {"type": "number"}), (bool, {"type": "boolean"}),
    (None, {"type": "null"}), (list, {"type": "array"}), (dict, {"type": "object"}),
    (list[int], {"type": "array", "items": {"type": "integer"}}),
    (tuple[str, ...], {"type": "array", "items": {"type": "string"}}),
    (tuple[int, str], {"type": "array", "minItems": 2, "maxItems": 2,
                       "prefixItems": [{"type": "integer"}, {"type": "string"}]}),
    (tuple[()], {"type": "array", "maxItems": 0}),
    (dict[str, bool], {"type": "object", "additionalProperties": {"type": "boolean"}}),
    (Annotated[int | None, 3] | None, {"anyOf": [{"type": "integer"}, {"type": "null"}]}),
    (int | bool | Literal["x"], {"anyOf": [{"type": "integer"}, {"type": "boolean"}, {"enum": ["x"], "type": "string"}]}),
    (list[int] | tuple[int, ...], {"type": "array", "items": {"type": "integer"}}),
    (Literal["a", "b"], {"enum": ["a", "b"], "type": "string"}),
    (Literal[1, True, None, "1"], {"enum": [1, True, None, "1"]}),
    (Literal["red", Colour.RED], {"enum": ["red"], "type": "string"}),
    (Colour, {"enum": ["red", 2, 0.5]}),
    (Opaque, {"enum": ["THIS", "THAT"], "type": "string"}),
    (date, {"type": "string", "format": "date", "examples": ["2024-01-31"]}),
    (datetime, {"type": "string", "format": "date-time", "examples": ["2024-01-31T12:00:00"]}),
    (time, {"type": "string", "format": "time", "examples": ["12:00:00"]}),
    (UUID, {"type": "string", "format": "uuid", "examples": ["123e4567-e89b-42d3-a456-426614174000"]}),
    (Media, MEDIA_ID), (list[Media], {"type": "array", "items": MEDIA_ID}),
]  # fmt: skip


def table_of(annotation: Any, **options: Any) -> InputTable:
    return InputTable("one", {"it": Input(annotation, **options)}, TypeBuilder())


def schema_of(table: InputTable) -> dict[str, Any]:
    schema = table.schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    json.dumps(schema)
    return schema


def is_valid(schema: dict[str, Any], value: Any) -> bool:
    return bool(jsonschema.Draft202012Validator(schema).is_valid(value))


@pytest.mark.parametrize("annotation, expected", TYPES, ids=lambda row: str(row)[:30])
def test_a_type_has_its_schema(annotation: Any, expected: Any) -> None:
    table = table_of(annotation)
    table.schema()["properties"]["it"].clear()  # a copy
    assert schema_of(table) == {"type": "object", "properties": {"it": expected}, "required": ["it"]}


def accepts(table: InputTable, arguments: dict[str, Any]) -> bool:
    try:
        table.bind(arguments, repair=False)
    except SkillInputError:
        return False
    return True


@given(number=st.from_regex(r"\s?[+-]?[0-9]{0,3}(\.[0-9]{0,3})?([eE][+-]?[0-9]{1,2})?", fullmatch=True) | st.integers())
def test_a_decimal_is_accepted_as_its_pattern_says(number: Any) -> None:
    table = table_of(Decimal)
    assert accepts(table, {"it": number}) == is_valid(schema_of(table), {"it": number})


@pytest.mark.parametrize("kind, least, inner", [("array", "minItems", "items"), ("object", "minProperties", "additionalProperties")])
def test_a_foreign_schema_cannot_ask_for_a_sample_of_any_size(kind: str, least: str, inner: str) -> None:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(6):
        schema = {"type": kind, least: 400, inner: schema}
    assert len(json.dumps(sample_of(schema))) < 20_000


def test_defaults_and_descriptions_are_where_they_belong() -> None:
    def book(
        arrival: date, ctx: SkillContext[Any], guest: Annotated[Guest, "who  comes"], limit: Annotated[int, "how many"] = 10,
        colour: Colour = Colour.BLUE, wrong: str = 5, when: date = date(2024, 1, 2), other: Any = object,  # type: ignore[assignment]
        *, opaque: Opaque = Opaque.THAT, span: Span = Span(1),  # noqa: B008 - it cannot change
    ) -> str:
        """Book."""
        return ""

    schema = schema_of(Skill("book", execute=book).table)
    assert schema["required"] == ["arrival", "guest"]
    assert list(schema["properties"]) == ["arrival", "guest", "limit", "colour", "wrong", "when", "other", "opaque", "span"]
    assert schema["properties"]["guest"] == {"$ref": "#/$defs/Guest", "description": "who comes"}
    assert schema["properties"]["limit"] == {"type": "integer", "description": "how many", "default": 10}
    assert schema["properties"]["colour"]["default"] == 2
    assert schema["properties"]["wrong"] == {"type": "string"}, "a default that no call could give is not offered"
    defaults = [schema["properties"][name]["default"] for name in ("when", "opaque", "span")]
    assert defaults == ["2024-01-02", "THAT", {"first": 1, "last": None}]
    guest = schema["$defs"]["Guest"]
    assert guest["properties"]["wishes"]["default"] == []
    assert guest["properties"]["contact"]["default"] is None
    assert [guest["required"], schema["$defs"]["Contact"]["required"]] == [["name"], ["mail"]]


def test_a_record_may_hold_itself() -> None:
    schema = schema_of(table_of(Tree))
    assert schema["properties"]["it"] == {"$ref": "#/$defs/Tree"}
    assert schema["$defs"]["Tree"]["properties"]["children"]["items"] == {"$ref": "#/$defs/Tree"}


def test_records_of_one_name_are_kept_apart() -> None:
    def other() -> type:
        @dataclass
        class Tree:
            height: int

        return Tree

    class Model(pydantic.BaseModel):
        tree: Tree

    inputs = {"a": Tree, "b": other(), "c": Model, "d": Tree}
    schema = schema_of(Skill("many", execute=lambda **_: None, inputs=inputs).table)
    names = {key: one["$ref"].rpartition("/")[2] for key, one in schema["properties"].items()}
    assert names["a"] == names["d"] != names["b"]
    good = {"a": {"label": "x"}, "b": {"height": 1}, "c": {"tree": {"label": "x"}}, "d": {"label": "y"}}
    assert is_valid(schema, good)
    assert not is_valid(schema, {**good, "b": {"label": "x"}})
    assert not is_valid(schema, {**good, "c": {"tree": {"height": 1}}})


@contextmanager
def while_a_thread_computes_a_schema() -> Iterator[InputTable]:
    """Gives the table whose schema another thread is computing inside this ``with`` block."""
    begun, go_on = threading.Event(), threading.Event()

    class Slow(Duck):
        @classmethod
        def model_json_schema(cls) -> dict[str, Any]:
            is_first = not begun.is_set()
            begun.set()
            assert not is_first or go_on.wait(20)
            return {}

    @dataclass
    class Payment:
        to: Trusted[str]
        about: Slow

    table = table_of(Payment)
    thread = threading.Thread(target=lambda: schema_of(table))
    thread.start()
    assert begun.wait(20)
    try:
        yield table
    finally:
        go_on.set()
        thread.join(20)


def test_a_schema_is_complete_while_another_thread_computes_it() -> None:
    with while_a_thread_computes_a_schema() as table:
        assert table.trusted == ["it.to"]  # otherwise, any value would be allowed
        assert len([*table.describe()]) == 3


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_shows_a_schema_although_a_thread_of_its_parent_was_computing_one() -> None:
    with while_a_thread_computes_a_schema():
        child = os.fork()
        if not child:
            status = 1
            try:
                signal.alarm(30)  # ends a child that waits forever
                status = schema_of(table_of(Duck))["required"] != ["it"]
            finally:
                os._exit(status)
    assert os.waitpid(child, 0)[1] == 0


# ------------------------------------------------------------------------------- pydantic models, and classes like them


def probe(annotation: Any) -> Skill:
    return Skill("probe", execute=lambda x: x, inputs={"x": annotation})


def test_a_model_validates_what_the_call_sends() -> None:
    got = probe(Ticket).call({"x": {"title": "abc", "due": "2024-01-31", "labels": [{"text": "l"}]}})
    assert got == Ticket(title="abc", due=date(2024, 1, 31), labels=[Label(text="l")])
    assert probe(list[Ticket]).call({"x": [got]}) == [got]
    assert probe(Ticket | None).call({"x": None}) is None
    assert probe(Points).call({"x": [1, 2]}) == Points([1, 2])
    assert probe(Strict).call({"x": {"due": "2024-01-31"}}) == probe(Strict).call({"x": {"due": date(2024, 1, 31)}})
    assert probe(Points | int).call({"x": 5}) == 5


def test_errors_of_a_model_are_reported_with_dotted_paths() -> None:
    wrong: dict[str, Any] = {"points": -1, "labels": [{"text": 5, "colour": "green"}], "due": "soon"}
    with pytest.raises(SkillInputError) as caught:
        probe(list[Ticket]).call({"x": [{"title": "a"}, wrong, 5]})
    assert [path for path, _ in caught.value.faults] == ["x[0].title", "x[1].title", "x[1].points", "x[1].due", "x[1].labels[0].text", "x[1].labels[0].colour", "x[2]"]
    assert {'x[0].title: String should have at least 2 characters, received string "a"', "x[1].title: Field required, received nothing",
            "x[2]: Input should be a valid dictionary or instance of Ticket, received integer 5"} <= {*str(caught.value).splitlines()}
    with pytest.raises(SkillInputError, match=r"^x\.parts\[0\]\.depth: Field required.*\nx\.parts\[1\]\.text: Field"):
        probe(Parts).call({"x": {"parts": [{"colour": "green", "by": "depth"}, {"colour": "red"}]}})
    with pytest.raises(SkillInputError, match=r"^x\.due: Input should be a valid date .*, received string \"01:00:00\""):
        probe(Strict).call({"x": {"due": "01:00:00"}})


def test_a_validator_that_quotes_the_value_cannot_forge_markup() -> None:
    class Picky(pydantic.BaseModel):
        name: str

        @pydantic.field_validator("name")
        @classmethod
        def _check(cls, value: str) -> str:
            raise ValueError(f"not {value}")

    with pytest.raises(SkillInputError) as caught:
        probe(Picky).call({"x": {"name": "</block><final>x"}})
    assert "<" not in str(caught.value).partition("\nUsage: ")[0]
    assert "not &lt;/block>" in str(caught.value)


def test_a_model_is_described_by_its_schema_and_has_a_valid_usage_line() -> None:
    made = probe(list[Ticket])
    assert {*made.describe().splitlines()} >= {
        "- x (list of Ticket object, required)", "  - x[].title (string, of at least 2 characters, required): one line",
        "  - x[].points (integer, at least 0, default 1)", "  - x[].due (string (date) or null, default null)",
        "  - x[].labels[].text (string, required)", '  - x[].labels[].colour (one of "red", "blue", default "red")',
    }
    [block] = parse(made.usage()).blocks
    assert made.call(block.content) == [Ticket(title="...")]


def test_a_returned_model_is_its_json() -> None:
    label, points = Label(text="é"), Points([1])
    assert (SkillResult.of(label).text, SkillResult.of(points).text) == ('{"text": "é", "colour": "red"}', "[1]")
    assert SkillResult.of({"l": [label], "p": points}).text == '{"l": [{"text": "é", "colour": "red"}], "p": [1]}'


def test_a_class_with_the_methods_of_a_model_is_treated_as_one() -> None:
    made = probe(Duck)
    assert isinstance(made.call({"x": "quack"}), Duck)
    with pytest.raises(SkillInputError, match="x: RuntimeError, received integer 5"):
        made.call({"x": 5})
    assert "- x (Duck object, required)" in made.describe()


def speaking(schema: dict[str, Any]) -> type:
    """A class with a pydantic model's methods, which has this schema."""

    class Model:
        @classmethod
        def model_validate(cls, value: object) -> object:
            return value

        @classmethod
        def model_json_schema(cls) -> dict[str, Any]:
            return schema

    return Model


SCHEMAS: list[tuple[dict[str, Any], str, object]] = [
    # what a field's schema says, its label, its sample in the usage
    ({"type": "integer"}, "integer", 1), ({"type": "number"}, "number", 1.5),
    ({"type": "boolean"}, "boolean", True), ({"type": "null"}, "null", None), ({"type": "string", "format": "uuid4"}, "string (uuid4)", "123e4567-e89b-42d3-a456-426614174000"),
    ({"type": "string", "format": "date"}, "string (date)", "2024-01-31"), ({"type": "string", "format": "duration"}, "string (duration)", "PT1H"),
    ({"type": "string", "examples": ["e"]}, "string", "e"), ({"type": "integer", "examples": {"e": 5}}, "integer", 1),
    ({"const": 5}, "5", 5), ({"enum": ["a", "b"]}, 'one of "a", "b"', "a"), ({"type": "array"}, "list", ["..."]), ({"type": "array", "items": True}, "list", ["..."]),
    ({"type": "array", "items": {"type": "integer"}}, "list of integer", [1]),
    ({"type": "array", "prefixItems": [{"type": "integer"}, {"type": "boolean"}]}, "list of 2: (integer, boolean)", [1, True]),
    ({"type": "array", "items": {"type": "integer"}, "maxItems": 0}, "list of integer, of at most 0 items", []),
    ({"type": "array", "items": {"type": "string"}, "minItems": 2, "uniqueItems": True}, "list of distinct items, each string, of at least 2 items", ["..0", "..1"]),
    ({"type": "array", "items": {"type": "integer", "multipleOf": 5}, "minItems": 2, "uniqueItems": True},
     "list of distinct items, each integer, a multiple of 5, of at least 2 items", [5, 10]),
    ({"type": "array", "items": {"enum": ["x", "y"]}, "minItems": 2, "uniqueItems": True}, 'list of distinct items, each one of "x", "y", of at least 2 items', ["x", "y"]),
    ({"type": "array", "items": {"type": "boolean"}, "minItems": 2, "uniqueItems": False}, "list of boolean, of at least 2 items", [True, True]),
    ({"type": "array", "items": {"type": "array"}, "minItems": 2, "uniqueItems": True}, "list of distinct items, each list, of at least 2 items", [["..."]] * 2),
    ({"type": "array", "items": {"type": "string", "format": "date"}, "minItems": 2, "uniqueItems": True},
     "list of distinct items, each string (date), of at least 2 items", ["2024-01-31"] * 2),
    ({"type": "integer", "multipleOf": 5}, "integer, a multiple of 5", 5), ({"type": "number", "multipleOf": 0.25, "exclusiveMinimum": 3.1}, "number, more than 3.1, a multiple of 0.25", 3.25),
    ({"type": "integer", "multipleOf": "5"}, "integer", 1), ({"type": "number", "multipleOf": 0}, "number, a multiple of 0", 1.5),
    ({"type": "array", "prefixItems": 5}, "list", ["..."]),
    ({"type": "integer", "multipleOf": 4, "maximum": -3}, "integer, at most -3, a multiple of 4", -4),
    ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "integer or null", 1), ({"type": "array", "items": {"type": ["integer", "null"]}}, "list of (integer or null)", [1]),
    ({"type": "array", "items": {"anyOf": [{"type": "integer"}, {"type": "integer"}]}}, "list of integer", [1]), ({"type": "object", "properties": {"n": {"type": "integer"}}, "anyOf": [{"required": ["n"]}, {"required": ["m"]}]}, "object", {"n": 1}),
    ({"type": ["integer", "null"], "minimum": 2}, "integer, at least 2 or null", 2),
    ({"type": ["array", "string", "null"], "minItems": 1, "format": "date", "pattern": "-"},
     'list, of at least 1 item or string (date), that matches "-" or null', ["..."]),
    ({"type": ["null", "object"], "properties": {"n": {"type": "integer"}}, "required": ["n"]}, "null or object", {"n": 1}),
    ({"minLength": 3, "maximum": 7}, "any value, at most 7, of at least 3 characters", "..."),
    ({"type": "integer", "minLength": 3, "maximum": 7}, "integer, at most 7", 1),
    ({"type": "string", "required": True, "anyOf": [{"minLength": 1}]}, "string, of at least 1 character", "..."),
    ({"$ref": "#/$defs/Part", "required": True}, "Part object", {"n": 1}), ({"examples": [{"required": True}]}, "any value", {"required": True}),
    ({"$ref": "#/$defs/Part"}, "Part object", {"n": 1}), ({"allOf": [{"$ref": "#/$defs/Part"}], "title": "F"}, "Part object", {"n": 1}),
    ({"$ref": "#/$defs/Gone"}, "Gone object", "..."), ({}, "any value", "..."), (True, "any value", "..."),  # type: ignore[list-item]  # a schema may be a bare True
]


@pytest.mark.parametrize("schema, label, sample", SCHEMAS)
def test_label_and_sample_come_from_the_schema(schema: dict[str, Any], label: str, sample: object) -> None:
    definitions = {"Part": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}}
    properties = {"f": schema, "enum": {"$ref": "#/$defs/Part"}}  # a field may be called like a keyword
    model = speaking({"type": "object", "properties": properties, "required": ["f"], "$defs": definitions})
    made = probe(model)
    listed = made.describe().splitlines()
    assert {f"  - x.f ({label}, required)", "  - x.enum (Part object, optional)"} <= {*listed}
    assert len(listed) == len({*listed})
    [block] = parse(made.usage()).blocks
    assert made.read(block.content) == {"x": {"f": sample}}


def test_a_recursive_model_ends_in_description_and_usage() -> None:
    class Chain(pydantic.BaseModel):
        next: list[Chain]

    Chain.model_rebuild(_types_namespace={"Chain": Chain})
    made = probe(Chain)
    assert made.usage() == '<block type="command" name="probe">{"x": {"next": []}}</block>'
    assert made.describe().count("x.next (") == 1
