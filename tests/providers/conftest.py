"""What the machine has configured is no concern of these tests: vendors' keys and addresses, and proxies."""

from __future__ import annotations

import os

import pytest

from kernai_providers import VENDORS

SETTINGS = {
    "OLLAMA_HOST", "ANTHROPIC_BASE_URL", "GOOGLE_GEMINI_BASE_URL", "OPENAI_BASE_URL",
    *(name for vendor in VENDORS for name in vendor.variables),
    *(name for vendor in VENDORS for name, _ in vendor.base_url_variables),
    *(name for vendor in VENDORS for _, variables in vendor.places for name in variables),
}  # fmt: skip


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    if "VCR_RECORD" not in os.environ:  # which records from each vendor whose key is set
        for name in [name for name in os.environ if name in SETTINGS or name.lower().endswith("_proxy")]:
            monkeypatch.delenv(name)
