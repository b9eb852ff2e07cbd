"""The packages that a scenario needs besides kernai, checked before a run and not in the middle of it."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from harness import UsageError

#: by the name that is imported: the name for `pip install`, and the oldest version that works
PACKAGES = {
    "PIL": ("pillow", (10, 4)),
    "mcp": ("mcp", (2, 3)),
    "yaml": ("PyYAML", (6, 0)),
    "jsonschema": ("jsonschema", (4, 20)),
}


def require_packages(*modules: str) -> None:
    """Raises `UsageError` with the command to run if one of these modules of `PACKAGES` is missing or too old."""
    missing = [PACKAGES[module] for module in modules if not _serves(module)]
    if missing:
        wanted = " ".join(f'"{name}>={major}.{minor}"' for name, (major, minor) in missing)
        raise UsageError(f"this scenario needs more than kernai: pip install {wanted}")


def _serves(module: str) -> bool:
    name, oldest = PACKAGES[module]
    try:
        found = re.match(r"(\d+)\.(\d+)", version(name))
    except PackageNotFoundError:
        return find_spec(module) is not None  # importable without metadata, so its version is not known
    return found is None or (int(found[1]), int(found[2])) >= oldest
