"""Norms, one file each. See `anyformer.specs.axes.Norm`."""
