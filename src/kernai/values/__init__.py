"""Messages, media, models, limits, results: the values that everything else uses. They know nothing of a run."""
