"""Distributions of tensors, and how views, functions and dependence change them."""
