"""Random walks over the public surface, each step held against a model that nothing but plain training ever touched."""
