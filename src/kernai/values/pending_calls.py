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
    """A value of a call that neither the user nor the host brought in.

    `path` is the input, such as ``recipient`` or ``payments[0].to``; empty where the call as a whole is in doubt.
    `source` says where the value comes from.
    """

    path: str
    value: str
    source: str

    def __str__(self) -> str:
        shown = json.dumps(self.value, ensure_ascii=False)
        return f"{self.path} is {shown}, {self.source}" if self.path else self.source

    def to_dict(self) -> dict[str, str]:
        """As `approval_requested` records it."""
        return {"path": self.path, "value": self.value, "source": self.source}


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class PendingCall(Value):
    """A call that waits for a decision. `skill` is the name of the skill or protocol; None for a call of the model.

    `until` is when it is made again if nobody has decided, ISO 8601 in UTC; None if it waits for a person alone.
    `untrusted` are values that only the user may bring in, and did not.
    """

    call_id: str
    skill: str | None = None
    params: Any = None
    reason: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    until: str | None = None
    untrusted: Sequence[UntrustedValue] = ()

    def __post_init__(self) -> None:
        # whoever made or was shown this one may change their data
        object.__setattr__(self, "params", copied(self.params))
        object.__setattr__(self, "metadata", copied(self.metadata))

    def to_dict(self) -> dict[str, Any]:
        """As `approval_requested` records it."""
        data: dict[str, Any] = {
            "call_id": self.call_id, "skill": self.skill, "params": self.params, "reason": self.reason,
            "metadata": dict(self.metadata),
        }
        if self.until is not None:
            data["until"] = self.until
        if self.untrusted:
            data["untrusted"] = [one.to_dict() for one in self.untrusted]
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> PendingCall:
        """Back from `to_dict`."""
        untrusted = tuple([UntrustedValue(**one) for one in data.get("untrusted") or ()])
        return cls(**{**data, "untrusted": untrusted})
