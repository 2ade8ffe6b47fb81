"""Passes of a model over tenants of a pool; captured steps."""
