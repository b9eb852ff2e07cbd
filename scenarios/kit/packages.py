"""The packages that a scenario needs besides kernai, checked before a run and not in the middle of it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from harness import UsageError


@dataclass(frozen=True)
class Package:
    """The requirement for `pip install`, and the oldest version that works."""

    name: str
    oldest: tuple[int, int]

    def __str__(self) -> str:
        return f'"{self.name}>={self.oldest[0]}.{self.oldest[1]}"'


#: by the name that is imported
PACKAGES = {
    "PIL": Package("pillow", (10, 4)),
    "mcp": Package("mcp", (2, 3)),
    "yaml": Package("PyYAML", (6, 0)),
    "jsonschema": Package("jsonschema", (4, 20)),
}


def require_packages(*modules: str) -> None:
    """Raises `UsageError` with the command to run if one of these modules of `PACKAGES` is missing or too old."""
    missing = [str(PACKAGES[module]) for module in modules if not _serves(module)]
    if missing:
        raise UsageError(f"this scenario needs more than kernai: pip install {' '.join(missing)}")


def _serves(module: str) -> bool:
    package = PACKAGES[module]
    try:
        found = re.match(r"(\d+)\.(\d+)", version(package.name))
    except PackageNotFoundError:
        return find_spec(module) is not None  # importable without metadata, so its version is not known
    return found is None or (int(found[1]), int(found[2])) >= package.oldest
