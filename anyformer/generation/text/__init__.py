"""Between text and ids."""
