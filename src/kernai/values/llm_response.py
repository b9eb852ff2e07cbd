"""`LlmResponse`: what a provider returns for one model call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kernai._util.api import Value, check_type
from kernai.values.message import Message
from kernai.values.model import Model
from kernai.values.result import Usage

if TYPE_CHECKING:
    from kernai.blocks.block import Block

LARGEST_COUNT = 2**63  # more than any sum of what vendors report
TOKEN_COUNTS = ("prompt_tokens", "completion_tokens", "total_tokens", "cached_tokens", "cache_write_tokens")
#: finish reasons of a turn that the model has not ended
UNFINISHED = ("tool", "other")
#: finish reasons of an answer that the vendor cut off, so that it may be incomplete
CUT = ("length", "content_filter", "context", "refusal")
FINISH_REASONS = ("stop", *CUT, *UNFINISHED)


@dataclass(slots=True, eq=False, repr=False)
class LlmResponse(Value):
    """One complete turn of a model.

    `content` is its whole text. `latency_ms` is in milliseconds. Token counts are as the vendor reports them; unknown
    is None, never 0, and the total is derived if both parts are known. `finish_reason` is one of ``stop length
    content_filter tool refusal context other``, or None. `metadata` has all other known facts: request id, the vendor's
    model name, reasoning text. `cached_tokens` were read from the vendor's cache and `cache_write_tokens` written to
    it; both are parts of `prompt_tokens`. `cost` is in dollars, if it is known better than by the price of the run's
    model. `model` is the id of the model that answered, if it was not the run's.

    After native calls, `blocks` are the calls in order, and `content` is the prose and then `str` of each call, joined
    by line breaks, which is not parsed again. If `blocks` is None, `content` is parsed. If `content` is replaced, the
    blocks no longer count. `ends_turn` says whether the model ended its turn; if so, the prose is the answer.
    """

    content: str
    latency_ms: int = 0
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None
    finish_reason: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    cost: float | None = None
    model: str | None = None
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None
    blocks: Sequence[Block] | None = None
    ends_turn: bool | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.content, str):
            raise TypeError(f"content must be str, got {type(self.content).__name__}")
        prompt, completion = self.prompt_tokens, self.completion_tokens
        if (  # without a loop, since every step runs this
            (prompt is not None and (type(prompt) is not int or prompt < 0))
            or (completion is not None and (type(completion) is not int or completion < 0))
            or self.total_tokens is not None or self.cached_tokens is not None or self.cache_write_tokens is not None
            or self.cost is not None or self.model is not None or self.blocks is not None
            or type(self.latency_ms) is not int or type(self.metadata) is not dict
        ):
            self._check_rest()
        if self.finish_reason is not None and self.finish_reason not in FINISH_REASONS:
            raise ValueError(f"finish_reason must be None or one of {', '.join(FINISH_REASONS)}, "
                             f"got {self.finish_reason!r}")
        if self.total_tokens is None and prompt is not None and completion is not None:
            self.total_tokens = prompt + completion
        if (self.total_tokens or prompt or completion or 0) > LARGEST_COUNT:
            check_numbers(self)

    def _check_rest(self) -> None:
        check_numbers(self)
        latency: object = self.latency_ms or 0  # often measured as a float
        if not isinstance(latency, (int, float)) or not 0 <= latency <= LARGEST_COUNT:
            raise TypeError(f"latency_ms must be a number of milliseconds, at least 0, got {latency!r}")
        self.latency_ms = int(latency)
        if self.metadata is None:
            self.metadata = {}
        check_type(self.metadata, Mapping, "metadata must be a mapping")
        check_type(self.model, str | None, "model must be a model's id or None")
        blocks = self.blocks or ()
        if not (isinstance(blocks, Sequence) and all(isinstance(getattr(one, "content", None), str) for one in blocks)):
            raise TypeError(f"blocks must be a list of blocks with text as content, got {blocks!r:.80}")

    def message(self) -> Message:
        """The turn as a message of the conversation, with reasoning that the vendor wants returned."""
        if not self.metadata and self.blocks is None:
            return Message("assistant", self.content)
        blocks = None if self.blocks is None or self.prose is None else [block.to_dict() for block in self.blocks]
        return Message("assistant", self.content, reasoning=self.metadata.get("reasoning_items", ()), blocks=blocks)

    @property
    def prose(self) -> str | None:
        """The part of `content` before the native calls; None if there are none, or if `content` was replaced."""
        if self.blocks is None:
            return None
        calls = written("", self.blocks)
        if not self.content.endswith(calls):
            return None
        return self.content[: len(self.content) - len(calls)].removesuffix("\n" if calls else "")

    def cost_at(self, model: Model) -> float | None:
        """`cost`, or else the cost by the price of `model`, if it answered and both token counts are known."""
        prompt, completion = self.prompt_tokens, self.completion_tokens
        if self.cost is not None or (self.model is not None and self.model != model.id):
            return self.cost
        if model.cost is None or (rates := model.rates) is None or prompt is None or completion is None:
            return None
        return rates.of(prompt, completion, self.cached_tokens or 0, self.cache_write_tokens or 0)

    __hash__ = None  # type: ignore[assignment]  # mutable


def check_numbers(used: LlmResponse | Usage) -> None:
    """Raises `TypeError` or `ValueError` for a number of tokens, or a cost, that a recording could not hold."""
    for name in TOKEN_COUNTS:
        count = getattr(used, name)
        is_count = isinstance(count, int) and not isinstance(count, bool) and 0 <= count <= LARGEST_COUNT
        if count is not None and not is_count:
            raise TypeError(f"{name} must be an int from 0 to 2**63, or None for unknown, got {count!r:.80}")
    cost = used.cost
    is_cost = isinstance(cost, (int, float)) and not isinstance(cost, bool) and 0 <= cost <= LARGEST_COUNT
    if cost is not None and not is_cost:
        raise ValueError(f"cost must be dollars, at least 0, or None, got {cost!r}")


def written(prose: str, blocks: Sequence[Block]) -> str:
    """The content of a response with native calls: the prose, then the markup of each call."""
    return "\n".join(filter(None, [prose, *map(str, blocks)]))
