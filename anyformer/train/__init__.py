"""Optimizers, schedules, the loop, and what a run leaves behind."""
