"""The inputs of a skill: binds a call's parameters to them, reports what is wrong, describes them for listings."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from operator import getitem
from typing import TYPE_CHECKING, Any, Final

from kernai._util.close_matches import close_matches
from kernai._util.copies import Value
from kernai.blocks.block import Block
from kernai.errors import SkillInputError
from kernai.inputs.containers import Field, object_schema
from kernai.inputs.faults import NO_VALUE, Fault, Sentinel, Validation, input_error
from kernai.inputs.params import ReadParams, read_params
from kernai.inputs.schema import Schema, json_in_block, line_of, outline_of, published, sample_of
from kernai.inputs.types import InputType
from kernai.jsonio.json_data import copy_of, loads, loads_flat, quoted
from kernai.values.media_store import MediaStore

if TYPE_CHECKING:
    from kernai.inputs.annotations import TypeBuilder
    from kernai.inputs.params import Repair

_MOST_UNKNOWN = 5
_LONGEST_CORRECTION = 2000  # characters
_LONGEST_DEFAULT = 60  # likewise, in a sample


REQUIRED: Final = Sentinel("REQUIRED", __name__)
"""The default of an input that has none."""


@dataclass(frozen=True, eq=False, repr=False)
class Input(Value):
    """One input of a skill. `type` is an annotation; without a `default` the input is required.

    A default is used unchanged, neither checked nor converted; mutable defaults are copied for each call.
    """

    type: Any = Any
    default: Any = REQUIRED
    description: str = ""

    @property
    def required(self) -> bool:
        return self.default is REQUIRED


class _Copies:
    """A mutable default, of which each call gets a copy."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value


class InputTable:
    """All inputs of one skill, ready to bind parameters to them."""

    def __init__(self, skill_name: str, inputs: Mapping[str, Input], builder: TypeBuilder) -> None:
        self.skill_name = skill_name
        self.inputs: dict[str, Input] = {}
        self._fields: list[Field] = []
        for name, one in inputs.items():
            try:
                kind, description = builder.build(one.type)
            except TypeError as error:
                raise TypeError(f"skill {skill_name!r}: parameter {name!r}: {error}") from error
            self.inputs[name] = made = replace(one, description=one.description or description)
            default = NO_VALUE if made.required else made.default
            self._fields.append(Field(name, kind, made.required, made.description, default))
        # what `bind` needs of each input, looked up once: name, class that needs no conversion, type, default
        self._plan = tuple((one.name, one.type.exact, one.type, self._default_of(one.name)) for one in self._fields)

        self._usage: str | None = None
        self.has_media = builder.has_media
        self._has_trusted, self._has_models = builder.has_trusted, builder.has_models

    def _default_of(self, name: str) -> Any:
        """A default without a hash is mutable: lists, dicts, most dataclasses, models."""
        default = self.inputs[name].default
        try:
            hash(default)
        except TypeError:
            try:
                deepcopy(default)
            except Exception as error:
                where = f"skill {self.skill_name!r}: parameter {name!r}"
                raise TypeError(f"{where}: its default cannot be copied for each call: {error}") from error
            return _Copies(default)
        return default

    def read(self, content: str, *, repair: Repair = True) -> dict[str, object]:
        """The parameters in a command block's text."""
        return read_params(content, self._fields, repair if self._fields else False)

    def prepare(self, content: str) -> tuple[dict[str, object], dict[str, object]] | None:
        """Parameters and keyword arguments of a call in which nothing has to be repaired, dropped or converted, as in
        most; None for any other, which needs `read` and `bind`.
        """
        if content[:1] != "{":
            return None
        try:
            params = loads_flat(content) or loads(content, unique_keys=True)
        except ValueError:
            return None
        if not params:
            return None
        left = len(params)
        bound: dict[str, object] = {}
        for name, exact, _, default in self._plan:
            value = params.get(name, NO_VALUE)
            if type(value) is exact:
                bound[name] = value
                left -= 1
            elif value is NO_VALUE and default is not REQUIRED and type(default) is not _Copies:
                bound[name] = default
            else:
                return None
        return None if left else (params, bound)

    def bind(
        self, params: Mapping[str, object], media_store: MediaStore | None = None, *, repair: Repair = True
    ) -> dict[str, object]:
        """Keyword arguments for the function; `SkillInputError` with all faults of the call."""
        if isinstance(params, ReadParams) and params.refused:
            raise self._error([Fault((), f"the JSON object cannot be used: {params.refused}")], params)
        bound: dict[str, object] = {}
        validation: Validation | None = None  # made for the first value that needs one; most calls have none
        for name, exact, kind, default in self._plan:
            value = params.get(name, NO_VALUE)
            if type(value) is exact:
                bound[name] = value
            elif value is NO_VALUE and default is not REQUIRED:
                bound[name] = deepcopy(default.value) if type(default) is _Copies else default
            else:
                validation = validation or Validation(media_store, repair=repair is True)
                bound[name] = self._convert(name, kind, value, validation)
        if validation is not None and validation.faults:
            raise self._error(validation.faults, params, media_store)
        return bound

    def rebind(
        self, bound: Mapping[str, object], changes: Mapping[str, object], media_store: MediaStore | None = None, *,
        repair: Repair = True,
    ) -> dict[str, object]:
        """The result of `bind` with some inputs changed; `SkillInputError` with all faults of the changes."""
        validation = Validation(media_store, repair=repair is True)
        made = {**bound, **{
            one.name: self._convert(one.name, one.type, changes[one.name], validation)
            for one in self._fields if one.name in changes
        }}
        if validation.faults:
            raise self._error(validation.faults, changes, media_store)
        return made

    @staticmethod
    def _convert(name: str, kind: InputType, value: object, validation: Validation) -> object:
        if value is NO_VALUE:
            validation.missing(name, kind.label)
            return None
        try:
            return validation.inside(name, kind, value)
        except RecursionError:  # only a caller in Python can nest that deeply
            validation.faults.append(Fault((name,), "nested too deeply"))
            return None

    def _error(
        self, faults: Sequence[Fault], params: Mapping[str, object], media_store: MediaStore | None = None
    ) -> SkillInputError:
        """The error with all faults, and a right call: the model's own if it is clear what was meant."""
        notes = list(self._notes(params))
        usage = ""
        if type(params) is dict or (isinstance(params, ReadParams) and not params.is_text):
            for meant, note in self._corrections(params, faults):
                usage = self._call_of(meant)
                if len(usage) <= _LONGEST_CORRECTION and self._is_right(meant, media_store):
                    notes.append(f"Note: {note}")
                    break
                usage = ""
        return input_error(faults, "parameters", notes, usage or self.usage())

    def _corrections(
        self, params: Mapping[str, object], faults: Sequence[Fault]
    ) -> Iterator[tuple[dict[str, object], str]]:
        """Calls that may have been meant, each with a note on what was changed."""
        dropped = self.dropped(params)
        meant = self.meant(params, dropped)
        if meant and len(set(meant.values())) == len(meant):
            renamed = {meant.get(name, name): value for name, value in params.items()}
            known = {name: value for name, value in renamed.items() if name in self.inputs}
            yield known, "this call has the names of the inputs that seem to be meant"
        name, whole = self._fields[0].name if self._fields else "", dict(params)
        if len(self._fields) == 1 and params and name not in params:
            for value in (whole, json.dumps(whole, ensure_ascii=False)):
                yield {name: value}, f"the JSON object names no input; this call gives it as {quoted(name)}"
        with suppress(LookupError, TypeError, ValueError, RecursionError):  # something else is wrong
            given: Any = copy_of({name: value for name, value in params.items() if name in self.inputs})
            for fault in faults:
                *path, last = fault.path
                holder = reduce(getitem, path, given)
                holder[last] = _in_other_form(holder[last])
            yield given, "texts have quotes, numbers and booleans have none; this call is written so"

    def _is_right(self, params: Mapping[str, object], media_store: MediaStore | None = None) -> bool:
        validation = Validation(media_store)
        for one in self._fields:
            if one.required or one.name in params:
                self._convert(one.name, one.type, params.get(one.name, NO_VALUE), validation)
        return not validation.faults

    def _call_of(self, params: Mapping[str, object]) -> str:
        """A call with these parameters, as a block."""
        return str(Block("command", self.skill_name, json_in_block(params) if params else ""))

    def _notes(self, params: Mapping[str, object]) -> Iterator[str]:
        hint = getattr(params, "hint", "")
        if hint:
            yield f"Note: {hint}"
        dropped = self.dropped(params)
        if dropped:
            more = ", …" if len(dropped) > _MOST_UNKNOWN else ""
            shown = ", ".join(map(quoted, dropped[:_MOST_UNKNOWN]))
            yield f"Note: ignored, for there is no such input: {shown}{more}"

    def dropped(self, params: Mapping[str, object]) -> list[str]:
        """The parameters that no input takes."""
        if isinstance(params, ReadParams) and params.is_text:
            return []
        return [str(name) for name in params if name not in self.inputs]

    def meant(self, params: Mapping[str, object], dropped: Sequence[str]) -> dict[str, str]:
        """Dropped parameters whose name is close to that of an input that was left out, with that input."""
        left_out = [name for name in self.inputs if name not in params]
        return {name: close[0] for name in dropped if (close := close_matches(name, left_out))}

    def usage(self) -> str:
        """A right call as a block: required inputs with a sample, others with their default if JSON can say it.

        Empty if none is known, since a wrong one would be copied again and again.
        """
        if self._usage is None:
            sample = self.sample()
            is_right = self.has_media or self._is_right(sample)  # no sample knows the id of a media
            self._usage = self._call_of(sample) if is_right else ""
        return self._usage

    def sample(self) -> dict[str, object]:
        """The parameters of a right call."""
        found = {}
        for one in self._fields:
            sample = sample_of(one.type.schema) if one.required else one.json_default()
            if sample is not NO_VALUE and (one.required or len(json.dumps(sample)) <= _LONGEST_DEFAULT):
                found[one.name] = sample
        return found

    @property
    def types(self) -> dict[str, str]:
        """The type of each input in words."""
        return {one.name: one.type.label for one in self._fields}

    def describe(self) -> Iterator[str]:
        """A line for each input, indented ones for nested fields."""
        for one in self._fields:
            schema = one.schema()
            yield "- " + line_of(one.name, schema, required=one.required)
            for line in outline_of(schema, one.name):
                yield "  - " + line

    @cached_property
    def whole(self) -> Schema:
        """The schema of all inputs, in the form of `kernai.inputs.schema`."""
        return object_schema(self._fields)

    @cached_property
    def is_marked(self) -> bool:
        """Whether an input, or a part of one, takes trusted values only."""
        if self._has_models and not self._has_trusted:
            from kernai.inputs.trusted import marks_of  # a model's fields are known by its schema alone

            return any(True for _ in marks_of(self.whole))
        return self._has_trusted

    @property
    def trusted(self) -> list[str]:
        """Where trusted values are required: ``to``, ``payments[].to``."""
        if not self.is_marked:
            return []
        from kernai.inputs.trusted import marks_of  # few skills have such inputs

        return [f"{one.name}{path}" for one in self._fields for path in sorted(set(marks_of(one.type.schema)))]

    def schema(self) -> Schema:
        """The parameters of a call as JSON Schema, see `kernai.inputs.schema`."""
        return published(self.whole)


def _in_other_form(value: object) -> object:
    """The number or boolean that a text holds, or the reverse; else a `ValueError` or `TypeError`."""
    from kernai.jsonio.tolerant_json import read_tolerantly  # most parameters are of the right type

    scalar = read_tolerantly(value).value if isinstance(value, str) else value
    if not isinstance(scalar, (bool, int, float)):
        raise TypeError("no number or boolean")
    return scalar if isinstance(value, str) else json.dumps(value)
