"""Sizes: ladders of them, laws that loss follows over compute, and learning rates that move with the width."""
