"""Runs that outlive their process: where their entries and media are kept."""
