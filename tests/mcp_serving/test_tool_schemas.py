"""The JSON Schema of a tool says the same as the checks of a call."""

from __future__ import annotations

import enum
import json
from collections.abc import Iterator
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
from kernai.mcp.tool_schemas import served_table


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


class Numbers(pydantic.RootModel[list[int]]):
    pass


#: annotation, its schema where a definition is not needed
TYPES: list[tuple[Any, dict[str, Any] | None]] = [
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
    (Colour, {"enum": ["red", 2, 0.5]}),
    (Opaque, {"enum": ["THIS", "THAT"], "type": "string"}),
    (date, {"type": "string", "format": "date", "examples": ["2024-01-31"]}),
    (datetime, {"type": "string", "format": "date-time", "examples": ["2024-01-31T12:00:00"]}),
    (time, {"type": "string", "format": "time", "examples": ["12:00:00"]}),
    (UUID, {"type": "string", "format": "uuid", "examples": ["123e4567-e89b-42d3-a456-426614174000"]}),
    (Contact, None), (Guest, None), (Tree, None), (list[Tree | Guest], None), (dict[str, Contact | int], None),
    (Basket, None), (Numbers, None), (Item | Tree, None),
]


def skill_of(annotation: Any, **options: Any) -> Skill:
    return Skill("one", execute=lambda it: it, inputs={"it": Input(annotation, **options)})


def schema_of(skill: Skill) -> dict[str, Any]:
    schema = served_table(skill).schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    json.dumps(schema)
    return schema


@pytest.mark.parametrize("annotation,expected", [row for row in TYPES if row[1] is not None])
def test_a_type_has_its_schema(annotation: Any, expected: Any) -> None:
    assert schema_of(skill_of(annotation)) == {"type": "object", "properties": {"it": expected}, "required": ["it"]}


# what comes near to the types above, so that both outcomes are frequent
LEAVES = st.one_of(
    st.sampled_from(["red", "RED", "a", "1", "x", "", "2024-01-31", "12:00:00", "19.99"]), st.integers(-2, 3),
    st.sampled_from([0.5, 1.5, -2.25]), st.booleans(), st.none(),
)
KEYS = st.sampled_from(["mail", "phone", "name", "theName", "price", "label", "children", "contact", "wishes", "colour",
                        "items", "inner", "other"])
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
                      max_leaves=8)
EQUIVALENT = [row[0] for row in TYPES if row[0] not in (date, datetime, time, UUID)]


def accepts(skill: Skill, arguments: dict[str, Any]) -> bool:
    try:
        served_table(skill).bind(arguments)
    except SkillInputError:
        return False
    return True


def lenient(value: Any) -> bool:
    """Whether it holds an enum's name, which a call may give though the schema offers the value alone."""
    return '"RED"' in json.dumps(value)


@pytest.mark.parametrize("annotation", EQUIVALENT, ids=str)
@given(value=VALUES)
def test_a_call_is_accepted_if_and_only_if_the_schema_validates(annotation: Any, value: Any) -> None:
    skill = skill_of(annotation)
    valid = jsonschema.Draft202012Validator(schema_of(skill)).is_valid({"it": value})
    if not lenient(value) and not isinstance_of_model(annotation):
        assert accepts(skill, {"it": value}) == valid
    elif valid:
        assert accepts(skill, {"it": value})


def isinstance_of_model(annotation: Any) -> bool:
    """A pydantic model converts what its own schema does not offer: text to a number, say."""
    return "Item" in str(annotation) or annotation in (Basket, Numbers)


@pytest.mark.parametrize("annotation", [row[0] for row in TYPES], ids=str)
def test_the_sample_of_a_usage_line_is_valid(annotation: Any) -> None:
    skill = skill_of(annotation)
    jsonschema.validate(skill.read(skill.usage().partition(">")[2].rpartition("<")[0]), schema_of(skill))


def test_defaults_and_descriptions_stand_where_they_belong() -> None:
    def book(
        arrival: date, ctx: SkillContext[Any], guest: Annotated[Guest, "who  comes"], limit: Annotated[int, "how many"] = 10,
        colour: Colour = Colour.BLUE, wrong: str = 5, when: date = date(2024, 1, 2), other: Any = object,  # type: ignore[assignment]
    ) -> str:
        """Book."""
        return ""

    schema = schema_of(Skill("book", execute=book))
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


def test_records_of_one_name_are_kept_apart() -> None:
    def other() -> type:
        @dataclass
        class Tree:
            height: int

        return Tree

    class Model(pydantic.BaseModel):
        tree: Tree

    schema = schema_of(Skill("many", execute=lambda **_: None, inputs={"a": Tree, "b": other(), "c": Model, "d": Tree}))
    names = {key: one["$ref"].rpartition("/")[2] for key, one in schema["properties"].items()}
    assert names["a"] == names["d"] != names["b"]
    assert schema["$defs"][names["a"]]["properties"]["label"] == {"type": "string"}
    assert schema["$defs"][names["b"]]["properties"]["height"] == {"type": "integer"}
    inner = schema["$defs"][names["c"]]["properties"]["tree"]["$ref"].rpartition("/")[2]
    assert "label" in schema["$defs"][inner]["properties"]
    validator = jsonschema.Draft202012Validator(schema)
    assert validator.is_valid({"a": {"label": "x"}, "b": {"height": 1}, "c": {"tree": {"label": "x"}}, "d": {"label": "y"}})
    assert not validator.is_valid({"a": {"label": "x"}, "b": {"label": "x"}, "c": {"tree": {"label": "x"}}, "d": {"label": "y"}})


def test_a_pydantic_model_speaks_for_itself() -> None:
    schema = schema_of(skill_of(Basket))
    item = schema["$defs"]["Item"]
    assert item["properties"]["price"] == {
        "description": "in euros", "exclusiveMinimum": 0, "title": "Price", "type": "number",
    }
    assert item["required"] == ["theName", "price"]


@dataclass
class Album:
    cover: Media
    others: list[Media] = field(default_factory=list)


PICTURE = {"data": "aGkg\naGk=", "mimeType": "image/png"}


@pytest.mark.parametrize("annotation,value", [
    (Media, PICTURE), (Media | None, PICTURE), (list[Media], [PICTURE]), (dict[str, Media | str], {"x": PICTURE}),
    (Album, {"cover": PICTURE, "others": [PICTURE]}), (tuple[int, Media], [1, PICTURE]), (Contact | Media, PICTURE),
])
def test_media_are_taken_as_payloads_at_any_depth(annotation: Any, value: Any) -> None:
    skill = skill_of(annotation)
    jsonschema.validate({"it": value}, schema_of(skill))
    assert Media.from_bytes(b"hi hi", mime_type="image/png") in list(media_in(served_table(skill).bind({"it": value})))


def media_in(value: Any) -> Iterator[Media]:
    if isinstance(value, Media):
        yield value
    elif isinstance(value, dict):
        for one in value.values():
            yield from media_in(one)
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from media_in(one)
    elif isinstance(value, Album):
        yield value.cover


def test_the_error_about_a_media_says_what_to_send() -> None:
    table = served_table(skill_of(Album))
    with pytest.raises(SkillInputError) as error:
        table.bind({"it": {"cover": "media_0a1b2c3d4e5f"}})
    assert str(error.value).startswith('it.cover: expected media object such as {"data": "iVBORw0KGgo=", "mimeType"')
    assert "media_0a1b2c3d4e5f" not in str(error.value).partition("Usage")[2]


def test_a_skill_without_media_keeps_its_own_table() -> None:
    skill = skill_of(Tree)
    assert served_table(skill) is served_table(skill)
    assert str(error_of(lambda: served_table(skill).bind({}))) == str(error_of(lambda: skill.bind({})))


def error_of(call: Any) -> SkillInputError:
    with pytest.raises(SkillInputError) as error:
        call()
    return error.value


@given(number=st.from_regex(r"\s?[+-]?[0-9]{0,3}(\.[0-9]{0,3})?([eE][+-]?[0-9]{1,2})?", fullmatch=True) | st.integers())
def test_a_decimal_is_accepted_as_its_pattern_says(number: Any) -> None:
    skill = skill_of(Decimal)
    schema = schema_of(skill)
    assert accepts(skill, {"it": number}) == jsonschema.Draft202012Validator(schema).is_valid({"it": number})
