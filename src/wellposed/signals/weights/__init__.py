"""Weights: the states that parameters get: from a plan, or at scales that are chosen while a pass runs."""
