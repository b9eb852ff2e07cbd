"""Grammars, in GBNF, of what a model may say: a decoder that follows one cannot write a wrong call."""
