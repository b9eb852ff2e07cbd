"""Suggestions for a misspelled name, or for another agent library's word."""

from __future__ import annotations

from collections.abc import Iterable

#: names that are longer are not compared, nor are more of them
_LONGEST = 200
_MOST = 5_000
#: comparing two names takes quadratic time, so only the most promising are compared
_MOST_COMPARED = 20
_LEAST_SIMILAR = 0.6
#: other libraries' words, and ours
_ELSEWHERE = {
    "answer": "text", "as_tool": "as_skill", "callback": "on_event", "callbacks": "on_event", "checkpointer": "store",
    "content": "text", "conversation_id": "run_id", "deps": "context", "desc": "description",
    "final_output": "output", "functions": "skills", "guardrails": "middleware", "hooks": "middleware",
    "input_tokens": "prompt_tokens", "llm": "provider", "max_iterations": "max_steps", "max_retries": "middleware",
    "max_tokens": "generation", "max_turns": "max_steps", "mcp_servers": "protocols", "message_history": "history",
    "messages": "history", "model_settings": "generation", "needs_approval": "approval", "output_text": "text",
    "output_tokens": "completion_tokens", "output_type": "output", "parallel_tools": "parallel_skills",
    "prompt": "instructions", "require_approval": "approval", "requires_approval": "approval",
    "response_format": "output", "result_type": "output", "retries": "middleware", "seed": "generation",
    "session_id": "run_id", "should_cancel": "cancel", "stop": "generation", "stopped_reason": "stop_reason",
    "system": "instructions", "system_prompt": "instructions", "temperature": "generation", "thinking": "generation",
    "thread_id": "run_id", "tool": "skills", "tools": "skills", "toolsets": "skills", "top_k": "generation",
    "top_p": "generation", "usage_limits": "limits",
}


def close_matches(name: str, known: Iterable[str], most: int = 1) -> list[str]:
    """The names in `known` closest to `name`, at most `most`; none if none is close. Ignores case, "-" and "_"."""
    from difflib import SequenceMatcher
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
    bounds: list[tuple[float, str]] = []
    for other in by_plain:
        matcher.set_seq1(other)
        if matcher.real_quick_ratio() >= _LEAST_SIMILAR and (bound := matcher.quick_ratio()) >= _LEAST_SIMILAR:
            bounds.append((bound, other))
    close: list[tuple[float, str]] = []
    for _, other in nlargest(_MOST_COMPARED, bounds):
        matcher.set_seq1(other)
        if (similarity := matcher.ratio()) >= _LEAST_SIMILAR:
            close.append((similarity, other))
    return [by_plain[one] for _, one in nlargest(most, close)]


def closest(name: str, known: Iterable[str]) -> str | None:
    """The one in `known` that `name` is another library's word for, or a misspelling of."""
    known = list(known)
    if name in _ELSEWHERE:  # then no name that merely looks like it is meant
        return _ELSEWHERE[name] if _ELSEWHERE[name] in known else None
    return next(iter(close_matches(name, known)), None)


def likely(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """``; did you mean 'x'?`` if the name is close to one of `known` or is another library's word.

    Otherwise ``; it has`` and all known names, if `otherwise` is such a phrase, else nothing.
    """
    known = list(known)
    close = closest(name, known)
    if close is not None:
        return f"; did you mean {close!r}?"
    return f"; {otherwise} {', '.join(known)}" if otherwise else ""
