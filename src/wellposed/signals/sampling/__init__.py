"""Sampling: operators that are run on samples of their arguments, alone or together, and on parameters alone."""
