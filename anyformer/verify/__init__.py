"""Proofs that a user can run: the same numbers here and in the published implementation."""
