"""Typed inputs, a small separate library: from an annotation to checked and converted values."""
