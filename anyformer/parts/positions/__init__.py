"""Position schemes, one file each. The hooks that a leaf may override are in `anyformer.specs.axes.Position`."""
