"""`Credential` and `Setting`: what a skill needs beyond its inputs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kernai._util.copies import Value
from kernai.errors import KernaiError
from kernai.inputs.faults import Validation, dotted
from kernai.inputs.params import setting_value

if TYPE_CHECKING:
    from kernai.inputs.types import InputType


@dataclass(frozen=True, eq=False, repr=False)
class Credential(Value):
    """A secret that a skill reads with ``ctx.credential(key)``.

    Reading one without a value is a `CredentialMissingError` if it is required, else its `default`. The value never
    shows in a listing, an event, a log line or an error.
    """

    required: bool = True
    description: str = ""
    default: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.required, bool):
            raise TypeError(f"required must be True or False, got {type(self.required).__name__}")
        if self.default is not None and not isinstance(self.default, str):
            raise TypeError(f"the default of a Credential must be text or None, got {type(self.default).__name__}")


@dataclass(frozen=True, eq=False, repr=False)
class Setting(Value):
    """A value that a skill reads with ``ctx.setting(key)``, converted to `type`.

    `type` is any type that an input may have. Text becomes a number or boolean if it is exactly that, else what the
    type makes of text; lists and objects are given as JSON. The default is used unchanged. An unknown type is a
    `TypeError`.
    """

    type: Any = str
    default: Any = None
    description: str = ""
    _kind: InputType = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        from kernai.inputs.annotations import TypeBuilder  # loaded by the first skill, see skill_definition

        object.__setattr__(self, "_kind", TypeBuilder().build(self.type)[0])

    def convert(self, value: object, where: str) -> Any:
        """`value` as `type`; a `KernaiError` says `where` it is, what was expected and what was received."""
        validation = Validation()
        made = setting_value(value, self._kind, validation)
        if validation.faults:
            faults = "; ".join(f"{dotted(path)} {message}".strip() for path, message in validation.faults)
            raise KernaiError(f"{where}: {faults}")
        return made
