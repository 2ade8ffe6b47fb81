"""Numerical kernels: each operation has a plain reference, and faster ways that say why they can't serve a request."""
