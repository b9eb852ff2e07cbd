"""A package, so that its tests share one browser, which closes after them: see `browser` in conftest.py."""
