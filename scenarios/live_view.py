"""A run as plain text while it goes on: one line for each thing that happened, and nothing that moves the terminal."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Mapping
from typing import Any

import kernai

WIDTH = 150  # characters shown of one value
ERROR_WIDTH = 500  # an error is worth reading whole
LABEL = 9

# Formatting characters that reverse or hide the text around them, and halves of surrogate pairs.
_HARMFUL = re.compile("[\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    """Text of a model or a tool, fit for a terminal: without control characters, newline and tab aside."""
    kept = "".join(char for char in text if char in "\n\t" or unicodedata.category(char) != "Cc")
    return _HARMFUL.sub("\ufffd", kept)


def shortened(value: object, width: int = WIDTH) -> str:
    """A value on one line, cut, with its full length where something is missing."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    line = " ".join(printable(text).split())
    return line if len(line) <= width else f"{line[:width]}... ({len(text):,} characters)"


Line = tuple[str, str]


def _call(data: Any) -> Line:
    return "call", f"{data['skill']} {shortened(data['params'])}"


def _result(data: Any) -> Line:
    return "result", f"{data['skill']}: {shortened(data['result'])}"


def _error(data: Any) -> Line:
    return "error", f"{data['skill']}: {shortened(data['error'], ERROR_WIDTH)}"


def _tokens(data: Any) -> Line:
    return "model", f"{_count(data['prompt_tokens'])} tokens in, {_count(data['completion_tokens'])} out"


def _count(tokens: int | None) -> str:
    return "unknown" if tokens is None else f"{tokens:,}"


#: how each kind of event reads; the others are not shown
LINES: Mapping[str, Callable[[Any], Line]] = {
    "llm_response": _tokens,
    "plan": lambda data: ("plan", shortened(data)),
    "json": lambda data: ("json", shortened(data)),
    "skill_execute": _call,
    "skill_result": _result,
    "skill_error": _error,
    "builtin_result": lambda data: ("built-in", f"{data['command']}: {shortened(data['result'])}"),
    "builtin_error": lambda data: ("error", f"{data['command']}: {shortened(data['error'], ERROR_WIDTH)}"),
    "forged_block": lambda data: ("forged", f"{data['type']} block: {shortened(data['content'])}"),
    "block_incomplete": lambda data: ("cut off", f"{data['type']} block: {shortened(data['content'])}"),
    "informational_only": lambda data: ("stalled", f"nothing but {shortened(data['kinds'])}"),
    "no_blocks_stall": lambda data: ("stalled", shortened(data["prose_preview"])),
    "model_restarted": lambda data: ("restart", shortened(data["reason"])),
    "final": lambda data: ("final", shortened(data)),
}


class LiveView:
    """An `on_event` callback that prints a run as it happens."""

    def __init__(self) -> None:
        self._step: tuple[str, int | None] | None = None

    def __call__(self, event: kernai.Event) -> None:
        """Print one event, under a heading when its step is new."""
        if event.type not in LINES:
            return
        if self._step != (event.scope, event.step):
            self._step = (event.scope, event.step)
            print(f"\nstep {event.step}" + (f" of {event.scope}" if event.scope else ""), flush=True)
        label, text = LINES[event.type](event.data)
        print(f"    {label:{LABEL}} {text}", flush=True)
