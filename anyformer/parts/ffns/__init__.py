"""Feed-forward kinds. See `anyformer.specs.axes.FeedForward`."""
