"""Optimizers for plain training loops, the schedules and the rules behind them."""
