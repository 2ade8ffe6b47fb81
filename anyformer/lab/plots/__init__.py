"""Drawing a study: its figures, their parts, and the palette."""
