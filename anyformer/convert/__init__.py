"""Checkpoints made into others: another format, dtype or shape."""
