"""The layer between the loop and its drivers: generator functions that each receive an effect.

A middleware yields the effect (or another one, or none) to have it performed, is sent the outcome, and returns the
outcome for the loop. The same function works with threads and asyncio; see docs/middleware.md.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from kernai.errors import Pause, Stop
from kernai.loop.effects import CallModel, CallProtocol, CallSkill, Effect, Sleep
from kernai.middleware.chain import Flow, Middleware

if TYPE_CHECKING:
    from kernai.middleware.bundled import compact, fallback, guardrail, redact, retry, timeout
    from kernai.middleware.hooks import HookContext, Hooks

__all__ = [
    "CallModel", "CallProtocol", "CallSkill", "Effect", "Flow", "HookContext", "Hooks", "Middleware", "Pause", "Sleep",
    "Stop", "compact", "fallback", "guardrail", "redact", "retry", "timeout",
]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        # imported on first use, since every run imports this package
        if name not in __all__:
            raise AttributeError(f"module 'kernai.middleware' has no attribute {name!r}")
        module = "hooks" if name in ("Hooks", "HookContext") else "bundled"
        return getattr(import_module(f"kernai.middleware.{module}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
