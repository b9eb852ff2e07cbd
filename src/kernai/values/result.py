"""How a run ended: `Result`, with its `StopReason` and its `Usage`, and how notebooks show it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from kernai._util.api import Value, likely
from kernai.errors import KernaiError, RunStoppedError, error_text
from kernai.errors import StopReason as StopReason  # noqa: PLC0414 - most modules import it with `Result`
from kernai.values.message import Message

if TYPE_CHECKING:
    from typing_extensions import TypeVar as TypeVarWithDefault

    from kernai.values.pending_calls import PendingCall

    Output_co = TypeVarWithDefault("Output_co", default=str, covariant=True)
else:
    Output_co = TypeVar("Output_co", covariant=True)
"""The type of an agent's answers; `Agent` alone means ``Agent[str]``."""


@dataclass(frozen=True, init=False, eq=False, repr=False)
class Usage(Value):
    """Tokens as the vendor reports them, `cost` in dollars, and the number of model calls. Unknown numbers are None.

    `cached_tokens` and `cache_write_tokens` are parts of `prompt_tokens`: read from the vendor's cache, written to it.
    Add usages with ``+`` (or `sum(usages, Usage())`); a number that is unknown in one counts as 0.
    """

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None
    cost: float | None = None
    model_calls: int = 0
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None

    def __init__(
        self, prompt_tokens: int | None = None, completion_tokens: int | None = None, total_tokens: int | None = None,
        cost: float | None = None, model_calls: int = 0, cached_tokens: int | None = None,
        cache_write_tokens: int | None = None,
    ) -> None:
        vars(self).update(  # the generated constructor of a frozen dataclass takes twice as long
            prompt_tokens=prompt_tokens, completion_tokens=completion_tokens, total_tokens=total_tokens, cost=cost,
            model_calls=model_calls, cached_tokens=cached_tokens, cache_write_tokens=cache_write_tokens,
        )

    def __add__(self, other: Usage) -> Usage:
        if not isinstance(other, Usage):
            return NotImplemented
        sums: Iterable[Any] = map(sum_known, _NUMBERS(self), _NUMBERS(other))
        return Usage(*sums)

    @classmethod
    def of_failed(cls, data: Mapping[str, Any]) -> Usage | None:
        """Usage of a failed call, if the vendor reported it."""
        names = ("prompt_tokens", "completion_tokens", "cost", "cached_tokens", "cache_write_tokens")
        known = {name: data[name] for name in names if data.get(name) is not None}
        if not known:
            return None
        total = sum_known(known.get("prompt_tokens"), known.get("completion_tokens"))
        return cls(**known, total_tokens=total, model_calls=data.get("model_calls", 1))

    def to_dict(self) -> dict[str, int | float | None]:
        """The usage as JSON data, with cache tokens only if they are known."""
        made: dict[str, int | float | None] = {  # written out, since each run ends with it
            "prompt_tokens": self.prompt_tokens, "completion_tokens": self.completion_tokens,
            "total_tokens": self.total_tokens, "cost": self.cost, "model_calls": self.model_calls,
        }
        if self.cached_tokens is not None:
            made["cached_tokens"] = self.cached_tokens
        if self.cache_write_tokens is not None:
            made["cache_write_tokens"] = self.cache_write_tokens
        return made


_NUMBERS = attrgetter(*Usage.__dataclass_fields__)
_Number = TypeVar("_Number", int, float)


def sum_known(a: _Number | None, b: _Number | None) -> _Number | None:
    """The sum of the known numbers; None if neither is known."""
    if a is None:
        return b
    return a if b is None else a + b


_AS_TEXT: Any = ...  # the default of `output`: the text


@dataclass(frozen=True, init=False, eq=False, repr=False)
class Result(Value, Generic[Output_co]):
    """How a run ended.

    `text` is the answer, None unless `stop_reason` is ``final``. `output` is its value, of the type
    ``Agent(output=...)``; without such a type, it is the text. `steps` counts the steps that were started. `messages`
    is the conversation without the system message, usable as the next run's `history`. `error` is the exception that
    `unwrap` raises. `pending` are the calls that wait for a decision if `stop_reason` is ``interrupt``.

    `finish_reason` is why the model's last response ended, None if the vendor did not say. `truncated` says whether the
    vendor cut off `text` before the model had ended it.
    """

    text: str | None
    stop_reason: StopReason
    steps: int
    usage: Usage
    messages: tuple[Message, ...]
    run_id: str
    error: KernaiError | None = None
    pending: tuple[PendingCall, ...] = ()
    finish_reason: str | None = None
    truncated: bool = False
    output: Output_co | Any = _AS_TEXT  # None without an answer; with `| None`, `if result.ok` would not be enough

    def __init__(  # noqa: PLR0917 - the fields of a dataclass can be passed by position
        self, text: str | None, stop_reason: StopReason, steps: int, usage: Usage, messages: tuple[Message, ...],
        run_id: str, error: KernaiError | None = None, pending: tuple[PendingCall, ...] = (),
        finish_reason: str | None = None, truncated: bool = False, output: Output_co = _AS_TEXT,
    ) -> None:
        vars(self).update(
            text=text, stop_reason=stop_reason, steps=steps, usage=usage, messages=messages, run_id=run_id, error=error,
            pending=pending, finish_reason=finish_reason, truncated=truncated,
            output=text if output is _AS_TEXT else output,
        )

    if not TYPE_CHECKING:  # otherwise type checkers would accept every name

        def __getattr__(self, name: str) -> Any:
            public = [] if name.startswith("_") else [one for one in dir(self) if not one.startswith("_")]
            hint = likely(name, public) if public else ""
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{hint}", name=name, obj=self)

    @property
    def ok(self) -> bool:
        """Whether there is an answer."""
        return self.stop_reason is StopReason.FINAL

    def unwrap(self) -> Output_co:
        """Returns `output`. Without an answer, raises `error` or a `RunStoppedError`, with this result as `.result`."""
        if self.error is not None:
            raise self.error
        if self.text is None:
            stopped = RunStoppedError(f"the run stopped: {self.stop_reason}")
            stopped.result = self
            raise stopped
        return self.output

    def to_dict(self) -> dict[str, object]:
        """The result as JSON data; media in messages are references."""
        return {
            "text": self.text,
            "stop_reason": self.stop_reason.value,
            "steps": self.steps,
            "usage": self.usage.to_dict(),
            "messages": [message.to_dict() for message in self.messages],
            "run_id": self.run_id,
            "error": None if self.error is None else error_text(self.error),
            "pending": [call.to_dict() for call in self.pending],
            "finish_reason": self.finish_reason,
            "truncated": self.truncated,
        }

    def __str__(self) -> str:
        return self.text or ""

    def _repr_html_(self) -> str:
        """HTML for notebooks: the answer, the usage, and the conversation, folded."""
        return f'<div style="max-width:60em">{"".join(_html_of(self))}</div>'

# --------------------------------------------------------------------------------------------------------- in notebooks


#: characters that are shown of a message, and of its first line
MOST, MOST_OF_LINE = 20_000, 100
_TEXT = "white-space:pre-wrap;overflow-wrap:anywhere;margin:0.3em 0 0.3em 1em"


def _html_of(result: Result[Any]) -> Iterator[str]:
    if result.text is not None:
        yield f'<div style="white-space:pre-wrap;overflow-wrap:anywhere">{_shown(result.text)}</div>'
    if result.error is not None:
        yield f"<div><b>{type(result.error).__name__}</b>: {_shown(error_text(result.error))}</div>"
    for call in result.pending:
        yield f"<div>waits for a decision: <b>{_shown(str(call.call_id))}</b> {_shown(call.skill or 'the model')}</div>"
    yield f"<div><small>{_shown(', '.join([*facts(result), f'run {result.run_id}']))}</small></div>"
    inside = "".join(map(_html_of_message, result.messages))
    yield f"<details><summary>{count(len(result.messages), 'message')}</summary>{inside}</details>"


def facts(result: Result[Any]) -> Iterator[str]:
    """How a run ended, and what it used."""
    yield f"{result.stop_reason}{', cut off' if result.truncated else ''}"
    yield count(result.steps, "step")
    yield count(result.usage.model_calls, "model call")
    if result.usage.total_tokens is not None:
        yield count(result.usage.total_tokens, "token")
    if result.usage.cost is not None:
        yield dollars(result.usage.cost)


def _html_of_message(message: Message) -> str:
    text = message.text
    first = text.strip().partition("\n")[0]
    line = first if len(first) <= MOST_OF_LINE else f"{first[:MOST_OF_LINE]}…"
    who = message.role if message.by in (None, message.role) else f"{message.role} ({message.by})"
    return (
        f'<details style="margin-left:1em"><summary><b>{who}</b> <code>{_shown(line)}</code></summary>'
        f'<div style="{_TEXT}">{_shown(text)}</div></details>'
    )


def count(number: int, noun: str) -> str:
    """``1 step``, ``2,000 steps``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def dollars(cost: float) -> str:
    """``$0.0350``. A cost that this would show as ``$0.0000`` is ``under $0.0001``."""
    return f"${cost:.4f}" if cost == 0 or cost >= 0.0001 else "under $0.0001"  # noqa: PLR2004 - the last digit


def _shown(text: str) -> str:
    """A text cut and escaped, since a model's answer is data; without lone surrogates, which notebooks cannot store."""
    from html import escape  # few programs are notebooks

    cut = f"\n… {count(len(text) - MOST, 'more character')}" if len(text) > MOST else ""
    return escape(text[:MOST].encode("utf-8", "replace").decode() + cut)
