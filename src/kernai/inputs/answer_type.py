"""`AnswerType`: the type that the answers of an agent have; how a model is told of it, and how an answer is read."""

from __future__ import annotations

import json
import re
from typing import Any

from kernai.blocks.block import Block
from kernai.blocks.grammar import ASCII_SPACE
from kernai.errors import SkillInputError
from kernai.inputs.annotations import TypeBuilder
from kernai.inputs.constraints import without_constraints
from kernai.inputs.faults import NO_VALUE, Fault, Validation, dotted, shown
from kernai.inputs.schema import Definitions, Schema
from kernai.inputs.types import PLAIN
from kernai.values.json_data import loads
from kernai.values.media_store import MediaStore
from kernai.values.skill_result import answer_json

_FENCED = re.compile(r"```[A-Za-z0-9]*[ \t]*\n(.*)\n[ \t]*```", re.DOTALL)
_MOST_FAULTS = 100  # in one message

_JSON_SHAPE = "Your final block holds one JSON value and nothing else: {label}"
_TEXT_SHAPE = "Your final block holds the answer and nothing else: {label}"


class AnswerType:
    """Any type that an input can have. `TypeError` for others."""

    def __init__(self, annotation: object) -> None:
        try:
            self._type, self._description = TypeBuilder().build(annotation)
        except TypeError as error:
            raise TypeError(f"output: {error}") from error
        #: whether every text is an answer, constraints aside
        self.is_text = without_constraints(self._type) is PLAIN[str]

    def read(self, text: str, media_store: MediaStore | None = None) -> Any:
        """The value that an answer's text says; `SkillInputError` with all that is wrong with it.

        The text is JSON, perhaps in a code fence. Where the type can be written as text, a bare text is taken too; one
        that looks like an object or a list is none, unless the type has no such values.
        """
        validation = Validation(media_store)
        if self.is_text:
            value = self._type.convert(text, validation)
            return self._checked(value, validation)
        bare = unfenced(text)
        why = ""
        try:
            data = loads(bare, unique_keys=True)
        except ValueError as error:
            data, why = NO_VALUE, str(error)
        else:
            value = self._type.convert(data, validation)
            if not validation.faults:
                return value
        if self._may_be_text(bare, data):
            as_text = Validation(media_store)
            value = self._type.convert(bare, as_text)
            if not as_text.faults or data is NO_VALUE:
                return self._checked(value, as_text)
        elif data is NO_VALUE:
            told = f"expected {self._type.label} as JSON, received {shown(bare)}: not valid JSON, {why}"
            validation.faults.append(Fault((), told))
        return self._checked(None, validation)

    def _may_be_text(self, bare: str, data: object) -> bool:
        if str not in self._type.natural or isinstance(data, str):
            return False
        container = {"{": dict, "[": list}.get(bare[:1])
        return container is None or container not in self._type.natural

    def _checked(self, value: Any, validation: Validation) -> Any:
        if not validation.faults:
            return value
        pairs = tuple((dotted(path), message) for path, message in validation.faults)
        lines = [f"{path}: {message}" if path else f"answer: {message}" for path, message in pairs[:_MOST_FAULTS]]
        if len(pairs) > _MOST_FAULTS:
            lines.append(f"… and {len(pairs) - _MOST_FAULTS} more faults")
        usage = self.usage()
        raise SkillInputError("\n".join([*lines, *([f"Usage: {usage}"] if usage else [])]), pairs)

    def text_of(self, value: object) -> str:
        """A value's own JSON; of a text the text itself."""
        return value if self.is_text and isinstance(value, str) else answer_json(value)

    def section(self) -> str:
        """What the system message says of it."""
        shape = (_TEXT_SHAPE if self.is_text else _JSON_SHAPE).format(label=self._type.label)
        if self._description:
            shape += f" ({self._description})"
        lines = ["## Your answer", "", f"{shape}."]
        lines += [f"- {line.lstrip('.')}" for line in self._type.outline("", set())]
        usage = "" if self.is_text else self.usage()  # a small model answers with the placeholder for a text
        return "\n".join([*lines, *(["Example:", usage] if usage else [])])

    def usage(self) -> str:
        """A right answer, as a block; empty where no finite one is known."""
        sample = self._type.sample()
        if sample is NO_VALUE:
            return ""
        # a "<" inside a JSON string could end a block; its escape means the same
        text = "ANSWER" if self.is_text else json.dumps(sample, ensure_ascii=False).replace("<", "\\u003c")
        return str(Block("final", None, text))

    def schema(self) -> Schema:
        """Its values as JSON Schema."""
        definitions = Definitions()
        made = self._type.schema(definitions)
        return {**made, "$defs": definitions.schemas} if definitions.schemas else made

    @property
    def takes_any_text(self) -> bool:
        """Whether a text can be an answer that no JSON around it would tell from prose."""
        validation = Validation()
        self._type.convert("…", validation)
        return not validation.faults


def unfenced(text: str) -> str:
    """A text without white space around it, and without the code fence that it stands in as a whole."""
    text = text.strip(ASCII_SPACE)
    fenced = _FENCED.fullmatch(text)
    return fenced[1].strip(ASCII_SPACE) if fenced else text
