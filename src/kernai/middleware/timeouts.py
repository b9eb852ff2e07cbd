"""`timeout`: a model call has so much time."""

from __future__ import annotations

from sys import float_info

from kernai.loop.effects import CallModel, Effect
from kernai.middleware.chain import Flow, Middleware


def timeout(seconds: float) -> Middleware:
    """Ends a model call after `seconds` with a retryable `ProviderError` whose code is ``timeout``.

    Inside of `retry`, each try has that time. A sync run waits for a provider that does not
    look at `on_chunk`.
    """
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 < seconds <= float_info.max:
        raise ValueError(f"seconds must be a number above 0, got {seconds!r}")

    def middleware(effect: Effect) -> Flow:
        if isinstance(effect, CallModel):
            given = effect.timeout
            effect = effect.replace(timeout=seconds if given is None else min(given, seconds))
        return (yield effect)

    return middleware
