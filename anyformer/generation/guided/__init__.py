"""Structured outputs: tokens that can't lead to a text of a grammar are never chosen."""
