"""What can be called, and by whom: skills, protocols, providers, configuration, access."""
