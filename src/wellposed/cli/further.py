"""Further options by name: ``--steps 100`` says what ``--option steps=100`` does, on every command that has it."""

from __future__ import annotations

import importlib
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import typer.core

from wellposed.cli import progress

if TYPE_CHECKING:
    from typer import Context


class Command(typer.core.TyperCommand):
    """A command that takes ``--name value`` for every option that it does not declare itself, and says that it starts:
    its imports take seconds.
    """

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:  # type: ignore[override]
        """Parse the arguments of a command line."""
        declared = {flag for parameter in self.params for flag in (*parameter.opts, *parameter.secondary_opts)}
        return super().parse_args(ctx, by_option(args, {*declared, *ctx.help_option_names}))

    def invoke(self, ctx: Context) -> Any:  # type: ignore[override]
        """Run the command."""
        with progress.Stages("starting"):
            importlib.import_module("wellposed.checks")
        return super().invoke(ctx)


def by_option(args: Sequence[str], declared: Collection[str]) -> list[str]:
    """Return arguments in which what is not declared is given by ``--option``, if that is declared.

    An option without a value is true.
    """
    if "--option" not in declared:
        return list(args)
    found: list[str] = []
    waiting = list(args)
    while waiting:
        word = waiting.pop(0)
        flag, separator, value = word.partition("=")
        if word == "--":
            return [*found, word, *waiting]
        if not flag.startswith("--") or flag in declared:
            found.append(word)
            continue
        if not separator:
            value = waiting.pop(0) if waiting and not _is_flag(waiting[0]) else "true"
        found += ["--option", f"{flag[2:].replace('-', '_')}={value}"]
    return found


def _is_flag(word: str) -> bool:
    """Whether a word is an option, and no negative number."""
    return word.startswith("-") and not word[1:2].isdigit() and word[1:2] != "."
