"""The exception classes match the tree in their module's docstring and carry the attributes they promise."""

from __future__ import annotations

import re

import pytest

import kernai
from kernai import ProviderError, errors

LINE = re.compile(r"^(?P<branch>[ │├└─]*)(?P<name>[A-Z]\w+Error)\b", re.MULTILINE)


def drawn_parents() -> dict[str, str]:
    """Return each class in the docstring's tree with its parent."""
    above: list[tuple[int, str]] = []
    parents = {}
    for found in LINE.finditer(errors.__doc__ or ""):
        indent, name = len(found["branch"]), found["name"]
        above = [(at, one) for at, one in above if at < indent]
        parents[name] = above[-1][1] if above else "Exception"
        above.append((indent, name))
    return parents


def test_the_tree_in_the_docstring_matches_the_classes() -> None:
    defined = {
        name: one.__mro__[1].__name__
        for name, one in vars(errors).items()
        if isinstance(one, type) and issubclass(one, Exception)
    }
    assert drawn_parents() == defined


def test_every_error_is_exported_and_documented() -> None:
    for name in drawn_parents():
        assert name in kernai.__all__
        assert (getattr(kernai, name).__doc__ or "").strip()
        assert getattr(kernai, name)("why").result is None, "it was raised outside of a run"


def test_a_provider_error_refuses_a_wait_that_is_no_number() -> None:
    for wrong in ("2", b"2"):
        with pytest.raises(TypeError, match="retry_after must be a number of seconds or None, got"):
            ProviderError("slow", retry_after=wrong)  # type: ignore[arg-type]  # the subject
