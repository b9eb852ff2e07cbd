"""The included middleware: retry, fallback, guardrail, timeout, redact, compact."""

from __future__ import annotations

import json
import random
import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from kernai._util.api import check_count, check_function, check_seconds, check_type
from kernai.agents.agent import Agent, check_model
from kernai.blocks.block import neutralize
from kernai.errors import Pause, ProviderError, Stop, copied, error_text
from kernai.jsonio.json_data import jsonable
from kernai.loop.effects import CallModel, Effect, Sleep
from kernai.middleware.chain import Flow, Middleware
from kernai.registry.provider import Provider, check_provider
from kernai.values.limits import CHARACTERS_PER_TOKEN
from kernai.values.llm_response import LlmResponse, written
from kernai.values.message import Message
from kernai.values.model import Model
from kernai.values.skill_result import SkillResult


def retry(
    attempts: int = 3, *, first_wait: float = 0.5, longest_wait: float = 60.0,
    draw: Callable[[], float] = random.random,
) -> Middleware:
    """Retries a failed model call if its `ProviderError` is retryable. The call is made at most `attempts` times.

    The wait is as long as the vendor asks. Otherwise it is an exponential backoff, starting at `first_wait` seconds,
    with up to half of it subtracted as jitter (`draw` returns a number from 0 to 1). If the vendor asks for more than
    `longest_wait` seconds, the error is raised at once.
    """
    check_count("attempts", attempts)
    check_seconds("first_wait", first_wait, or_zero=True)
    check_seconds("longest_wait", longest_wait, or_zero=True)
    check_function("draw", draw, "no arguments")

    def middleware(effect: Effect) -> Flow:
        if not isinstance(effect, CallModel):
            return (yield effect)
        for made in range(1, attempts + 1):
            try:
                return (yield effect)
            except ProviderError as error:
                wait = error.retry_after
                if wait is None or not wait >= 0:  # written like this to exclude NaN too
                    # 2.0 ** 1024 would overflow
                    wait = min(longest_wait, first_wait * 2.0 ** min(made - 1, 1023)) * (1 + draw()) / 2
                if made >= attempts or not error.retryable or wait > longest_wait:
                    raise
                why = str(error)
            yield Sleep(wait, effect.scope, effect.call_id, reason=why, attempt=made)

    return middleware


def fallback(provider: Provider | None = None, model: Model | None = None) -> Middleware:
    """Calls another `provider` or `model` when a model call fails with a `ProviderError`. If one of them is None, it
    stays the same.

    The recording says which model responded, and that model's price counts. Put it outside of `retry`, so that each
    model gets all attempts. With several fallbacks, the innermost is used first.
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


def guardrail(check: Callable[[Any], bool | str | None], *, answers: bool = False) -> Middleware:
    """Stops the run with the reason ``guardrail`` if `check` returns False, or a text that says why.

    `check` is called before each call, with the `CallModel`, `CallSkill` or `CallProtocol`. With `answers`, it is also
    called with each `LlmResponse`, which then is not streamed but shown only when complete, so that nobody sees a
    response that is stopped.
    """
    check_function("check", check, "the call", None)

    def judge(what: object) -> None:
        verdict = check(what)
        if verdict is not None and verdict is not True:
            if verdict and not isinstance(verdict, str):
                verdict = f"a guardrail's check must return True, False, None or a text, got {verdict!r:.80}"
            raise Stop("guardrail", verdict or "a guardrail has stopped the run")

    def middleware(effect: Effect) -> Flow:
        judge(effect)
        if not answers or not isinstance(effect, CallModel):
            return (yield effect)
        response = yield effect.replace(stream=False)
        judge(response)
        return response

    return middleware


def timeout(seconds: float) -> Middleware:
    """Ends a model call after `seconds` with a retryable `ProviderError` whose code is ``timeout``.

    Inside of `retry`, the limit applies to each attempt. In a sync run, a provider that never checks `on_chunk` is not
    interrupted.
    """
    check_seconds("seconds", seconds)

    def middleware(effect: Effect) -> Flow:
        if isinstance(effect, CallModel):
            effect = effect.replace(timeout=min(seconds, seconds if effect.timeout is None else effect.timeout))
        return (yield effect)

    return middleware


#: a string of JSON that may have escapes; without its end it takes the rest of the text, to keep the search linear
_JSON_TEXT = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?')


def _cleaner(found: re.Pattern[str], replacement: str) -> Callable[[Any], Any]:
    """Returns the function that replaces all matches in data, and in JSON in its texts."""
    def in_json(text: re.Match[str]) -> str:
        with suppress(ValueError):  # it may not be JSON
            if "\\" in text[0] and (said := json.loads(text[0])) != (hidden := clean(said)):
                return json.dumps(hidden, ensure_ascii=False)
        return text[0]

    def clean(value: Any) -> Any:
        if isinstance(value, str):  # an escape may hide a match: JSON's \n is neither \s nor followed by \b
            return found.sub(replacement, _JSON_TEXT.sub(in_json, value) if "\\" in value else value)
        if isinstance(value, Mapping):
            return {clean(key): clean(one) for key, one in value.items()}
        return type(value)(map(clean, value)) if isinstance(value, (list, tuple)) else value

    return clean


def redact(pattern: str | re.Pattern[str], replacement: str = "[redacted]") -> Middleware:
    """Replaces all matches of `pattern` in the results of models, skills and protocols, and in their errors, pauses
    and stops.

    Responses are not streamed, but shown only when complete. Does not change a run's input, history and instructions,
    `progress` events, media, or, unless this is inside of `retry`, the reasons in `model_waiting` events.
    """
    check_type(pattern, (str, re.Pattern), "pattern must be a text or a compiled pattern")
    check_type(replacement, str, "replacement must be text")
    found = re.compile(pattern)
    found.sub(replacement, "")  # raises an error for a wrong replacement
    clean = _cleaner(found, replacement)

    def cleaned(outcome: Any) -> Any:
        if isinstance(outcome, LlmResponse):
            given, prose, blocks = jsonable(outcome.metadata), outcome.prose, outcome.blocks
            metadata, items = clean(given), given.get("reasoning_items")
            if isinstance(items, list) and all(isinstance(item, dict) for item in items):  # as vendors' own are
                changed = [item.get("type") for item in items if clean(item) != item]
                metadata["reasoning_items"] = [
                    clean(item) for item in items if (kind := item.get("type")) in _UNSIGNED or kind not in changed]
            if prose is None or blocks is None:
                return replace(outcome, content=clean(outcome.content), metadata=metadata)
            blocks = [block.__replace__(name=block.name and clean(block.name), content=clean(block.content))
                      for block in blocks]
            return replace(outcome, content=written(clean(prose), blocks), blocks=blocks, metadata=metadata)
        if isinstance(outcome, Message):
            return Message(outcome.role, clean(outcome.content))
        result = SkillResult.of(outcome)
        return result.replaced(clean(result.parts), clean(jsonable(result.metadata)))

    def middleware(effect: Effect) -> Flow:
        try:
            return cleaned((yield effect.replace(stream=False) if isinstance(effect, CallModel) else effect))
        except Stop as stop:
            ended = copied(stop)
            ended.reason, ended.message = ended.args = stop.reason, clean(stop.message)
            raise ended from None
        except Pause as pause:
            waits = copied(pause)
            waits.reason, waits.metadata = waits.args = clean(pause.reason), clean(jsonable(pause.metadata))
            raise waits from None
        except (Exception, SystemExit) as error:
            text = clean(error_text(error))
            if text == error_text(error):
                raise
            if isinstance(error, SystemExit):
                raise SystemExit(text) from None
            hidden = copied(error) if isinstance(error, ProviderError) else RuntimeError()
            hidden.args = (text,)
            vars(hidden).pop("__notes__", None)  # the text has them, redacted
            raise hidden from None

    return middleware


_RESULT = re.compile(r'<block type="result" name="([^"]*)">')


def compact(max_tokens: int, summary: Agent[Any] | Callable[[Sequence[Message]], str] | None = None) -> Middleware:
    """Shortens the oldest results once a conversation has more than `max_tokens`, until it has half as many.

    With `summary`, the older half is replaced by a summary instead. A function gets the messages and returns the text.
    An agent is asked for the summary in one model call, with its instructions, and its own model and provider if it has
    them. The summary is stored with the response that follows, in its metadata and in its message, so a resumed run or
    the next run of a chat (``history=result.messages``) uses the same summary.

    Four characters count as a token; media and the system message are not counted. Messages that the model has not
    responded to yet are sent in full, except results of an earlier turn, which has failed. Only the sent messages are
    shortened: the conversation and the recording keep everything.
    """
    check_count("max_tokens", max_tokens)
    if summary is not None:
        return _summarizing(max_tokens * CHARACTERS_PER_TOKEN, summary)

    def middleware(effect: Effect) -> Flow:
        if isinstance(effect, CallModel):
            effect = effect.replace(messages=_compacted(effect.messages, max_tokens * CHARACTERS_PER_TOKEN))
        return (yield effect)

    return middleware


def _compacted(messages: Sequence[Message], most: int) -> Sequence[Message]:
    """Shortens the messages for a call. The result depends only on the messages, so a message once shortened stays so.

    The beginning of the sent messages is therefore the same in each call, which a vendor's prefix cache needs.
    """
    sent = list(messages)
    results: deque[tuple[int, str]] = deque()  # each with the line that would replace it
    characters = read = 0  # how many of the results the model has responded to, so that they may be shortened
    is_input = True  # never shorten the input: a workflow task's has earlier results and the task in one message
    for at, message in enumerate((*messages, Message("assistant", ""))):
        text = message.text
        if message.by == "user":  # with another input, the turn before has failed, unless it was `execute_plan`'s
            last, line = results[-1] if results else (0, "")
            read = len(results) - (last == at - 1 and line.startswith('<block type="result" name="tasks">'))
        if message.role == "assistant":
            is_input = False
            least = most // 2 if characters > most else characters
            while read and characters > least:
                oldest, line = results.popleft()
                read -= 1
                characters -= len(sent[oldest].text) - len(line)
                sent[oldest] = sent[oldest].rewritten(line)
            read = len(results)
        elif message.role == "user" and not is_input and (found := _RESULT.match(text)):
            line = f"{found[0]}[{len(text):,} characters, left out here]</block>"
            if len(line) < len(text):
                results.append((at, line))
        characters += len(text) if message.role != "system" else 0
    return sent


#: the type of the item in a message's `reasoning` that stores a summary; it is not sent to any vendor
_SUMMARY = "summary_of_conversation"
#: the types that are plain text; a vendor rejects others that differ from what it signed
_UNSIGNED = (_SUMMARY, "reasoning_content", "thinking_text")
_HEADING = "Summary of the conversation so far:"


def _summarizing(most: int, summary: Agent[Any] | Callable[[Sequence[Message]], str]) -> Middleware:
    instructions = summary.instructions if isinstance(summary, Agent) else ""
    if not isinstance(instructions, str):
        raise TypeError("summary must be an agent whose instructions are text, or a function")
    if not isinstance(summary, Agent):
        check_function("summary", summary, "the messages (or an agent)", None)

    def summarize(effect: CallModel, older: Sequence[Message]) -> Flow:
        if not isinstance(summary, Agent):
            text = summary(older)
            if not isinstance(text, str) or not text.strip():
                raise TypeError(f"compact's summary function must return text, got {text!r:.80}")
            return text
        said = "\n\n".join(f"{message.role}: {message.text}" for message in older)
        answer = yield effect.replace(
            messages=[Message("system", instructions), Message("user", said)], stream=False, tools=None,
            model=summary.model_under(effect.model), provider=summary.provider or effect.provider,
            generation=summary.generation,
        )
        return answer.content

    def middleware(effect: Effect) -> Flow:
        if not isinstance(effect, CallModel):
            return (yield effect)
        system = [one for one in effect.messages if one.role == "system"]
        talk = [one for one in effect.messages if one.role != "system"]
        text, first = _last_summary(talk)
        kept: Sequence[Message] = talk[first:]
        made = None
        if sum(len(message.text) for message in kept) + len(text) > most and (at := _cut(kept, most // 2)):
            before = [Message("user", f"{_HEADING}\n{text}")] if text else []
            shorter = yield from summarize(effect, [*before, *kept[:at]])
            if shorter.strip():  # an agent may return a blank summary
                text, kept = neutralize(shorter), kept[at:]
                made = {"type": _SUMMARY, "text": text, "keeps": len(kept)}
        if text:
            effect = effect.replace(messages=[*system, Message("user", f"{_HEADING}\n{text}"), *kept])
        answer = yield effect
        if made is None or not isinstance(answer, LlmResponse):
            return answer
        items = [*answer.metadata.get("reasoning_items", ()), made]
        return replace(answer, metadata={**answer.metadata, "reasoning_items": items})

    return middleware


def _last_summary(talk: Sequence[Message]) -> tuple[str, int]:
    """The text of the latest summary, and the index of the first message that it does not cover."""
    for at in range(len(talk) - 1, -1, -1):
        for item in talk[at].reasoning:
            if item.get("type") == _SUMMARY:
                return str(item["text"]), max(at - int(item["keeps"]), 0)
    return "", 0


def _cut(talk: Sequence[Message], least: int) -> int:
    """The index where the part to keep begins. It has about `least` characters, and begins with a response, so that
    results stay with their calls.

    0 if there is no such place, because the model has not responded yet, or only to messages that must stay.
    """
    characters, found = 0, 0
    for at in range(len(talk) - 1, 0, -1):
        characters += len(talk[at].text)
        if talk[at].role == "assistant" and (characters <= least or not found):
            found = at
    return found
