"""Many processes: a mesh of them, weights cut over it by torch's own engine, and checkpoints of what they hold."""
