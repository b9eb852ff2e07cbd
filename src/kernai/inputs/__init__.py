"""Typed inputs, a small library of its own: from an annotation to checked, converted values."""
