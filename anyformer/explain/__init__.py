"""What a model is, in words, numbers and pictures."""
