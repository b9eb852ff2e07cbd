"""Middleware: a failed call is retried, another model takes over, and a dangerous call is never made."""

from __future__ import annotations

import kernai
from kernai.middleware import CallModel, CallSkill, Effect, Flow, fallback, guardrail, retry

BUSY = kernai.ProviderError("busy", retryable=True, retry_after=0)
DOWN = kernai.ProviderError("down")


@kernai.skill(register=False)
def refund(order: int, euros: int) -> str:
    """Refund an order."""
    return f"order {order}: {euros} euros refunded"


def small_amounts(call: object) -> str | None:
    """Returns why a call must not be made."""
    if isinstance(call, CallSkill) and call.arguments["euros"] > 100:
        return f"{call.arguments['euros']} euros need a person"
    return None


def show(effect: Effect) -> Flow:
    """Prints each effect and its outcome."""
    name = effect.model.id if isinstance(effect, CallModel) else "refund"
    try:
        outcome = yield effect
    except kernai.ProviderError as error:
        print(f"  {name}: {error}")
        raise
    print(f"  {name}: {outcome.content if isinstance(effect, CallModel) else outcome}")
    return outcome


def make_agent(euros: int) -> kernai.Agent:
    call = f'<block type="command" name="refund">{{"order": 7, "euros": {euros}}}</block>'
    large = kernai.MockProvider("", "", "<final>Refunded.</final>")
    large.fail_on_step(0, BUSY).fail_on_step(1, DOWN)
    small = kernai.MockProvider(call)
    return kernai.Agent(
        instructions="You refund orders.",
        provider=large,
        model=kernai.Model("large"),
        skills=[refund],
        middleware=[guardrail(small_amounts), fallback(small, kernai.Model("small")), retry(), show],
    )


if __name__ == "__main__":
    print("40 euros:")
    print(kernai.run(make_agent(40), "Refund order 7."))

    print("\n4,000 euros:")
    result = kernai.execute(make_agent(4000), "Refund order 7.")
    print(f"{result.stop_reason}: {result.error}")
