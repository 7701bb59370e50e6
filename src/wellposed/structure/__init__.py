"""Structure: what a graph says of branches, widths and roles, without statistics."""
