"""Functions of one number, conditions and gates, forward and backward."""
