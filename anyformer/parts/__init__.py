"""The parts of a model: attention, norms, feed-forwards, embeddings, heads, caches, and the leaves of each open axis."""
