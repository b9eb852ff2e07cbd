"""What a skill declares: inputs and context in its function's signature, and its `Credential`s and `Setting`s."""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from kernai._util.api import Value, check_type, signature_of
from kernai.errors import KernaiError
from kernai.inputs.annotations import Namespace, TypeBuilder, defaulted, undescribed
from kernai.inputs.schema import REQUIRED
from kernai.inputs.table import Input, InputTable
from kernai.inputs.types import InputType, dotted
from kernai.jsonio.json_data import value_in
from kernai.registry.skill_context import SkillContext

if TYPE_CHECKING:
    from inspect import Parameter, Signature

# An annotation with names that are imported under TYPE_CHECKING cannot be resolved, but a SkillContext is recognised.
_CONTEXT_TEXT = re.compile(r"(?:(?:[\w.]+\.)?Optional\[\s*)?(?:[\w.]+\.)?SkillContext\b.*", re.DOTALL)


def read_signature(
    skill_name: str, function: Callable[..., Any], declared: Mapping[str, Any] | None = None
) -> tuple[InputTable, str | None, tuple[str, ...]]:
    """The inputs, and how to call the function: the names of its context parameter and of positional-only parameters.

    If they are not `declared`, they come from each parameter's annotation, default and description in ``Annotated``.
    Raises `TypeError` for a parameter that cannot be an input (``*args``, an unknown type, an unknown name in one), and
    for a function that does not accept the declared inputs.
    """
    about = f"skill {skill_name!r}: "
    namespace = Namespace(function)
    signature = _signature(about, function, is_declared=declared is not None)
    parameters = signature.parameters.values()
    inputs = {key: kind if isinstance(kind, Input) else Input(kind) for key, kind in (declared or {}).items()}
    given = {*inputs, *(function.keywords if isinstance(function, partial) else ())}
    context: str | None = None
    for one in parameters:
        if one.name in given or one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD):
            continue
        annotation = _resolved(about, one, namespace, is_input=declared is None)
        if _is_context(annotation):
            context = one.name
        elif declared is None:
            default = REQUIRED if one.default is one.empty else one.default
            inputs[one.name] = Input(defaulted(annotation, default), default)
    passed = [*inputs, *([] if context is None else [context])]
    in_order = [one.name for one in parameters if one.kind is one.POSITIONAL_ONLY]
    positional = [name for name in in_order if name in passed]
    if positional != in_order[: len(positional)]:  # it would be passed for the parameter before it
        raise TypeError(f"{about}its function takes {positional[-1]!r} by position, after one that is not in inputs")
    try:
        signature.bind(*positional, **{name: None for name in passed if name not in positional})
    except TypeError as error:
        raise TypeError(f"{about}its function does not accept these inputs: {error}") from None
    return InputTable(skill_name, inputs, TypeBuilder(namespace)), context, tuple(positional)


def _signature(about: str, function: Callable[..., Any], *, is_declared: bool) -> Signature:
    """The function's signature. Unless inputs are declared, raises `TypeError` for a parameter that cannot be one."""
    try:
        signature = signature_of(function)
    except ValueError:  # some functions written in C
        if not is_declared:
            raise TypeError(f"{about}the signature of {function!r} cannot be read; pass inputs={{...}}") from None
        return signature_of(lambda **_: None)
    for at, one in enumerate(() if is_declared else signature.parameters.values()):
        if one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD):
            stars = "*" if one.kind is one.VAR_POSITIONAL else "**"
            why = "since models give inputs by name; write each one out, or take a dict"
            raise TypeError(f"{about}parameter '{stars}{one.name}' cannot be an input, {why}")
        if one.annotation is one.empty and (one.name == "ctx" or (at == 0 and one.name in ("self", "cls"))):
            bound = "make a skill of the bound method: skill(instance.method)"
            fix = "write ctx: SkillContext, or ctx: Any for an input" if one.name == "ctx" else bound
            raise TypeError(f"{about}{one.name!r} would be an input; {fix}")
    return signature


def _resolved(about: str, parameter: Parameter, namespace: Namespace, *, is_input: bool) -> Any:
    """The parameter's type. If it is not an input, an annotation that cannot be resolved means nothing."""
    annotation = parameter.annotation
    if annotation is parameter.empty:
        return Any
    try:
        return namespace.resolve(annotation)
    except Exception as error:
        named = getattr(annotation, "__forward_arg__", annotation)
        if _is_context(annotation) or (isinstance(named, str) and _CONTEXT_TEXT.fullmatch(named.strip())):
            return SkillContext
        if not is_input:
            return Any
        what = f"parameter {parameter.name!r}: the annotation {named!r} cannot be resolved ({error})"
        fix = "define or import its names where the skill is defined"
        raise TypeError(f"{about}{what}; {fix}") from error


def _is_context(annotation: Any) -> bool:
    annotation = undescribed(annotation)
    origin = typing.get_origin(annotation)
    if origin in (typing.Union, types.UnionType):
        return any(_is_context(one) for one in typing.get_args(annotation))
    kind = origin or annotation
    return isinstance(kind, type) and issubclass(kind, SkillContext)


@dataclass(frozen=True, eq=False, repr=False)
class Credential(Value):
    """A secret that a skill reads with ``ctx.credential(key)``.

    If no value is found, the `default` is used. If that is None too, reading a required credential raises
    `CredentialMissingError`. The value never appears in a listing, an event, a log line or an error.
    """

    required: bool = True
    description: str = ""
    default: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        check_type(self.required, bool, "required must be True or False")


@dataclass(frozen=True, eq=False, repr=False)
class Setting(Value):
    """A value that a skill reads with ``ctx.setting(key)``, converted to `type`.

    `type` is any type that an input may have. A value that is text is read as this type requires: as a number or
    boolean if it is exactly that (``true`` or ``True``), as JSON for lists and objects. The default is used unchanged;
    lists, dicts and sets are copied each time. Raises `TypeError` for an unknown type, and for a text or an integer as
    the default of another type.
    """

    type: Any = str
    default: Any = None
    description: str = ""
    _kind: InputType = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_kind", TypeBuilder().build(self.type)[0])
        if isinstance(self.default, (str, int)) and self._kind.checked(self.default) != (self.default, []):
            raise TypeError(f"the default of a Setting must be of its type, it is not converted, got {self.default!r}")

    def convert(self, value: object, where: str) -> Any:
        """Converts `value` to `type`. Raises `KernaiError` with `where` it is, what was expected, what was received."""
        kind = self._kind
        if isinstance(value, str):
            as_json = {"True": "true", "False": "false"}.get(value, value)  # as Python writes them
            value = kind.from_text(value) if str in kind.natural else value_in(as_json)
        made, faults = kind.checked(value)
        if faults:
            said = "; ".join(f"{dotted(one.path)} {one.message}".strip() for one in faults)
            raise KernaiError(f"{where}: {said}")
        return made
