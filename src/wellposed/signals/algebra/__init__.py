"""Algebra: arithmetic of states that the rules of several families share."""
