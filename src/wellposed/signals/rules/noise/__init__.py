"""Dropout and random numbers, forward and backward."""
