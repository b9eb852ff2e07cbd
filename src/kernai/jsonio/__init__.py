"""Reads JSON strictly, tolerantly and in pieces, and turns values into JSON data."""
