"""`PendingCall`: a call that waits for a decision; `UntrustedValue`: why it may not be made without one."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kernai._util.api import Value
from kernai.jsonio.json_data import copied


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class UntrustedValue(Value):
    """A value of a call that came from neither the user nor the host.

    `path` is the input, such as ``recipient`` or ``payments[0].to``; empty if the whole call is in doubt. `source` says
    where the value came from.
    """

    path: str
    value: str
    source: str

    def __str__(self) -> str:
        shown = json.dumps(self.value, ensure_ascii=False)
        return f"{self.path} is {shown}, {self.source}" if self.path else self.source

    def to_dict(self) -> dict[str, str]:
        """The data that `approval_requested` records."""
        return {"path": self.path, "value": self.value, "source": self.source}


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class PendingCall(Value):
    """A call that waits for a decision. `skill` is the name of the skill or protocol; None for a call of the model.

    `until` is the time when the call is made again if nobody has decided, ISO 8601 in UTC; None if it waits only for a
    decision. `untrusted` are values that must come from the user, and did not.
    """

    call_id: str
    skill: str | None = None
    params: Any = None
    reason: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    until: str | None = None
    untrusted: Sequence[UntrustedValue] = ()

    def __post_init__(self) -> None:
        # copies, since the objects that were passed may be changed later
        object.__setattr__(self, "params", copied(self.params))
        object.__setattr__(self, "metadata", copied(self.metadata))

    def to_dict(self) -> dict[str, Any]:
        """The data that `approval_requested` records."""
        until = {} if self.until is None else {"until": self.until}
        untrusted = {"untrusted": [one.to_dict() for one in self.untrusted]} if self.untrusted else {}
        return {
            "call_id": self.call_id, "skill": self.skill, "params": self.params, "reason": self.reason,
            "metadata": dict(self.metadata), **until, **untrusted,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> PendingCall:
        """The inverse of `to_dict`."""
        untrusted = tuple([UntrustedValue(**one) for one in data.get("untrusted") or ()])
        return cls(**{**data, "untrusted": untrusted})
