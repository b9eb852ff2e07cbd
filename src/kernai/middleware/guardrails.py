"""`guardrail`: a run that is about to do what it must not is stopped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernai._util.callables import is_async
from kernai.errors import Stop
from kernai.loop.effects import CallModel, Effect
from kernai.middleware.chain import Flow, Middleware


def guardrail(check: Callable[[Any], bool | str | None], *, answers: bool = False) -> Middleware:
    """Stops the run with the reason ``guardrail`` where `check` objects: it gives False, or a text that says why.

    It is asked before each call (`CallModel`, `CallSkill`, `CallProtocol`), and with `answers` also for each
    `LlmResponse`; then text is shown when it is whole, so that nobody sees what is stopped.
    """
    if not callable(check) or is_async(check):
        raise TypeError(f"check must be a plain function, got {check!r}")

    def judge(what: object) -> None:
        verdict = check(what)
        if verdict is not None and verdict is not True:
            raise Stop("guardrail", verdict or "a guardrail has stopped the run")

    def middleware(effect: Effect) -> Flow:
        judge(effect)
        if not answers or not isinstance(effect, CallModel):
            return (yield effect)
        response = yield effect.replace(stream=False)
        judge(response)
        return response

    return middleware
