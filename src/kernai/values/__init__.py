"""Messages, media, models, limits, results: the values that all other code uses. They do not depend on a run."""
