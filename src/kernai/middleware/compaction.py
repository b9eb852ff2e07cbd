"""`compact`: of a long conversation, the oldest results are sent as a line each."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence

from kernai.loop.effects import CallModel, Effect
from kernai.middleware.chain import Flow, Middleware
from kernai.values.limits import CHARACTERS_PER_TOKEN
from kernai.values.message import Message

_RESULT = re.compile(r'<block type="result" name="([^"]*)">')


def compact(max_tokens: int) -> Middleware:
    """Shortens the oldest results, once a conversation has more than `max_tokens`, until it has half as many.

    A token counts as four characters, media and the system message as nothing. What the model has not answered to yet
    is sent whole. Only what is sent is shortened: conversation and recording keep everything.
    """
    if not isinstance(max_tokens, int) or isinstance(max_tokens, bool) or max_tokens < 1:
        raise ValueError(f"max_tokens must be an int of at least 1, got {max_tokens!r}")

    def middleware(effect: Effect) -> Flow:
        if isinstance(effect, CallModel):
            effect = effect.replace(messages=_compacted(effect.messages, max_tokens * CHARACTERS_PER_TOKEN))
        return (yield effect)

    return middleware


def _compacted(messages: Sequence[Message], most: int) -> Sequence[Message]:
    """Decided anew from the messages alone, as it was decided before each answer: so what was shortened stays so, and
    the beginning of what is sent stays the same from call to call, which a vendor's cache of prefixes needs.
    """
    sent = list(messages)
    old: deque[tuple[int, str]] = deque()  # results that may be shortened, each with the line that replaces it
    new: list[tuple[int, str]] = []  # those that the model has not answered to
    characters = 0
    is_input = True  # also the results that a workflow's task begins with, which are one message with the task itself
    for at, message in enumerate((*messages, Message("assistant", ""))):
        text = message.text
        if message.role == "assistant":
            is_input = False
            least = most // 2 if characters > most else characters
            while old and characters > least:
                oldest, line = old.popleft()
                characters -= len(sent[oldest].text) - len(line)
                sent[oldest] = Message("user", line)
            old.extend(new)
            new.clear()
        elif message.role == "user" and not is_input and (found := _RESULT.match(text)):
            line = f"{found[0]}[{len(text):,} characters, left out here]</block>"
            if len(line) < len(text):
                new.append((at, line))
        characters += len(text) if message.role != "system" else 0
    return sent
