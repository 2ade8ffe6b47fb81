"""Texts, tokenizers, batches."""
