"""`retry`: a model call that failed for a reason that may pass is made again."""

from __future__ import annotations

import random
from collections.abc import Callable

from kernai.errors import ProviderError
from kernai.loop.effects import CallModel, Effect, Sleep
from kernai.middleware.chain import Flow, Middleware

#: beyond so many doublings any wait has reached its longest
_MOST_DOUBLINGS = 64


def retry(
    attempts: int = 3,
    *,
    first_wait: float = 0.5,
    longest_wait: float = 60.0,
    draw: Callable[[], float] = random.random,
) -> Middleware:
    """Makes a model call at most `attempts` times, as long as its `ProviderError` is retryable.

    It waits as long as the vendor asks, else `first_wait` seconds, doubled each time, less up to half of it by
    chance, which `draw` gives as a number from 0 to 1.
    A vendor that asks for more than `longest_wait` is not waited for: the error passes.
    """
    if not isinstance(attempts, int) or isinstance(attempts, bool) or attempts < 1:
        raise ValueError(f"attempts must be an int of at least 1, got {attempts!r}")

    def middleware(effect: Effect) -> Flow:
        if not isinstance(effect, CallModel):
            return (yield effect)
        made = 0
        while True:
            try:
                return (yield effect)
            except ProviderError as error:
                wait = error.retry_after
                if wait is None or not wait >= 0:  # in this order NaN is no hint either
                    wait = min(longest_wait, first_wait * 2.0 ** min(made, _MOST_DOUBLINGS)) * (1 + draw()) / 2
                made += 1
                if made >= attempts or not error.retryable or wait > longest_wait:
                    raise
            yield Sleep(wait, effect.scope, effect.call_id)

    return middleware
