"""Tools for testing agents, and for testing your own providers, sinks and stores."""

from kernai.testing.by_hand import ByHand, first_spawned, last_spawned
from kernai.testing.contracts import assert_replays, check_provider, check_sink
from kernai.testing.run_store_rules import RunStoreRules
from kernai.testing.store_rules import StoreRules

__all__ = [
    "ByHand", "RunStoreRules", "StoreRules", "assert_replays", "check_provider", "check_sink", "first_spawned",
    "last_spawned",
]
