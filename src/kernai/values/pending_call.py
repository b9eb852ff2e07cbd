"""`PendingCall`: what somebody is asked who decides on a call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kernai.values.value import Value


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class PendingCall(Value):
    """A call that waits for a decision. `skill` names the skill, or the protocol; None for a call of the model."""

    call_id: str
    skill: str | None = None
    params: Any = None
    reason: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """As `approval_requested` tells it."""
        return {
            "call_id": self.call_id, "skill": self.skill, "params": self.params, "reason": self.reason,
            "metadata": dict(self.metadata),
        }
