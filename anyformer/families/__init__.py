"""Published models: their specs, and their checkpoints."""
