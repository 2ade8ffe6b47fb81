"""Initialisation schemes, one file each. See `anyformer.specs.axes.Init`."""
