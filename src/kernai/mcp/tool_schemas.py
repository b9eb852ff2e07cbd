"""The inputs of a skill as a client of MCP gives them, for whom media are payloads.

A skill's `Media` is the id of a media in its run's store. An MCP client has no such store, so here it is the payload
itself, `MediaObject`, in the words MCP has for an image or a sound: ``{"data": BASE64, "mimeType": "image/png"}``.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping
from typing import Any, Final

from kernai.inputs.annotations import Namespace, TypeBuilder
from kernai.inputs.faults import Validation
from kernai.inputs.schema import Schema
from kernai.inputs.table import InputTable
from kernai.inputs.types import InputType
from kernai.registry.skill_definition import Skill
from kernai.values.media import Media


class MediaObject(InputType):
    """A `Media` given with the call: its payload as base64, and its MIME type."""

    label = 'media object such as {"data": "iVBORw0KGgo=", "mimeType": "image/png"} with the payload as base64'
    natural = frozenset({dict})
    example: Any = {"data": "iVBORw0KGgo=", "mimeType": "image/png"}  # noqa: RUF012 - never changed
    json_schema: Schema = {  # noqa: RUF012 - likewise
        "type": "object",
        "properties": {
            "data": {"type": "string", "contentEncoding": "base64", "description": "the payload as base64"},
            "mimeType": {"type": "string", "pattern": "^[^/\\s]+/[^/\\s]+$", "examples": ["image/png"]},
        },
        "required": ["data", "mimeType"],
    }

    def convert(self, value: object, validation: Validation) -> Any:
        if isinstance(value, Media):
            return value
        data, mime = (value.get("data"), value.get("mimeType")) if isinstance(value, Mapping) else (None, None)
        if isinstance(data, str) and isinstance(mime, str):
            try:
                return Media.from_bytes(b64decode("".join(data.split()), validate=True), mime_type=mime)
            except ValueError:  # of the base64, or of the MIME type
                pass
        validation.refuse(self.label, value)
        return None


MEDIA_OBJECT: Final = MediaObject()


def served_table(skill: Skill) -> InputTable:
    """What checks the calls of a client: the skill's own table, or a copy of it that takes media as payloads."""
    if not skill.table.has_media:
        return skill.table
    return InputTable(skill.name, skill.inputs, TypeBuilder(Namespace(skill.function), MEDIA_OBJECT))
