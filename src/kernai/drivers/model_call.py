"""`ModelCall`: one call of a provider, the same for every driver."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kernai.errors import ProviderError
from kernai.loop.run_state import NO_PROVIDER
from kernai.values.llm_response import LlmResponse

if TYPE_CHECKING:
    from kernai.loop.effects import CallModel
    from kernai.loop.root import Root


class ModelCall:
    """Whom an effect asks and what they are `given`, as the four arguments of `Provider.call`.

    Whoever asks by other means than `ask` gives `failed` what comes of a failure.
    """

    __slots__ = ("given", "provider", "run", "stream")

    def __init__(self, root: Root, effect: CallModel) -> None:
        self.run = run = root.runs[effect.scope]
        provider = run.provider if effect.provider is None else effect.provider
        if provider is None:
            raise ProviderError(NO_PROVIDER)
        assert run.stream is not None
        self.provider = provider
        self.stream = run.stream.for_call(effect)
        self.given = (effect.messages, effect.model, effect.generation, self.stream)

    def ask(self) -> LlmResponse:
        """Asks in this thread."""
        try:
            return self.answered(self.provider.call(*self.given))
        except BaseException as error:
            self.failed(error)
            raise

    def answered(self, answer: Any) -> LlmResponse:
        """The answer, with the model that gave it and its price where that was not the run's."""
        if not isinstance(answer, LlmResponse):
            raise ProviderError(f"{type(self.provider).__name__} returned {type(answer).__name__}, not an LlmResponse")
        model = self.given[1]
        if model is self.run.model or model.id == self.run.model.id:
            return answer
        return replace(
            answer,
            model=answer.model or model.id,
            cost=answer.cost_at(model),
        )

    def failed(self, error: BaseException) -> None:
        """Ends the call; past its own time the error is a timeout, which is raised in its place."""
        self.stream.end(error, self.provider)
        late = isinstance(error, Exception) and self.stream.is_late() and getattr(error, "code", None) != "timeout"
        if late and not self.run.root.cancellation.is_set():
            raise self.stream.timed_out() from error
