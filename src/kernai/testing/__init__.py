"""Tools for tests of agents, and of what users write beside kernai."""

from kernai.testing.by_hand import ByHand, first_spawned, last_spawned

__all__ = ["ByHand", "first_spawned", "last_spawned"]
