"""What is asked for: options, checked at once, and the plan that follows."""
