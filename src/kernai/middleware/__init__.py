"""What stands between the loop and its drivers: generator functions that are given an effect.

A middleware yields the effect it is given (or another, or none) to have it performed, is sent the outcome, and returns
what the loop shall see. One definition serves threads and asyncio; see docs/middleware.md.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from kernai.errors import Pause, Stop
from kernai.loop.effects import CallModel, CallProtocol, CallSkill, Effect, Sleep
from kernai.middleware.chain import Flow, Middleware

if TYPE_CHECKING:
    from kernai.middleware.compaction import compact
    from kernai.middleware.fallbacks import fallback
    from kernai.middleware.guardrails import guardrail
    from kernai.middleware.hooks import HookContext, Hooks
    from kernai.middleware.redaction import redact
    from kernai.middleware.retries import retry
    from kernai.middleware.timeouts import timeout

__all__ = [
    "CallModel",
    "CallProtocol",
    "CallSkill",
    "Effect",
    "Flow",
    "HookContext",
    "Hooks",
    "Middleware",
    "Pause",
    "Sleep",
    "Stop",
    "compact",
    "fallback",
    "guardrail",
    "redact",
    "retry",
    "timeout",
]

#: where each is defined; imported when it is asked for, since every run imports this package
_MODULES = {
    "HookContext": "hooks",
    "Hooks": "hooks",
    "compact": "compaction",
    "fallback": "fallbacks",
    "guardrail": "guardrails",
    "redact": "redaction",
    "retry": "retries",
    "timeout": "timeouts",
}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in _MODULES:
            raise AttributeError(f"module 'kernai.middleware' has no attribute {name!r}")
        return getattr(import_module(f"kernai.middleware.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
