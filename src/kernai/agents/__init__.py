"""The agent, an agent as a skill of another one, and the system message."""
