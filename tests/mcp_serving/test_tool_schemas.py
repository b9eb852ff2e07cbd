"""A served tool takes media as payloads; all else is the skill's own schema, which tests/inputs/test_schema.py holds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest

from kernai import Input, Media, Skill, SkillInputError
from kernai.mcp.serving_tools import served_table


@dataclass
class Contact:
    mail: str


@dataclass
class Album:
    cover: Media
    others: list[Media] = field(default_factory=list)


PICTURE = {"data": "aGkg\naGk=", "mimeType": "image/png"}


def skill_of(annotation: Any, **options: Any) -> Skill:
    return Skill("one", execute=lambda it: it, inputs={"it": Input(annotation, **options)})


def schema_of(skill: Skill) -> dict[str, Any]:
    schema = served_table(skill).schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    json.dumps(schema)
    return schema


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


def test_a_client_is_not_offered_the_id_of_a_media() -> None:
    skill = skill_of(Album)
    assert "media_" in json.dumps(skill.table.schema())
    assert "media_" not in json.dumps(schema_of(skill))
    assert not jsonschema.Draft202012Validator(schema_of(skill)).is_valid({"it": {"cover": "media_0a1b2c3d4e5f"}})


def test_the_sample_of_a_usage_line_is_valid() -> None:
    table = served_table(skill_of(Album))
    jsonschema.validate(table.read(table.usage().partition(">")[2].rpartition("<")[0]), table.schema())


def test_the_error_about_a_media_says_what_to_send() -> None:
    table = served_table(skill_of(Album))
    with pytest.raises(SkillInputError) as error:
        table.bind({"it": {"cover": "media_0a1b2c3d4e5f"}})
    assert str(error.value).startswith('it.cover: expected media object such as {"data": "iVBORw0KGgo=", "mimeType"')
    assert "media_0a1b2c3d4e5f" not in str(error.value).partition("Usage")[2]


def test_a_skill_without_media_keeps_its_own_table() -> None:
    skill = skill_of(Contact)
    assert served_table(skill) is served_table(skill)
    assert str(error_of(lambda: served_table(skill).bind({}))) == str(error_of(lambda: skill.bind({})))


def error_of(call: Any) -> SkillInputError:
    with pytest.raises(SkillInputError) as error:
        call()
    return error.value
