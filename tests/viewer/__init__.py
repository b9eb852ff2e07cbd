"""A package, so that one browser lasts for all of its tests, and no longer: see `browser` in conftest.py."""
