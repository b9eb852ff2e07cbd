"""`GenerationOptions`: how a model should generate. None leaves an option to the vendor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from math import isfinite
from typing import Any

from kernai._util.copies import Value


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class GenerationOptions(Value):
    """`temperature` and `top_p` as vendors take them, `max_tokens` for the completion.

    `thinking` is ``{"budget": tokens}`` or ``{"effort": "low" | …}``. `stop` is a text, or several, at which the answer
    ends. `cache`: True asks the vendor to cache the prompt for the next request, ``"1h"`` for an hour. `extra` goes
    into the vendor's request unchanged.
    """

    temperature: float | None = None
    max_tokens: int | None = None
    top_p: float | None = None
    thinking: Mapping[str, Any] | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    cache: bool | str | None = None
    stop: str | Sequence[str] | None = None

    def __post_init__(self) -> None:
        _check_number("temperature", self.temperature)
        _check_number("top_p", self.top_p)
        if self.max_tokens is not None and (not isinstance(self.max_tokens, int) or isinstance(self.max_tokens, bool)
                                            or self.max_tokens < 1):
            raise ValueError(f"max_tokens must be a positive int, got {self.max_tokens!r}")
        if self.thinking is not None:
            _check_thinking(self.thinking)
            object.__setattr__(self, "thinking", dict(self.thinking))
        if self.cache is not None and self.cache not in (True, False, "1h"):
            raise ValueError(f"cache must be True, False, '1h' or None, got {self.cache!r}")
        if self.stop is not None:
            object.__setattr__(self, "stop", _stop(self.stop))
        extra: object = self.extra if self.extra is not None else {}
        object.__setattr__(self, "extra", dict(_mapping("extra", extra)))

    @classmethod
    def coerce(cls, value: GenerationOptions | Mapping[str, Any] | None) -> GenerationOptions:
        """From None, a mapping or itself. A key that is no option goes into `extra`, and so into the vendor's request.

        A key that is one letter away from an option's name is a `ValueError` with that name.
        """
        if value is None:
            return cls()
        if isinstance(value, cls):
            return value
        if not isinstance(value, Mapping):
            raise TypeError(f"generation must be GenerationOptions, a mapping or None, not {type(value).__name__}")
        known = [one.name for one in fields(cls)]
        given = {key: one for key, one in value.items() if key in known}
        others = {key: one for key, one in value.items() if key not in given}
        for key in others:
            meant = next((name for name in known if _one_letter_apart(str(key), name)), None)
            if meant is not None:
                raise ValueError(f"there is no generation option {key!r}; did you mean {meant!r}? A vendor's field of "
                                 f"that name goes into extra={{{key!r}: ...}}")
        if others:
            given["extra"] = {**others, **_mapping("extra", given.get("extra") or {})}
        return cls(**given)

    def merge(self, other: GenerationOptions | Mapping[str, Any] | None) -> GenerationOptions:
        """These options overridden by `other`; a None in `other` changes nothing, `extra` is merged by key."""
        over = GenerationOptions.coerce(other)
        return GenerationOptions(**{**self.to_dict(), **over.to_dict(), "extra": {**self.extra, **over.extra}})

    @property
    def is_empty(self) -> bool:
        """Whether nothing is set."""
        return self == GenerationOptions()

    def to_dict(self) -> dict[str, Any]:
        """The options that are set."""
        return {one.name: getattr(self, one.name) for one in fields(self) if getattr(self, one.name) not in (None, {})}

    def __hash__(self) -> int:
        return hash(tuple(_frozen(getattr(self, one.name)) for one in fields(self)))


def _mapping(name: str, value: object) -> Mapping[Any, Any]:
    if not isinstance(value, Mapping):
        raise TypeError(f"{name} must be a mapping, got {type(value).__name__}")
    return value


def _one_letter_apart(one: str, other: str) -> bool:
    """Whether one missing, additional or different letter is the only difference."""
    at = next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    rests = (one[at:], other[at + 1 :]), (one[at + 1 :], other[at:]), (one[at + 1 :], other[at + 1 :])
    return one != other and any(a == b for a, b in rests)


def _check_number(name: str, value: object) -> None:
    if value is not None and (not isinstance(value, (int, float)) or isinstance(value, bool)):
        raise TypeError(f"{name} must be a number or None, got {value!r}")
    if isinstance(value, float) and not isfinite(value):
        raise ValueError(f"{name} must be a finite number or None, got {value!r}")


def _check_thinking(thinking: object) -> None:
    if not isinstance(thinking, Mapping):
        raise TypeError(f'thinking must be {{"budget": int}} or {{"effort": str}}, got {thinking!r}')
    for key, kind in (("budget", int), ("effort", str)):
        if set(thinking) == {key} and isinstance(thinking[key], kind) and not isinstance(thinking[key], bool):
            return
    raise ValueError(f'thinking must be {{"budget": int}} or {{"effort": str}}, got {dict(thinking)!r}')


def _stop(stop: object) -> list[str]:
    given = [stop] if isinstance(stop, str) else list(stop) if isinstance(stop, (list, tuple)) else []
    if not given or not all(isinstance(one, str) and one for one in given):
        raise ValueError(f"stop must be a text that is not empty, or a list of such, got {stop!r}")
    return given


def _frozen(value: object) -> object:
    """A hashable copy of JSON-like data."""
    if isinstance(value, Mapping):
        return frozenset((key, _frozen(one)) for key, one in value.items())
    if isinstance(value, (list, tuple)):
        return tuple(_frozen(one) for one in value)
    return value
