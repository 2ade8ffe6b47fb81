"""What is asked for: options, checked at once, and what follows from them."""
