"""The model: blocks, stacks, and one class for decoders, encoders and encoder-decoders."""
