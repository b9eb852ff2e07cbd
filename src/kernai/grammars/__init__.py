"""Grammars in GBNF for responses: a decoder that follows one cannot write an incorrect call."""
