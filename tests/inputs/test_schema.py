"""The JSON Schema of a skill's inputs says the same as the checks of a call."""

from __future__ import annotations

import enum
import json
import os
import signal
import threading
from dataclasses import dataclass, field
from datetime import date, datetime, time
from decimal import Decimal
from typing import Annotated, Any, Literal, NotRequired, TypedDict
from uuid import UUID

import jsonschema  # type: ignore[import-untyped]
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernai import Input, Media, Skill, SkillContext, SkillInputError
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


class Item(pydantic.BaseModel):
    name: str = pydantic.Field(alias="theName", min_length=1)
    price: float = pydantic.Field(gt=0, description="in euros")


class Basket(pydantic.BaseModel):
    items: list[Item] = []
    inner: Basket | None = None


class Silent:
    """Validates itself, and has no schema to show."""

    @classmethod
    def model_validate(cls, value: object) -> Silent:
        return cls()

    @classmethod
    def model_json_schema(cls) -> dict[str, Any]:
        raise RuntimeError("cannot be said in JSON Schema")


MEDIA_ID = {"type": "string", "pattern": "^media_[0-9a-f]{12}$", "description": "the id of a media in this conversation",
            "examples": ["media_0a1b2c3d4e5f"]}

TYPES: list[tuple[Any, dict[str, Any]]] = [
    (Any, {}),
    (str, {"type": "string"}),
    (int, {"type": "integer"}),
    (float, {"type": "number"}),
    (bool, {"type": "boolean"}),
    (None, {"type": "null"}),
    (list, {"type": "array"}),
    (list[int], {"type": "array", "items": {"type": "integer"}}),
    (tuple[str, ...], {"type": "array", "items": {"type": "string"}}),
    (tuple[int, str], {"type": "array", "minItems": 2, "maxItems": 2,
                       "prefixItems": [{"type": "integer"}, {"type": "string"}]}),
    (tuple[()], {"type": "array", "minItems": 0, "maxItems": 0}),
    (dict, {"type": "object"}),
    (dict[str, bool], {"type": "object", "additionalProperties": {"type": "boolean"}}),
    (int | None, {"anyOf": [{"type": "integer"}, {"type": "null"}]}),
    (int | bool | Literal["x"], {"anyOf": [{"type": "integer"}, {"type": "boolean"}, {"enum": ["x"], "type": "string"}]}),
    (list[int] | tuple[int, ...], {"type": "array", "items": {"type": "integer"}}),
    (Any | None, {}),
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
    (Silent, {}),
]  # fmt: skip


def table_of(annotation: Any, **options: Any) -> InputTable:
    return InputTable("one", {"it": Input(annotation, **options)}, TypeBuilder())


def schema_of(table: InputTable) -> dict[str, Any]:
    schema = table.schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    json.dumps(schema)
    return schema


def schema_of_skill(skill: Skill) -> dict[str, Any]:
    return schema_of(skill.table)


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
    ) -> str:
        """Book."""
        return ""

    schema = schema_of_skill(Skill("book", execute=book))
    assert schema["required"] == ["arrival", "guest"]
    assert list(schema["properties"]) == ["arrival", "guest", "limit", "colour", "wrong", "when", "other"]
    assert schema["properties"]["guest"] == {"$ref": "#/$defs/Guest", "description": "who comes"}
    assert schema["properties"]["limit"] == {"type": "integer", "description": "how many", "default": 10}
    assert schema["properties"]["colour"]["default"] == 2
    assert schema["properties"]["wrong"] == {"type": "string"}, "a default that no call could give is not offered"
    assert schema["properties"]["when"]["default"] == "2024-01-02"
    guest = schema["$defs"]["Guest"]
    assert guest["required"] == ["name"]
    assert guest["properties"]["wishes"]["default"] == []
    assert guest["properties"]["contact"]["default"] is None
    assert schema["$defs"]["Contact"]["required"] == ["mail"]


def test_a_record_may_hold_itself() -> None:
    schema = schema_of(table_of(Tree))
    assert schema["properties"]["it"] == {"$ref": "#/$defs/Tree"}
    assert schema["$defs"]["Tree"]["properties"]["children"]["items"] == {"$ref": "#/$defs/Tree"}
    deep = {"label": "a", "children": [{"label": "b", "children": [{"label": "c"}]}]}
    assert is_valid(schema, {"it": deep})
    deep["children"][0]["children"][0] = {}  # type: ignore[index]
    assert not is_valid(schema, {"it": deep})


def test_records_of_one_name_are_kept_apart() -> None:
    def other() -> type:
        @dataclass
        class Tree:
            height: int

        return Tree

    class Model(pydantic.BaseModel):
        tree: Tree

    inputs = {"a": Tree, "b": other(), "c": Model, "d": Tree}
    schema = schema_of_skill(Skill("many", execute=lambda **_: None, inputs=inputs))
    names = {key: one["$ref"].rpartition("/")[2] for key, one in schema["properties"].items()}
    assert names["a"] == names["d"] != names["b"]
    assert schema["$defs"][names["a"]]["properties"]["label"] == {"type": "string"}
    assert schema["$defs"][names["b"]]["properties"]["height"] == {"type": "integer"}
    inner = schema["$defs"][names["c"]]["properties"]["tree"]["$ref"].rpartition("/")[2]
    assert "label" in schema["$defs"][inner]["properties"]
    good = {"a": {"label": "x"}, "b": {"height": 1}, "c": {"tree": {"label": "x"}}, "d": {"label": "y"}}
    assert is_valid(schema, good)
    assert not is_valid(schema, {**good, "b": {"label": "x"}})


def test_a_pydantic_model_speaks_for_itself() -> None:
    item = schema_of(table_of(Basket))["$defs"]["Item"]
    assert item["properties"]["price"] == {
        "description": "in euros", "exclusiveMinimum": 0, "title": "Price", "type": "number",
    }
    assert item["required"] == ["theName", "price"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_shows_a_schema_although_a_thread_of_its_parent_was_computing_one() -> None:
    begun, go_on = threading.Event(), threading.Event()

    class Slow(Silent):
        @classmethod
        def model_json_schema(cls) -> dict[str, Any]:
            begun.set()
            assert go_on.wait(20)
            return {}

    thread = threading.Thread(target=lambda: schema_of(table_of(Slow)))
    thread.start()
    assert begun.wait(20)
    child = os.fork()
    if not child:
        status = 1
        try:
            signal.alarm(5)  # ends a child that waits forever
            status = schema_of(table_of(Silent))["required"] != ["it"]
        finally:
            os._exit(status)
    go_on.set()
    thread.join(20)
    assert os.waitpid(child, 0)[1] == 0
