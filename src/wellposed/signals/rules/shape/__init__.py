"""Views, copies and writes: the same elements under other indices; forward and backward."""
