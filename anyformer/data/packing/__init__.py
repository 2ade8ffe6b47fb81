"""Packing: which documents share a row."""

from anyformer.data.packing.packing import Packed, Packing

__all__ = ["Packed", "Packing"]
