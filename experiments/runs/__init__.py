"""One file for each experiment, named by its id; all are found by being here."""
