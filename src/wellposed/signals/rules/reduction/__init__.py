"""Statistics over axes, forward and backward."""
