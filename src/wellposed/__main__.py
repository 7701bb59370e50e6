"""``python -m wellposed`` is the command ``wellposed``."""

from wellposed.cli import main

main()
