"""The text protocol: blocks, the grammar of their tags, both parsers, plans, and the blocks that the runtime writes."""
