"""Tools for tests of agents, and of what users write beside kernai."""

from kernai.testing.by_hand import ByHand, first_spawned, last_spawned
from kernai.testing.provider_contract import check_provider
from kernai.testing.replays import assert_replays
from kernai.testing.sink_contract import check_sink
from kernai.testing.store_rules import StoreRules

__all__ = [
    "ByHand", "StoreRules", "assert_replays", "check_provider", "check_sink", "first_spawned", "last_spawned",
]
