"""A `Result` as notebooks show it: the answer, the bill, and the conversation, folded.

All texts are escaped: a model's answer is data. Long ones are cut, since a notebook keeps what it shows in its file.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import TYPE_CHECKING, Any

from kernai.errors import error_text

if TYPE_CHECKING:
    from kernai.values.message import Message
    from kernai.values.result import Result

#: characters that are shown of a message, and of its first line
MOST, MOST_OF_LINE = 20_000, 100
_TEXT = "white-space:pre-wrap;overflow-wrap:anywhere;margin:0.3em 0 0.3em 1em"


def as_html(result: Result[Any]) -> str:
    """A fragment of HTML without scripts, links or references."""
    return f'<div style="max-width:60em">{"".join(_parts(result))}</div>'


def _parts(result: Result[Any]) -> Iterator[str]:
    if result.text is not None:
        yield f'<div style="white-space:pre-wrap;overflow-wrap:anywhere">{_shown(result.text)}</div>'
    if result.error is not None:
        yield f"<div><b>{type(result.error).__name__}</b>: {_shown(error_text(result.error))}</div>"
    for call in result.pending:
        yield f"<div>waits for a decision: <b>{_shown(str(call.call_id))}</b> {_shown(call.skill or 'the model')}</div>"
    yield f"<div><small>{_shown(', '.join(_facts(result)))}</small></div>"
    inside = "".join(map(_message, result.messages))
    yield f"<details><summary>{_number(len(result.messages), 'message')}</summary>{inside}</details>"


def _facts(result: Result[Any]) -> Iterator[str]:
    yield f"{result.stop_reason}{', cut off' if result.truncated else ''}"
    yield _number(result.steps, "step")
    if result.usage.total_tokens is not None:
        yield _number(result.usage.total_tokens, "token")
    if result.usage.cost is not None:
        yield f"${result.usage.cost:.4f}"
    yield f"run {result.run_id}"


def _message(message: Message) -> str:
    text = message.text
    first = text.strip().partition("\n")[0]
    line = first if len(first) <= MOST_OF_LINE else f"{first[:MOST_OF_LINE]}…"
    who = message.role if message.by in (None, message.role) else f"{message.role} ({message.by})"
    return (
        f'<details style="margin-left:1em"><summary><b>{who}</b> <code>{_shown(line)}</code></summary>'
        f'<div style="{_TEXT}">{_shown(text)}</div></details>'
    )


def _number(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _shown(text: str) -> str:
    """Escaped, cut, and without lone surrogates, which no notebook can store."""
    cut = f"\n… {_number(len(text) - MOST, 'more character')}" if len(text) > MOST else ""
    return escape(text[:MOST].encode("utf-8", "replace").decode() + cut)
