"""Ways to read rows that grow: with a static cache, anew, in pages, with guesses."""
