"""How models write calls of tools, and how those are read."""
