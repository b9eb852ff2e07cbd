"""Drivers, which perform the loop's effects on threads or asyncio; delivery of events; streams."""
