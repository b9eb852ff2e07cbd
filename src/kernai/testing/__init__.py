"""Tools for tests of agents, and of what users write beside kernai."""

from kernai.testing.by_hand import ByHand, first_spawned, last_spawned
from kernai.testing.store_rules import StoreRules

__all__ = ["ByHand", "StoreRules", "first_spawned", "last_spawned"]
