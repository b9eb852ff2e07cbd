"""`AnswerType`: describes the type of an agent's answers to the model, and reads the text of an answer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Literal

from kernai.blocks.block import Block
from kernai.blocks.grammar import ASCII_SPACE
from kernai.errors import SkillInputError
from kernai.inputs.annotations import TypeBuilder
from kernai.inputs.containers import ModelType, unknown_fields, ways_of
from kernai.inputs.schema import NO_VALUE, Schema, json_in_block, marks_of, outline_of, published
from kernai.inputs.table import MOST_UNKNOWN, Repair, read_json
from kernai.inputs.types import PLAIN, AnyType, Fault, InputType, dotted, input_error, shown, underlying
from kernai.jsonio.json_data import JsonSyntaxError, quoted
from kernai.jsonio.tolerant_json import FENCED
from kernai.values.media import MediaStore
from kernai.values.skill_result import typed

Unknown = Literal["ignore", "note", "check"]
"""What happens to fields that the type does not have. They are never part of the value. ``"note"`` lists them beside
the repairs; ``"check"`` also reports a fault for each that is close to a missing field, and so probably misspelled.
"""


class AnswerType:
    """The type of an agent's answers: any type that an input can have. Raises `TypeError` for others."""

    def __init__(self, annotation: object) -> None:
        try:
            builder = TypeBuilder(is_answer=True)
            self._type, self._description = builder.build(annotation)
            if any(True for _ in marks_of(self._type.schema)):
                raise TypeError("Trusted marks the inputs of skills; it is not checked in an answer")
        except TypeError as error:
            raise TypeError(f"output: {error}") from error
        self._has_media = builder.has_media  # an example cannot have an existing id
        #: the JSON Schema of the answer's value, in the form of `kernai.inputs.schema`
        self.whole = self._type.schema
        #: whether every text is an answer, apart from constraints
        self.is_text = underlying(self._type) is PLAIN[str]

    def read(self, text: str, media_store: MediaStore | None = None, *, repair: Repair = "json") -> Any:
        """The value of an answer's text. Raises `SkillInputError` with all faults."""
        return self.repaired(text, media_store, repair=repair)[0]

    def repaired(
        self, text: str, media_store: MediaStore | None = None, *, repair: Repair, unknown: Unknown = "ignore"
    ) -> tuple[Any, Sequence[str]]:
        """The value of an answer's text, and the mistakes in its JSON that were repaired or ignored.

        The text is JSON, perhaps in a code fence. If the type can be written as text, bare text is accepted too, unless
        it looks like an object or a list and the type has such values. Raises `SkillInputError` with all faults.
        """
        first: list[Fault] = []
        for data, repairs in self._readings(text, repair):
            value, faults = self._type.checked(data, media_store, repair=repair is True)
            fields = [] if faults or unknown == "ignore" else list(unknown_fields(self._type, data))
            if unknown == "check":
                near = [(path, name) for path, name in fields if name]
                faults += [Fault(path, f"there is no such field, did you mean {quoted(name)}?") for path, name in near]
            if not faults:
                return value, [*repairs, *(f"unknown field {dotted(path)}" for path, _ in fields[:MOST_UNKNOWN])]
            first = first or faults
        raise input_error(first, "answer", (), self.usage(first[0].read_as))

    def _readings(self, text: str, repair: Repair) -> list[tuple[Any, Sequence[str]]]:
        """The values that a text may mean, the likeliest first, with repairs. If none fits, the first is reported."""
        if self.is_text:
            return [(text, ())]
        bare = unfenced(text)
        try:
            data, _, repairs = read_json(bare, repair=bool(repair))
        except ValueError as error:
            if self._may_be_text(bare):
                return [(bare, ())]
            why = f"not valid JSON, {error}" if isinstance(error, JsonSyntaxError) else f"it cannot be used, {error}"
            fault = Fault((), f"expected {self._type.label} as JSON, received {shown(bare)}: {why}")
            raise input_error([fault], "answer", (), self.usage()) from None
        as_text = [(bare, ())] if self._may_be_text(bare) and (repairs or not isinstance(data, str)) else []
        return [*as_text, (data, repairs)] if repairs else [(data, repairs), *as_text]

    def data_of(self, text: str) -> Any:
        """The JSON data that an accepted answer's text means."""
        data, *others = (data for data, _ in self._readings(text, True))
        return others[0] if others and not self._type.takes(data) else data

    def is_surely(self, prose: str, media_store: MediaStore | None, *, repair: Repair) -> bool:
        """Whether prose is certainly an answer, not a thought or a call. If any text is an answer, only JSON counts."""
        try:
            if self.takes_any_text:
                read_json(unfenced(prose), repair=bool(repair))
            self.read(prose, media_store, repair=repair)
        except (ValueError, SkillInputError):
            return False
        return not self.is_text

    def _may_be_text(self, bare: str) -> bool:
        container = {"{": dict, "[": list}.get(bare[:1])
        return str in self._type.natural and (container is None or container not in self._type.natural)

    def text_of(self, value: object) -> str:
        """A value as JSON; if answers are text, the text itself."""
        return value if self.is_text and isinstance(value, str) else json.dumps(typed(value), ensure_ascii=False)

    def section(self) -> str:
        what = "the answer" if self.is_text else "one JSON value"
        about = f" ({self._description})" if self._description else ""
        lines = ["## Your answer", "", f"Your final block holds {what} and nothing else: {self._type.label}{about}."]
        lines += [f"- {line}" for line in outline_of(self.whole, "")]
        usage = "" if self.is_text else self.usage()  # small models copy the placeholder of a text
        return "\n".join([*lines, *(["Example:", usage] if usage else [])])

    def usage(self, member: InputType | None = None) -> str:
        """A correct answer as a block, of this member if the type is a union; empty if none is known."""
        sample = (member or self._type).sample()
        for value in ("ANSWER", str(sample)) if self.is_text else (sample,):
            if value is not NO_VALUE and (self._has_media or self._type.takes(value)):
                return str(Block("final", None, value if self.is_text else json_in_block(value)))
        return ""

    def schema(self) -> Schema:
        return published(self.whole)

    @property
    def takes_any_text(self) -> bool:
        """Whether an answer can be any text, which cannot be distinguished from prose."""
        # only a pydantic model itself knows what it accepts; a copied agent has copies of `ANY` and the type of `str`
        return any(
            self._type.takes("…") if isinstance(one, ModelType) else one.exact is str or isinstance(one, AnyType)
            for one in ways_of(self._type)
        )


def unfenced(text: str) -> str:
    """A text without surrounding white space, and without a code fence around the whole text."""
    fenced = FENCED.fullmatch(text)
    return (fenced["inside"] if fenced else text).strip(ASCII_SPACE)
