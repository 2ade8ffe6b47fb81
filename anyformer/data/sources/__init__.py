"""Formats of raw files, one a file. See `anyformer.data.sources.format.Format`."""
