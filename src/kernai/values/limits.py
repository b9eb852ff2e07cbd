"""`Limits` of a run; `Budget`: how much a run and its sub-runs have used of them, except time; `UsageMeter`."""

from __future__ import annotations

from dataclasses import dataclass, fields
from itertools import count
from math import inf
from sys import maxsize
from typing import Any, Literal

from kernai._util.api import ForkSafeLock, Value
from kernai.errors import LimitReachedError
from kernai.values.llm_response import LlmResponse
from kernai.values.model import TOKENS_PER_PRICE, Model
from kernai.values.result import StopReason, Usage

CHARACTERS_PER_TOKEN = 4
DEFAULT_MAX_DEPTH = 8
MAX_TOO_DEEP = 10
CALLS_PER_INPUT = 500
#: how many tasks a plan may have, and how many a model may plan unless its agent says otherwise
MAX_TASKS, MODEL_MAX_TASKS = 1000, 50
#: the default of `Limits.max_calls`. A text, so that it survives copying and pickling
PER_INPUT: Literal["500 per input"] = "500 per input"


def check_number(name: str, value: Any, least: int, most: float = inf, *, whole: bool = True) -> Any:
    """Returns an int, or with ``whole=False`` any number. Raises `TypeError` or, out of bounds, `ValueError`."""
    if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
        raise TypeError(f"{name} must be {'an int' if whole else 'a number'}, got {value!r}")
    if not least <= value <= most:
        bound = f"most {most:,}" if value > most else f"least {least}"
        raise ValueError(f"{name} must be at {bound}, got {value!r}")
    return value


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Limits(Value):
    """One budget for a root run and its sub-runs. None means no limit.

    `max_tokens` counts prompt and completion, `max_cost` is in dollars (the model needs a `cost`). `max_calls` counts
    model, skill and protocol calls. By default, each input of a run (the first one, and that of each `resume`) may make
    500; a number applies to the whole run. `timeout` is in seconds from the run's start. `max_depth` limits how deep
    agents may call agents. `repeated_calls` stops a run that makes the same call that many times in a row.
    """

    max_tokens: int | None = None
    max_cost: float | None = None
    max_calls: int | Literal["500 per input"] | None = PER_INPUT
    timeout: float | None = None
    max_depth: int = DEFAULT_MAX_DEPTH
    repeated_calls: int | None = None

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            if (value is None and one.name != "max_depth") or (value == PER_INPUT and one.name == "max_calls"):
                continue
            least = 2 if one.name == "repeated_calls" else 0  # one call repeats nothing
            check_number(one.name, value, least, whole=one.name not in ("max_cost", "timeout"))

    def check_model(self, model: Model) -> None:
        """Raises `ValueError` if `max_cost` is set and the model's price is unknown: no price is guessed."""
        if self.max_cost is not None and model.cost is None:
            raise ValueError(
                f"limits.max_cost needs the price of model {model.id!r}: "
                f"Model({model.id!r}, cost=(input_per_million, output_per_million))"
            )


class Budget:
    """What a root run and its sub-runs have used. Thread-safe, since parallel sub-runs share it."""

    #: shared by all runs: it is held only for a few instructions, and a lock per run would be one more object
    _lock = ForkSafeLock()

    __slots__ = (
        "_cost", "_is_refused", "_most_calls", "_tokens", "_too_deep", "calls", "limits", "needs_tokens", "unchecked",
        "warned",
    )

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.warned = False
        self._tokens = 0
        self._cost = 0.0
        self._too_deep = 0
        self.needs_tokens = limits.max_tokens is not None or limits.max_cost is not None
        #: numbers the calls from 0; `next` is atomic, and cheaper than a lock
        self.calls = count()
        self._set_most(CALLS_PER_INPUT if limits.max_calls == PER_INPUT else limits.max_calls)

    def _set_most(self, most: int | None) -> None:
        self._most_calls = most
        self._is_refused = False
        #: for calls with a lower number, the limits need not be checked
        self.unchecked = 0 if self.needs_tokens or self._too_deep else maxsize if most is None else most

    def begin_input(self, *, is_plan: bool = False) -> None:
        """Begins another input, or a plan of the host. By default, an input may make 500 calls, a plan any number."""
        if self.limits.max_calls == PER_INPUT:
            self.calls = count()
            self._set_most(None if is_plan else CALLS_PER_INPUT)

    def is_used_up(self) -> bool:
        try:
            self.check_call(-1)
        except LimitReachedError:
            return True
        return self._is_refused

    def check_call(self, number: int) -> None:
        """Raises `LimitReachedError` if a limit forbids the call with this number, which has been counted already."""
        limits, most = self.limits, self._most_calls
        # without the lock: each of these is one number, which another thread may only increase
        if self._too_deep >= MAX_TOO_DEEP:
            raise self._depth_error()
        if limits.max_tokens is not None and self._tokens >= limits.max_tokens:
            raise LimitReachedError(
                f"max_tokens={limits.max_tokens} is used up ({self._tokens} tokens)", StopReason.MAX_TOKENS)
        if limits.max_cost is not None and self._cost >= limits.max_cost:
            raise LimitReachedError(
                f"max_cost={limits.max_cost} is used up ({self._cost:.6f} dollars)", StopReason.MAX_COST)
        if most is not None and number >= most:
            self._is_refused = True
            held = f"max_calls={most} is" if limits.max_calls == most else f"the {most} calls of one input are"
            raise LimitReachedError(f"{held} used up: allow more with Limits(max_calls=...)", StopReason.MAX_CALLS)

    def check_depth(self, depth: int) -> None:
        """Raises `LimitReachedError` for a sub-run deeper than `max_depth`.

        The call then fails, and its agent may do something else. Agents that keep calling each other could make
        `max_steps` to the power of `max_depth` calls, so after `MAX_TOO_DEEP` such failures the whole run stops.
        """
        if depth > self.limits.max_depth:
            with self._lock:
                self._too_deep += 1
                self.unchecked = 0
            raise self._depth_error()

    def _depth_error(self) -> LimitReachedError:
        return LimitReachedError(
            f"max_depth={self.limits.max_depth} is reached: agents call agents too deeply", StopReason.MAX_DEPTH)

    def spend_tokens(self, tokens: int | None, cost: float | None, model: Model, estimate: int) -> bool:
        """Adds the tokens and the cost of a model call. If the vendor reported no total, `estimate` counts.

        Returns True the first time that an estimate counts in a run, so that the caller warns once.
        """
        if cost is None and model.rates is not None:
            # the highest price: an estimate must not let a run overspend
            cost = (estimate if tokens is None else tokens) * model.rates.highest / TOKENS_PER_PRICE
        with self._lock:
            self._tokens += estimate if tokens is None else tokens
            self._cost += cost or 0.0
            first = (tokens is None) and not self.warned
            self.warned = self.warned or first
        return first

    def spend_usage(self, used: Usage, model: Model) -> None:
        """Adds the usage of model calls that failed or were given up, as far as the vendor reported it."""
        tokens = used.total_tokens or (used.prompt_tokens or 0) + (used.completion_tokens or 0)
        self.spend_tokens(tokens, used.cost, model, 0)


class UsageMeter:
    """Sums up the usage of one run or sub-run. A number that no call reported is None."""

    # numbers, not a `Usage` or a list: each step counts here, and those would cost several times as much
    __slots__ = ("_cached", "_calls", "_completion", "_cost", "_prompt", "_total", "_written")

    def __init__(self) -> None:
        self._prompt: int | None = None
        self._completion: int | None = None
        self._total: int | None = None
        self._cached: int | None = None
        self._written: int | None = None
        self._cost: float | None = None
        self._calls = 0

    def add(self, usage: Usage) -> None:
        """Adds the usage of a sub-run, or of a failed model call."""
        self.count(usage, usage.cost, usage.model_calls)

    def count(self, used: LlmResponse | Usage, cost: float | None, calls: int = 1) -> None:
        if used.prompt_tokens is not None:
            self._prompt = used.prompt_tokens + (self._prompt or 0)
        if used.completion_tokens is not None:
            self._completion = used.completion_tokens + (self._completion or 0)
        if used.total_tokens is not None:
            self._total = used.total_tokens + (self._total or 0)
        if used.cached_tokens is not None:
            self._cached = used.cached_tokens + (self._cached or 0)
        if used.cache_write_tokens is not None:
            self._written = used.cache_write_tokens + (self._written or 0)
        if cost is not None:
            self._cost = cost + (self._cost or 0)
        self._calls += calls

    def usage(self) -> Usage:
        return Usage(self._prompt, self._completion, self._total, self._cost, self._calls, self._cached, self._written)


def usage_of(response: LlmResponse, model: Model) -> Usage:
    """The usage of one model call as the vendor reports it, with its cost by the price of `model`."""
    return Usage(
        response.prompt_tokens, response.completion_tokens, response.total_tokens, response.cost_at(model), 1,
        response.cached_tokens, response.cache_write_tokens,
    )
