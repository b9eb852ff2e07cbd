"""Skills, protocols, providers and the configuration, and what an agent may call."""
