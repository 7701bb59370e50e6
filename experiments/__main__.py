"""``python -m experiments``: the command line."""

from experiments.cli import app

app(prog_name="experiments")
