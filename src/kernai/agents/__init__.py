"""Who answers: the agent, an agent as another one's skill, and the system message."""
