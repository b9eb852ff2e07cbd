"""What everything speaks of: messages, media, models, limits, results. Values know nothing of a run."""
