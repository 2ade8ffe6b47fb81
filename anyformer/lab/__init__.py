"""Experiments: whole runs, and how they compare."""
