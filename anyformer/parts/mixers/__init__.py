"""Mixers: how scores become weights. See `anyformer.specs.axes.Mixer`."""
