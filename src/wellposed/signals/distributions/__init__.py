"""Distributions: what is known of one tensor, and how views, functions and dependence change it."""
