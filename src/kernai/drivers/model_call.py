"""One call of a provider, the same for every driver: `begun`, then `answered`, or `failed`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kernai.errors import ProviderError
from kernai.loop.run_state import NO_PROVIDER
from kernai.values.llm_response import LlmResponse

if TYPE_CHECKING:
    from kernai.loop.effects import CallModel
    from kernai.loop.model_stream import ModelStream
    from kernai.loop.root import Root
    from kernai.loop.run_state import Run
    from kernai.registry.provider import Provider


def begun(root: Root, effect: CallModel) -> tuple[Run, Provider, ModelStream]:
    """Whose call it is, whom it asks, and the stream of their answer."""
    run = root.runs[effect.scope]
    provider = run.provider if effect.provider is None else effect.provider
    if provider is None:
        raise ProviderError(NO_PROVIDER)
    assert run.stream is not None
    return run, provider, run.stream.for_call(effect)


def answered(run: Run, provider: Provider, effect: CallModel, answer: Any) -> LlmResponse:
    """The answer, with the model that gave it and its price where that was not the run's."""
    if not isinstance(answer, LlmResponse):
        raise ProviderError(f"{type(provider).__name__} returned {type(answer).__name__}, not an LlmResponse")
    model = effect.model
    if model is run.model or model.id == run.model.id:
        return answer
    return replace(answer, model=answer.model or model.id, cost=answer.cost_at(model))


def failed(run: Run, provider: Provider, stream: ModelStream, error: BaseException) -> None:
    """Ends the call; past its own time the error is a timeout, which is raised in its place."""
    stream.end(error, provider)
    late = isinstance(error, Exception) and stream.is_late() and getattr(error, "code", None) != "timeout"
    if late and not run.root.cancellation.is_set():
        raise stream.timed_out() from error
