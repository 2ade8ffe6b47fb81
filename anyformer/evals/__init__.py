"""What operations cost on this machine: time and bytes, measured."""
