"""Suggestions for a misspelled name, or for another agent library's word."""

from __future__ import annotations

from collections.abc import Iterable

#: the comparison looks at each pair of letters, so it is bounded
_LONGEST = 100
_MOST = 1_000
#: other libraries' words, and ours
_ELSEWHERE = {
    "answer": "text", "as_tool": "as_skill", "callbacks": "on_event", "content": "text", "desc": "description",
    "final_output": "output", "hooks": "middleware", "input_tokens": "prompt_tokens", "max_iterations": "max_steps",
    "max_turns": "max_steps", "message_history": "history", "needs_approval": "approval", "output_text": "text",
    "output_tokens": "completion_tokens", "output_type": "output", "parallel_tools": "parallel_skills",
    "prompt": "instructions", "require_approval": "approval", "requires_approval": "approval",
    "response_format": "output", "result_type": "output", "session_id": "run_id", "should_cancel": "cancel",
    "stopped_reason": "stop_reason", "system": "instructions", "system_prompt": "instructions",
    "temperature": "generation", "thread_id": "run_id", "tools": "skills", "top_p": "generation",
}


def close_matches(name: str, known: Iterable[str], most: int = 1) -> list[str]:
    """The names in `known` closest to `name`, at most `most`; empty if none is close."""
    if len(name) > _LONGEST:
        return []
    from difflib import get_close_matches

    candidates = [one for one, _ in zip(known, range(_MOST), strict=False) if len(one) <= _LONGEST]
    by_lower = {one.lower(): one for one in reversed(candidates)}
    return [by_lower[one] for one in get_close_matches(name.lower(), by_lower, most)]


def closest(name: str, known: Iterable[str]) -> str | None:
    """The one in `known` that `name` is another library's word for, or a misspelling of."""
    known = list(known)
    word = _ELSEWHERE.get(name)
    return word if word in known else next(iter(close_matches(name, known)), None)


def likely(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """``; did you mean 'x'?`` if the name is close to one of `known` or is another library's word.

    Otherwise ``; it has`` and all known names, if `otherwise` is such a phrase, else nothing.
    """
    known = list(known)
    close = closest(name, known)
    if close is not None:
        return f"; did you mean {close!r}?"
    return f"; {otherwise} {', '.join(known)}" if otherwise else ""
