"""`fallback`: where one model fails, another one is asked."""

from __future__ import annotations

from kernai.agents.agent import check_model
from kernai.errors import ProviderError
from kernai.loop.effects import CallModel, Effect
from kernai.middleware.chain import Flow, Middleware
from kernai.registry.provider import Provider, check_provider
from kernai.values.model import Model


def fallback(provider: Provider | None = None, model: Model | None = None) -> Middleware:
    """Asks `provider` for `model` when a model call ends in a `ProviderError`; what is None stays as it is.

    The recording says which model answered, and its price counts. Put it outside of `retry`, so that each is tried as
    often; several fall back in turn, the innermost first.
    """
    check_provider(provider)
    if model is not None:
        check_model(model)
    if provider is None and model is None:
        raise ValueError("fallback needs another provider, another model, or both")

    def middleware(effect: Effect) -> Flow:
        try:
            return (yield effect)
        except ProviderError:
            if not isinstance(effect, CallModel):
                raise
        other = effect.provider if provider is None else provider
        return (yield effect.replace(provider=other, model=effect.model if model is None else model))

    return middleware
