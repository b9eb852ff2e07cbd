"""Public test doubles, for testing your agents without a network."""

from __future__ import annotations

from kernai.testing.mock_provider import MockProvider

__all__ = ["MockProvider"]
