"""Paths of runs within a run: what `Event.scope` and call ids are made of."""

from __future__ import annotations


def task_scope(scope: str, step: int, task_id: str) -> str:
    """The scope of a workflow's task: ``2.a``, or ``0.1/2.a`` below another run."""
    # `/` separates scopes, so an id may not hold one; `%` first, so that the escape can be undone
    escaped = task_id.replace("%", "%25").replace("/", "%2F")
    return f"{scope}/{step}.{escaped}" if scope else f"{step}.{escaped}"
