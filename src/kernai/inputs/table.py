"""The inputs of a skill: reads a call's parameters, binds them, reports what is wrong, describes inputs for listings.

The text comes from a model, so reading it never fails. Text that cannot be used is reported when the parameters are
bound to the inputs, together with all other faults.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial, reduce
from operator import getitem
from typing import TYPE_CHECKING, Any, Literal

from kernai._util.api import Once, Value
from kernai.blocks.block import Block
from kernai.blocks.grammar import ASCII_SPACE
from kernai.errors import SkillInputError
from kernai.inputs.containers import Field, RecordType, check_default, object_schema, unknown_fields
from kernai.inputs.schema import NO_VALUE, REQUIRED, Schema, json_in_block, lines_of, marks_of, published, takes_whole
from kernai.inputs.types import Fault, dotted, input_error
from kernai.jsonio.json_data import JSON_SPACE, JsonRefusedError, JsonSyntaxError, copy_of, loads, loads_flat, quoted
from kernai.values.media import MediaStore

if TYPE_CHECKING:
    from kernai.inputs.annotations import TypeBuilder

MOST_UNKNOWN = 5  # unknown fields that are listed
_LONGEST_CORRECTION = 2000  # characters
_LONGEST_DEFAULT = 60  # characters of a default in a sample


Repair = bool | Literal["json"]
"""Which mistakes of a call are repaired. False: none; ``"json"``: mistakes in its JSON whose repair loses nothing;
True: also numbers and booleans in quotes, and values without the name of their input."""


class ReadParams(dict[str, object]):
    """Parameters whose text was not simply a JSON object.

    `is_text`: the text was not JSON. `refused` says why a JSON object was not used, because it is broken or something
    in it would be lost; the text is then under ``"input"``. `repairs` lists the repaired mistakes in JSON that was
    used. `hint` is added to faults, and says why the text is not valid JSON.
    """

    def __init__(
        self, values: Mapping[str, object], *, is_text: bool = True, refused: str = "", repairs: Sequence[str] = (),
        hint: str = "",
    ) -> None:
        super().__init__(values)
        self.is_text, self.refused, self.repairs, self.hint = is_text, refused, repairs, hint


@dataclass(frozen=True, eq=False, repr=False)
class Input(Value):
    """One input of a skill. `type` is an annotation; without a `default` the input is required.

    A default is used unchanged, neither checked nor converted; one without a hash, as a list, is copied for each call.
    """

    type: Any = Any
    default: Any = REQUIRED
    description: str = ""

    @property
    def required(self) -> bool:
        return self.default is REQUIRED


class InputTable:
    """All inputs of one skill, ready to bind parameters to them."""

    def __init__(self, skill_name: str, inputs: Mapping[str, Input], builder: TypeBuilder) -> None:
        self.skill_name = skill_name
        self.inputs: dict[str, Input] = {}
        #: for each input: name, class whose values need no conversion, default, whether calls get copies of it
        self._plan: list[tuple[str, type | None, Any, bool]] = []
        fields = []
        for name, one in inputs.items():
            try:
                kind, description = builder.build(one.type)
                check_default(one.default)
                self._plan.append((name, kind.exact, one.default, _is_mutable(one.default)))
            except TypeError as error:
                raise TypeError(f"skill {skill_name!r}: parameter {name!r}: {error}") from error
            self.inputs[name] = made = replace(one, description=one.description or description)
            fields.append(Field(name, kind, one.default, made.description))
        self._record = RecordType(skill_name, self._filled)
        self._record.set_fields(fields)
        self._fields, self.types = self._record.fields, self._record.types
        self.has_media = builder.has_media
        #: whether no input has fields, so that only names of inputs can be unknown
        self.is_flat = not builder.has_records

    def read(self, content: str, *, repair: Repair = True) -> dict[str, object]:
        """The parameters in the `content` of a call.

        A JSON object is read as parameters by name; with `repair`, so is one with mistakes whose repair loses nothing.
        With ``repair=True``, an object or a list may be the value of the only input, if that has such a type.

        Other text is the value of the only input, without blank lines around it; as a number or boolean if the input
        has such a type and the text is exactly such a literal. With several inputs, or none, the text is under
        ``"input"``. Empty text is a call without parameters if all inputs have a default.

        If the only input is a text, an object that does not begin with its name is that text, since it may be code.
        """
        fields = self._fields
        only = fields[0] if len(fields) == 1 else None
        repair = repair if fields else False
        if fields and not content.strip(ASCII_SPACE) and not any(one.required for one in fields):
            return {}
        found: Any = NO_VALUE
        hint, repairs = "", ()  # type: str, Sequence[str]
        if content.lstrip(JSON_SPACE)[:1] in ("{", "[") or (repair and content.lstrip(ASCII_SPACE)[:3] == "```"):
            named = "" if only is None else _begins_with(content, only.name)
            is_text = only is not None and str in only.type.natural
            try:
                found, hint, repairs = read_json(content, repair=bool(repair and (named or not is_text)))
            except JsonRefusedError as error:
                return ReadParams({"input": content}, refused=str(error))
            except JsonSyntaxError as error:
                if named == "quoted":
                    return ReadParams({"input": content}, refused=f"it is not valid JSON: {error}")
                if content.lstrip(JSON_SPACE)[:1] == "{":
                    hint = f"the text looks like JSON, but is not valid JSON: {error}"
            if only is not None and is_text and hint and named == "bare":
                # `{code: 1}` is code if the input `code` is a text; one text under a bare key can only be a call
                is_call = isinstance(found, dict) and [*found] == [only.name] and isinstance(found[only.name], str)
                found = found if is_call else NO_VALUE
        if only is not None and repair is True and isinstance(found, (dict, list)):
            # perhaps the value of the only input itself, without the input's name
            is_call = isinstance(found, dict) and (only.name in found or not (only.required or found))
            if not is_call and takes_whole(only.type.schema, found):
                return ReadParams({only.name: found}, is_text=False, repairs=repairs)
        if isinstance(found, dict):
            return ReadParams(found, is_text=False, repairs=repairs, hint=hint) if repairs else found
        if only is None:
            return ReadParams({"input": content}, hint=hint)
        return ReadParams({only.name: only.type.from_text(without_blank_lines(content))}, hint=hint)

    def prepare(self, content: str) -> tuple[dict[str, object], dict[str, object]] | None:
        """The parameters and keyword arguments of a call in which nothing has to be repaired, dropped or converted.

        Most calls are like this. For all others returns None; they need `read` and `bind`.
        """
        if content[:1] != "{":
            return None
        try:
            params = loads_flat(content) or loads(content, unique_keys=True)
        except ValueError:
            return None
        left = len(params)
        bound: dict[str, object] = {}
        for name, exact, default, is_mutable in self._plan:
            value = params.get(name, NO_VALUE)
            if type(value) is exact:
                bound[name] = value
                left -= 1
            elif value is NO_VALUE and default is not REQUIRED and not is_mutable:
                bound[name] = default
            else:
                return None
        return None if left or not params else (params, bound)

    def bind(
        self, params: Mapping[str, object], media_store: MediaStore | None = None, *, repair: Repair = True,
        bound: Mapping[str, object] | None = None,
    ) -> dict[str, object]:
        """The keyword arguments for the function. Raises `SkillInputError` with all faults of the call.

        `bound` are the arguments of a call of which only `params` are changed.
        """
        if isinstance(params, ReadParams) and params.refused:
            raise self._error([Fault((), f"the JSON object cannot be used: {params.refused}")], params)
        made, faults = self._converted(params, media_store, repair=repair is True, bound=bound)
        if faults:
            raise self._error(faults, params, media_store)
        return made

    def _converted(
        self, params: Mapping[str, object], media_store: MediaStore | None, *, repair: bool = False,
        bound: Mapping[str, object] | None = None,
    ) -> tuple[dict[str, object], list[Fault]]:
        """The keyword arguments, and the faults; if there are any, the arguments mean nothing."""
        record = self._record
        if bound is not None:
            record = RecordType(self.skill_name, partial(dict, bound))
            record.set_fields(one for one in self._fields if one.name in params)
        return record.checked(params, media_store, repair=repair)

    def _filled(self, /, **given: object) -> dict[str, object]:
        """The given arguments, and the defaults of the others."""
        return {
            name: given[name] if name in given else deepcopy(default) if is_mutable else default
            for name, _, default, is_mutable in self._plan
        }

    def _error(
        self, faults: Sequence[Fault], params: Mapping[str, object], media_store: MediaStore | None = None
    ) -> SkillInputError:
        """The error with all faults and a correct call: the model's own, corrected, if it is clear what was meant."""
        notes = [f"Note: {params.hint}"] if isinstance(params, ReadParams) and params.hint else []
        dropped = [*self.dropped(params)]
        if dropped:
            shown = ", ".join([*map(quoted, dropped[:MOST_UNKNOWN]), *(["…"] if len(dropped) > MOST_UNKNOWN else [])])
            notes.append(f"Note: ignored, because there is no such input: {shown}")
        # a Python caller may pass values that JSON cannot express, and the last correction does not suit every fault
        with suppress(LookupError, TypeError, ValueError, RecursionError):
            for meant, note in self._corrections(params, faults):
                call = self._call_of(meant)
                if len(call) <= _LONGEST_CORRECTION and self._is_right(meant, media_store):
                    return input_error(faults, "parameters", [*notes, f"Note: {note}"], call)
        return input_error(faults, "parameters", notes, self.usage)

    def _corrections(
        self, params: Mapping[str, object], faults: Sequence[Fault]
    ) -> Iterator[tuple[dict[str, object], str]]:
        """Calls that may have been meant, each with a note on what was changed."""
        only = self._fields[0].name if len(self._fields) == 1 else ""
        unnamed = f"does not name an input; the call below gives it as {quoted(only)}"
        if isinstance(params, ReadParams) and params.is_text:
            text = params.get(only)
            if isinstance(text, str) and text.lstrip(JSON_SPACE)[:1] in ("[", '"'):
                yield {only: read_json(text, repair=True)[0]}, f"the JSON value {unnamed}"
            return
        meant = [(path, name) for path, name in unknown_fields(self._record, dict(params)) if name]
        if meant and len({(*path[:-1], name) for path, name in meant}) == len(meant):
            renamed: Any = copy_of(dict(params))
            for path, name in meant:
                holder = reduce(getitem, path[:-1], renamed)
                holder[name] = holder.pop(path[-1])
            known = {name: value for name, value in renamed.items() if name in self.inputs}
            yield known, "the call below has the names that you probably meant"
        if only and params and only not in params:
            whole = dict(params)
            for value in (whole, json.dumps(whole, ensure_ascii=False)):
                yield {only: value}, f"the JSON object {unnamed}"
        known = {name: value for name, value in params.items() if name in self.inputs}
        given, other = copy_of(known), copy_of(known)
        for fault in faults:
            change_form(given, fault.path, "")
            change_form(other, fault.path, "?")
        if given == other or not self._is_right(other):  # if any text fits, 3.1 may have been 3.10
            yield given, "strings need quotes, other values must not have them, as in the call below"

    def _is_right(self, params: Mapping[str, object], media_store: MediaStore | None = None) -> bool:
        return not self._converted(params, media_store)[1]

    def _call_of(self, params: Mapping[str, object]) -> str:
        return str(Block("command", self.skill_name, json_in_block(params) if params else ""))

    def dropped(self, params: Mapping[str, object]) -> dict[str, str]:
        """The names of parameters that are not inputs, and the paths of fields in them that do not exist.

        Each has the missing input or field that was probably meant, or "".
        """
        if isinstance(params, ReadParams) and params.is_text:
            return {}
        unknown = unknown_fields(self._record, dict(params))
        return {_place(path): name and _place((*path[:-1], name)) for path, name in unknown}

    @Once
    def usage(self) -> str:
        """A correct call as a block: required inputs with a sample, others with their default if JSON can express it.

        Empty if none is known, since models would copy an incorrect call again and again.
        """
        sample = self.sample()
        is_right = self.has_media or self._is_right(sample)  # a sample cannot have an existing media id
        return self._call_of(sample) if is_right else ""

    def sample(self) -> dict[str, object]:
        """The parameters of a correct call."""
        found = {}
        for one in self._fields:
            sample = one.type.sample() if one.required else one.json_default()
            if sample is not NO_VALUE and (one.required or len(json.dumps(sample)) <= _LONGEST_DEFAULT):
                found[one.name] = sample
        return found

    def describe(self) -> Iterator[str]:
        """A line for each input, indented ones for nested fields."""
        for one in self._fields:
            first, *inside = lines_of(one.name, one.schema(), required=one.required)
            yield from [f"- {first}", *(f"  - {line}" for line in inside)]

    @Once
    def whole(self) -> Schema:
        """The schema of all inputs, in the form of `kernai.inputs.schema`."""
        return object_schema(self._fields)

    @Once
    def trusted(self) -> list[str]:
        """The inputs, or parts of inputs, that accept only trusted values: ``to``, ``payments[].to``."""
        return [f"{one.name}{path}" for one in self._fields for path in sorted(set(marks_of(one.type.schema)))]

    def schema(self) -> Schema:
        """The parameters of a call as JSON Schema, see `kernai.inputs.schema`."""
        return published(self.whole)


def _is_mutable(default: object) -> bool:
    """Whether each call gets a copy of a default: if it has no hash. Raises `TypeError` if it cannot be copied."""
    with suppress(TypeError):
        hash(default)
        return False
    try:
        deepcopy(default)
    except Exception as error:
        raise TypeError(f"its default cannot be copied for each call: {error}") from error
    return True


def _place(path: Sequence[str | int]) -> str:
    return dotted(path) if len(path) > 1 else str(path[0])


def change_form(params: Any, path: Sequence[str | int], after_fraction: str | None = None) -> None:
    """Replaces a text in `params` by the JSON value in it, and a number or boolean by its text. Raises for others.

    The text of a number with a fraction ends in `after_fraction`. Without that it raises, since the text is not known.
    """
    from kernai.jsonio.tolerant_json import read_tolerantly  # most parameters are of the right type

    *above, last = path
    holder = reduce(getitem, above, params)
    value = holder[last]
    data = read_tolerantly(value)[0] if isinstance(value, str) else value
    after = after_fraction if isinstance(value, float) else ""
    if data is None or isinstance(data, str) or isinstance(value, (list, dict)) or after is None:
        raise TypeError("no number or boolean, or a number whose text is not known")
    holder[last] = data if isinstance(value, str) else json.dumps(value) + after


# ----------------------------------------------------------------------------------------------- a call's parameters


_GAP = r"(?:\s|//.*|#.*|/\*(?s:.*?)\*/)*+"  # white space and comments
_FIRST_KEY = (  # compiled only when a call is not valid JSON
    rf"""\s*+(?:```\w*+\s*+)?\{{{_GAP}(?:"((?:[^"\\]|\\.)*+)"|'([^'\\]*+)'|([^\W\d][\w$-]*+)){_GAP}:"""
)


def _begins_with(content: str, name: str) -> Literal["quoted", "bare", ""]:
    """How the first key of a JSON object is written, if the text begins like one and the key is `name`."""
    first = re.match(_FIRST_KEY, content)
    if first is None or first[first.lastindex or 0] != name:
        return ""
    return "bare" if first[3] is not None else "quoted"


def read_json(content: str, *, repair: bool) -> tuple[Any, str, Sequence[str]]:
    """The value of the text, what is wrong with it as JSON, and the repairs that were made."""
    try:
        return loads(content, unique_keys=True), "", ()
    except JsonSyntaxError as error:
        if not repair:
            raise
        from kernai.jsonio.tolerant_json import read_tolerantly  # most calls are JSON

        value, repairs = read_tolerantly(content)
        return value, f"the text is not valid JSON: {error}", repairs


def without_blank_lines(text: str) -> str:
    """The text without blank lines at both ends; a single line is also stripped of spaces.

    Models put a line break after an opening tag. Indentation is kept, since the text may be code.
    """
    inside = text.strip(ASCII_SPACE)
    if "\n" not in inside:
        return inside
    begin = text.rfind("\n", 0, len(text) - len(text.lstrip(ASCII_SPACE))) + 1
    end = text.find("\n", len(text.rstrip(ASCII_SPACE)))
    return text[begin:] if end < 0 else text[begin:end].removesuffix("\r")
