"""How a command says that a check failed."""


class CheckFailedError(Exception):
    """A check failed, and has been shown: exit code 1."""
