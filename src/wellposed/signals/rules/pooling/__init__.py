"""Pooling, padding and resizing, forward and backward."""
