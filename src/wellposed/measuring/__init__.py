"""Measuring: the running model's signals, and predictions held against them."""
