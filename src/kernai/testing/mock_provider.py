"""`MockProvider`: a provider whose answers a test sets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

from kernai import GenerationOptions, LlmResponse, Message, Model, NativeCall, Provider, ProviderError, Tools, parse
from kernai._util.api import ForkSafeLock, NotCopied, check_count, check_function, check_type
from kernai.errors import copied
from kernai.values.llm_response import written

LONGEST_SHOWN = 300
Answer = Callable[[Sequence[Message], Model], str | LlmResponse]
TokenCounter = Callable[[Sequence[Message], str], Mapping[str, int | None]]


@dataclass(frozen=True, slots=True)
class MockCall:
    """The arguments of one call of the provider."""

    messages: Sequence[Message]
    model: Model
    generation: GenerationOptions
    tools: Tools | None = None


class MockProvider(NotCopied, Provider):
    """Answers with the given texts in order; the last one repeats. Without texts, every answer is empty.

    An `LlmResponse` instead of a text also sets the finish reason, the usage and other fields of the response.
    `chunk_size` is the number of characters per streamed piece, 1 by default, so that every test exercises split tags.
    Thread-safe: parallel calls are answered in the order of their arrival.

    With `native`, it acts like a vendor with native calls: for an agent that uses them, those blocks of a text that
    call something become native calls, and the content of a `final` becomes prose.

    With `strict`, each answer is for one call. A call without an answer left raises an `AssertionError`; so does the
    end of a ``with`` block, or `check`, if answers are left over. An `AssertionError`, even from `on_call`'s function,
    ends the run, and the run raises it unchanged.
    """

    raises_assertions = True

    def __init__(
        self, *texts: str | LlmResponse, chunk_size: int = 1, native: bool = False, strict: bool = False
    ) -> None:
        self.chunk_size = check_count("chunk_size", chunk_size)
        self.calls_natively = native
        self.strict = strict
        self._lock = ForkSafeLock()
        MockProvider.reset(self).respond_with(*texts)  # a subclass's `reset` may need more than there is yet

    def reset(self) -> Self:
        """Forgets the calls, answers and failures. Keeps `chunk_size`, `native` and `strict`."""
        with self._lock:
            self._texts: list[str | LlmResponse] = []
            self._given = 0
            self._answer: Answer | None = None
            self._counter: TokenCounter | None = None
            self._failures: dict[int, Exception] = {}
            self.calls: list[MockCall] = []
        return self

    def respond_with(self, *texts: str | LlmResponse) -> Self:
        """Adds answers to those set before. The last one repeats."""
        with self._lock:
            self._texts += _checked(texts)
        return self

    def respond_with_script(self, script: Mapping[int, str | LlmResponse]) -> Self:
        """Sets the answers by call number, replacing those set before. The numbers must run from 0 without gaps."""
        if set(script) != set(range(len(script))):
            raise ValueError(f"the script's numbers must run from 0 without gaps, got {list(script)}")
        with self._lock:
            self._texts = _checked([script[at] for at in range(len(script))])
        return self

    def on_call(self, answer: Answer) -> Self:
        """Answers with ``answer(messages, model)`` instead of texts."""
        check_function("on_call", answer, "(messages, model)", (), None)
        self._answer = answer
        return self

    def with_token_counter(self, counter: TokenCounter) -> Self:
        """Reports ``counter(messages, content)`` as usage: a dict with ``prompt_tokens`` and ``completion_tokens``."""
        check_function("with_token_counter", counter, "(messages, content)", (), "")
        self._counter = counter
        return self

    def fail_on_step(self, step: int, error: Exception | type[Exception] = ProviderError) -> Self:
        """Raises `error` at call number `step`: an exception, or its class if it needs no arguments."""
        made = error() if isinstance(error, type) else error
        wanted = "error must be an exception, or its class if it needs no arguments"
        self._failures[check_count("step", step, or_zero=True)] = check_type(made, Exception, wanted)
        return self

    def check(self) -> None:
        """With `strict`, raises an `AssertionError` if answers, or failures set by `fail_on_step`, were not used."""
        __tracebackhide__ = True  # so that pytest shows the line of the test
        with self._lock:
            left = self._texts[self._given:]
            failures = sorted(at for at in self._failures if at >= len(self.calls))
        if self.strict and left:
            count = f"{len(left)} of its {len(self._texts)} answers"
            raise AssertionError(f"MockProvider was not asked for {count}, the first is {_shown(left[0])}")
        if self.strict and failures:
            made = len(self.calls)
            raise AssertionError(f"MockProvider was to fail at call {failures[0]}, counted from 0; calls made: {made}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        __tracebackhide__ = True
        if kind is None:
            self.check()

    @property
    def call_count(self) -> int:
        return len(self.calls)

    @property
    def last_call(self) -> MockCall | Any:  # Any: a test that wants a call need not rule None out
        """The latest call; None before the first."""
        return self._call_at(-1)

    def messages_at(self, index: int) -> Sequence[Message] | Any:
        """The messages of call `index`; None if it was not made."""
        return None if (call := self._call_at(index)) is None else call.messages

    def generation_at(self, index: int) -> GenerationOptions | Any:
        """The generation options of call `index`; None if it was not made."""
        return None if (call := self._call_at(index)) is None else call.generation

    def _call_at(self, index: int) -> MockCall | None:
        with self._lock:
            return self.calls[index] if -len(self.calls) <= index < len(self.calls) else None

    def call(
        self, messages: Sequence[Message], model: Model, generation: GenerationOptions,
        on_chunk: Callable[[str], object],
    ) -> LlmResponse:
        """Answers as set up, in pieces of `chunk_size`."""
        tools: Tools | None = getattr(on_chunk, "tools", None) if self.calls_natively else None
        if tools is not None:
            messages = tools.messages(messages)
        with self._lock:
            at = len(self.calls)
            self.calls.append(MockCall(messages, model, generation, tools))
            failure, answer, counter = self._failures.get(at), self._answer, self._counter
            text = self._texts[min(at, len(self._texts) - 1)] if self._texts else ""
            if self.strict and failure is None and answer is None:
                if self._given >= len(self._texts):  # `respond_with_script` may have set fewer than were given
                    last = _shown(messages[-1].text if messages else "")
                    what = f"MockProvider was called once more than it has answers ({len(self._texts)})"
                    raise AssertionError(f"{what}. The last message was: {last}")
                text = self._texts[self._given]
                self._given += 1
        if failure is not None:
            raise copied(failure)  # since a run attaches its result to the exception that ended it
        answered = text if answer is None else answer(messages, model)
        response = LlmResponse(answered) if isinstance(answered, str) else answered
        check_type(response, LlmResponse, "on_call's function must give text or an LlmResponse")
        if tools is not None and response.blocks is None:
            response = _native(response, tools)
        prose = response.prose
        self._stream(response.content if prose is None else prose, on_chunk)
        if prose is not None and (show := getattr(on_chunk, "block", None)) is not None:
            for number, block in enumerate(response.blocks or ()):
                self._stream(block.content, partial(show, number, block.type, block.name))
        usage: Mapping[str, Any] = {} if counter is None else counter(messages, response.content)
        return replace(response, **usage)

    def _stream(self, text: str, on_chunk: Callable[[str], object]) -> None:
        for start in range(0, len(text), self.chunk_size):
            on_chunk(text[start : start + self.chunk_size])


def _checked(answers: Iterable[str | LlmResponse]) -> list[str | LlmResponse]:
    for answer in answers:
        if not isinstance(answer, (str, LlmResponse)):
            hint = ": write MockProvider(*texts)" if isinstance(answer, (list, tuple)) else ""
            hint = ": write MockProvider().on_call(function)" if callable(answer) else hint
            raise TypeError(f"the answers of MockProvider are texts, got {type(answer).__name__}{hint}")
    return list(answers)


def _native(response: LlmResponse, tools: Tools) -> LlmResponse:
    """Converts a response with blocks to what a vendor with native calls would return."""
    parsed = parse(response.content)
    blocks = [*parsed.blocks, *filter(None, [parsed.incomplete])]
    types = {"command", *(tool.type for tool in tools.tools)}
    made = [
        NativeCall(block.type, block.name, block.content, id=f"call_{at}", is_open=block is parsed.incomplete)
        for at, block in enumerate(blocks)
    ]
    calls = [one for one in made if one.type in types]
    rest = [one.content if one.type == "final" else str(one) for one in made if one.type not in types]
    prose = "".join(filter(str.strip, [*parsed.text_segments, *rest])).rstrip()
    if not calls:
        return replace(response, content=prose, ends_turn=True)
    return replace(response, content=written(prose, calls), blocks=calls, ends_turn=False)


def _shown(answer: str | LlmResponse) -> str:
    text = answer if isinstance(answer, str) else answer.content
    return repr(text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}…")
