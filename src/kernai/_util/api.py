"""Shared by the public API: base classes, a lock, facts about callables, suggestions for misspelled names."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Collection, Iterable
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NoReturn, Self, SupportsIndex, TypeVar

if TYPE_CHECKING:
    from dataclasses import Field
    from inspect import Signature


T = TypeVar("T")
#: the limit of times to wait, in seconds
MOST_SECONDS = 1e6


class Once(Generic[T]):
    """An attribute that is computed when it is first read. Threads that read it at once get the same value.

    Unlike `functools.cached_property` up to Python 3.11, it has no lock that a forked child could find locked.
    """

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self._compute = compute

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: object, owner: type) -> T:
        if instance is None:
            raise AttributeError(f"{owner.__name__} has no attribute {self._name!r}, its instances have")
        value: T = vars(instance).setdefault(self._name, self._compute(instance))
        return value

    if TYPE_CHECKING:  # the attribute may be set, too

        def __set__(self, instance: object, value: T) -> None: ...


class Replaceable:
    """Supports `copy.replace`. `_FIELDS` are the parameters of `__init__`, which must also be attributes."""

    __slots__ = ()
    _FIELDS: ClassVar[tuple[str, ...]] = ()

    def __replace__(self, /, **changes: Any) -> Self:
        return type(self)(**{**{name: getattr(self, name) for name in self._FIELDS}, **changes})


def read_only(slot: str) -> Any:
    """A property that reads a slot. Unlike a method, it calls no Python function."""
    return property(attrgetter(slot), doc="")  # otherwise `help` shows the text of `attrgetter`


class NotCopied:
    """Cannot be copied or pickled. `_HOLDS` says why, and what to do instead."""

    __slots__ = ()
    _HOLDS: ClassVar[str] = "a lock"

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise TypeError(f"{type(self).__name__} can be neither copied nor pickled: it holds {self._HOLDS}")


class Closing:
    """A context manager: its ``with`` block ends with `close`."""

    __slots__ = ()
    close: Callable[..., Any]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class Value:
    """The base of dataclasses whose instances are equal if they have the same class and equal fields.

    `dataclass` would generate and compile these methods for each class, which is half of the class's cost at import. So
    value classes inherit them: ``@dataclass(frozen=True, slots=True, eq=False, repr=False)``.
    """

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self._values() == other._values()

    def __hash__(self) -> int:
        return hash((self.__class__, *self._values()))

    def __repr__(self) -> str:
        shown = ", ".join(f"{one.name}={getattr(self, one.name)!r}" for one in self._fields() if one.repr)
        return f"{self.__class__.__qualname__}({shown})"

    def _values(self) -> list[Any]:
        return [getattr(self, one.name) for one in self._fields() if one.compare]

    def _fields(self) -> Iterable[Field[Any]]:
        fields: dict[str, Field[Any]] = self.__dataclass_fields__  # type: ignore[attr-defined]  # subclasses have it
        return fields.values()


class ForkSafeLock:
    """A lock for ``with`` blocks that is free in a forked child, where its first user replaces it.

    A child has one thread, the one that forked. A lock that another thread held at that moment would never be released
    in the child. Objects that belong to the process need such a lock: registries and file sinks, for example. Objects
    that belong to a run do not, since a run ends with its process.
    """

    __slots__ = ("_lock", "_make", "_process")
    _here = object()  # a different one in each process
    _renewing = threading.Lock()  # keeps two threads from replacing the same lock

    def __init__(self, *, reentrant: bool = False) -> None:
        self._make = threading.RLock if reentrant else threading.Lock
        self._lock, self._process = self._make(), self._here

    def __enter__(self) -> None:
        if self._process is not self._here:
            with self._renewing:
                if self._process is not self._here:
                    self._lock = self._make()
                    self._process = self._here
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()

    @classmethod
    def after_fork(cls) -> None:
        cls._here, cls._renewing = object(), threading.Lock()


if hasattr(os, "register_at_fork"):  # not on every system
    os.register_at_fork(after_in_child=ForkSafeLock.after_fork)


# ----------------------------------------------------------------------------------------------------------- callables
# without `inspect`, which is slow to import; only docstrings need it

_ASYNC = 0x80 | 0x200  # inspect.CO_COROUTINE and CO_ASYNC_GENERATOR
_GENERATOR = 0x20 | 0x200  # inspect.CO_GENERATOR and CO_ASYNC_GENERATOR
#: attributes that inspect.markcoroutinefunction and asyncio set on async functions that look like plain ones
_MARKS = frozenset({"_is_coroutine_marker", "_is_coroutine"})


def is_async(function: Any) -> bool:
    """Whether it is an async function, even one that yields: also a method, a partial, an object with `__call__`."""
    function = inside_partials(function)
    return bool(_flags(function) & _ASYNC) or not _MARKS.isdisjoint(getattr(function, "__dict__", ()))


def is_generator(function: Any) -> bool:
    """Whether a call returns a generator, sync or async."""
    return bool(_flags(inside_partials(function)) & _GENERATOR)


def inside_partials(function: Any) -> Any:
    """The function in a `functools.partial`, or the function itself."""
    while isinstance(function, partial):
        function = function.func
    return function


def called_by(function: Any) -> Any:
    """The function that a call runs: the `__call__` of an object whose class defines one, else `function` itself."""
    called = getattr(type(function), "__call__", None)  # noqa: B004 - the method itself
    return called if hasattr(called, "__code__") else function


def _flags(function: Any) -> int:
    """The flags of the code that a call runs; 0 if it is not Python code."""
    code = getattr(function, "__code__", None) or getattr(called_by(function), "__code__", None)
    return int(getattr(code, "co_flags", 0))


def signature_of(function: Callable[..., Any]) -> Signature:
    """`inspect.signature`, but names that only type checkers know, which fail on Python 3.14, may stay unresolved."""
    import inspect

    if sys.version_info >= (3, 14):
        from annotationlib import Format

        return inspect.signature(function, annotation_format=Format.FORWARDREF)
    return inspect.signature(function)


def annotated_names(cls: type) -> Collection[str]:
    """The names that a class annotates in its own body. The annotations are not evaluated."""
    if sys.version_info >= (3, 14):
        from annotationlib import Format, get_annotations

        return get_annotations(cls, format=Format.FORWARDREF).keys()
    names: Collection[str] = vars(cls).get("__annotations__", ())
    return names


def check_type(value: Any, kinds: Any, wanted: str, hint: str = "") -> Any:
    """Returns an instance of `kinds`. Raises `TypeError` for any other value: `wanted`, its type, and the `hint`."""
    if not isinstance(value, kinds):
        raise TypeError(f"{wanted}, got {type(value).__name__}{hint}")
    return value


def check_methods(value: Any, wanted: str, *names: str) -> Any:
    """Returns an object that has these methods. Raises `TypeError` for any other, a class, and an async method."""
    if isinstance(value, type) or not all(callable(getattr(value, name, None)) for name in names):
        got = f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__
        raise TypeError(f"{wanted}, got {got}")
    for name in names:
        if is_async(getattr(value, name)):
            raise TypeError(f"{wanted}, and {type(value).__name__}.{name} is an async function: make it a plain one")
    return value


def check_count(name: str, value: Any, *, or_zero: bool = False) -> Any:
    """Returns `value`. Raises `ValueError` if it is not an int of at least 1, or 0 if that is allowed."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 0 or not (value or or_zero):
        raise ValueError(f"{name} must be {'0 or ' * or_zero}a positive int, got {value!r}")
    return value


def check_seconds(name: str, value: Any, *, or_zero: bool = False) -> Any:
    """Returns the number of seconds. Raises `ValueError` unless it is above 0, or 0 if allowed, and below the limit."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not 0 <= value < MOST_SECONDS or not (value or or_zero):
        least = "from" if or_zero else "above"
        raise ValueError(f"{name} must be a number of seconds {least} 0 and below {MOST_SECONDS:,.0f}, got {value!r}")
    return value


def check_texts(name: str, given: Any, what: str = "texts") -> list[str]:
    """Returns the texts in `given`. Raises `TypeError` for a single text, and for anything that is not a text."""
    if isinstance(given, str):
        raise TypeError(f"{name} must be a list of {what}: write {name}=[{given!r}]")
    texts: list[Any] = list(given) if isinstance(given, Iterable) else [None]
    if not all(isinstance(one, str) for one in texts):
        raise TypeError(f"{name} must be a list of {what}, got {given!r}")
    return texts


def check_function(
    name: str, function: Any, arguments: str, *given: Any, may_be_async: bool = False, may_yield: bool = False,
    **named: Any,
) -> Any:
    """Returns `function` if it can be called with `given` and `named`. Raises `TypeError` if not.

    The error names the option (`name`) and describes the expected `arguments` in words.
    """
    yields = is_generator(function) and not may_yield
    if yields or not callable(function) or (is_async(function) and not may_be_async):
        kind = "function" if may_be_async else "plain function"
        got = "the generator " if yields else "the async function " if is_async(function) else ""
        raise TypeError(f"{name} must be a {kind} of {arguments}, got {got}{function!r:.80}")
    try:
        signature_of(function).bind(*given, **named)
    except ValueError:  # a function in C without a signature
        pass
    except TypeError as error:
        raise TypeError(f"{name} must be a function of {arguments}: {error}") from None
    return function


def first_paragraph(function: Any) -> str:
    """The first paragraph of a docstring, on one line; empty if there is none. An object has that of its `__call__`."""
    import inspect

    given = inside_partials(function)
    called = called_by(given)
    # not if the object has one of its own, such as that of a function around which it is a decorator
    text = inspect.getdoc(called if called.__doc__ and given.__doc__ is type(given).__doc__ else given) or ""
    return " ".join(text.strip().split("\n\n")[0].split())


# ------------------------------------------------------------------------------------------------------- similar names

#: in characters: longer names are not compared
_LONGEST = 200
#: how many names are considered
_MOST = 5_000
#: comparing two names takes quadratic time, so only the most promising names are compared
_MOST_COMPARED = 20
_LEAST_SIMILAR = 0.65  # `nope` and `openai` have 0.6
#: names of options in other libraries, and kernai's option for each
_ELSEWHERE = {
    "answer": "text", "as_tool": "as_skill", "cache": "generation", "callback": "on_event", "callbacks": "on_event",
    "checkpointer": "store", "content": "text", "conversation_id": "run_id", "deps": "context", "desc": "description",
    "final_output": "output", "functions": "skills", "guardrails": "middleware", "hooks": "middleware",
    "input_tokens": "prompt_tokens", "llm": "provider", "max_iterations": "max_steps", "max_retries": "middleware",
    "max_tokens": "generation", "max_turns": "max_steps", "mcp_servers": "protocols", "message_history": "history",
    "messages": "history", "model_settings": "generation", "needs_approval": "approval", "output_text": "text",
    "output_tokens": "completion_tokens", "output_type": "output", "parallel_tools": "parallel_skills",
    "prompt": "instructions", "require_approval": "approval", "requires_approval": "approval",
    "response_format": "output", "result_type": "output", "retries": "middleware", "seed": "generation",
    "session_id": "run_id", "should_cancel": "cancel", "stop": "generation", "stopped_reason": "stop_reason",
    "stream": "on_event", "streaming": "on_event", "system": "instructions", "system_prompt": "instructions",
    "temperature": "generation", "thinking": "generation", "thread_id": "run_id", "tool": "skills", "tools": "skills",
    "toolsets": "skills", "top_k": "generation", "top_p": "generation", "usage_limits": "limits",
}


def close_matches(name: str, known: Iterable[str], most: int = 1) -> list[str]:
    """The names in `known` closest to `name`, at most `most`; empty if none is close. Ignores case, "-" and "_"."""
    from difflib import SequenceMatcher, get_close_matches
    from heapq import nlargest

    def plain(one: str) -> str:
        return one.lower().replace("-", "_")

    wanted = plain(name)
    if len(wanted) > _LONGEST:
        return []
    by_plain = {plain(one): one for one, _ in zip(known, range(_MOST), strict=False)}
    if wanted in by_plain:
        return [by_plain[wanted]]
    matcher = SequenceMatcher(b=wanted)

    def bound(other: str) -> float:
        matcher.set_seq1(other)
        return matcher.quick_ratio()

    promising = nlargest(_MOST_COMPARED, by_plain, bound)
    return [by_plain[one] for one in get_close_matches(wanted, promising, most, _LEAST_SIMILAR)]


def closest(name: str, known: Iterable[str]) -> str | None:
    """The name in `known` that was probably meant: `name` is another library's word for it, or a misspelling of it."""
    known = list(known)
    if name in _ELSEWHERE:  # then a name that merely looks similar is not meant
        return _ELSEWHERE[name] if _ELSEWHERE[name] in known else None
    return next(iter(close_matches(name, known)), None)


def likely(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """``; did you mean 'x'?`` if the name is close to one of `known` or is another library's word.

    If it is not, ``; it has a, b``: the text `otherwise`, then all known names. Empty if `otherwise` is empty.
    """
    known = list(known)
    close = closest(name, known)
    if close is not None:
        return f"; did you mean {close!r}?"
    return f"; {otherwise} {', '.join(known)}" if otherwise else ""
