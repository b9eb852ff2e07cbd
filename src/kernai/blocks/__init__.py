"""The text protocol: blocks, the grammar of their tags, both parsers, plans, and what the runtime writes."""
