"""Attention patterns, one predicate a file. See `anyformer.specs.patterns.Pattern`."""
