"""What performs the loop's effects: on threads, on asyncio; delivery of events, streams."""
