"""The command line: prints, never computes. torch and the rest are imported when a command needs them."""

from wellposed.cli.app import app, main

__all__ = ["app", "main"]
