"""Where events go to stay: recorder, sinks, log, and reading a recording back."""
