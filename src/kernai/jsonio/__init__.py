"""JSON read strictly, tolerantly and in part, and checked before it is written."""
