"""Searches that compare whole continuations."""
