"""Writes what follows from the declared fields of a state: what type checkers read, and the table in the docs.

python scripts/fields.py   # after a field has been added, changed or removed
"""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from wellposed.signals.distributions.declared import declarations
from wellposed.signals.distributions.state import PARTS, State

ROOT = Path(__file__).parents[1]
SOURCE, PAGE = "src/wellposed/signals/distributions/state.py", "docs/architecture.md"
Block = tuple[str, str]
"""The lines before and after what is written."""
CHANGES: Block = ("    # <changes>\n", "    # </changes>\n")
NAMES: Block = ("    # <names>\n", "    # </names>\n")
TABLE: Block = ("<!-- fields -->\n", "<!-- /fields -->\n")


def types() -> dict[str, str]:
    """Return the annotation of every field, those of parts after these."""
    found = {item.name: str(item.type) for item in fields(State) if item.name != "serial"}
    for kind in PARTS.values():
        said = declarations(kind)
        found |= {item.name: str(item.type) for item in fields(kind) if item.name in said}
    return found


def changes() -> str:
    """Return the entries of the dictionary that copies of a state are made with."""
    return "".join(f"    {name}: {kind}\n" for name, kind in types().items())


def names() -> str:
    """Return the annotations of the fields that a state has from its parts."""
    own = {item.name for item in fields(State)}
    return "".join(f"    {name}: ClassVar[{kind}]\n" for name, kind in types().items() if name not in own)


def table() -> str:
    """Return the table of all fields as Markdown."""
    lines = ["", "| part | field | holds | indexed | valid when | survives a change of |", "|---|---|---|---|---|---|"]
    for part, kind in (*PARTS.items(), ("", State)):
        for name, said in declarations(kind).items():
            cells = (f"`{part}`" if part else "", f"`{name}`", said.holds, said.shape, said.valid)
            lines.append(f"| {' | '.join(cells)} | {', '.join(said.survives) or 'nothing'} |".replace("|  |", "| |"))
    return "\n".join([*lines, "", ""])


def replaced(text: str, block: Block, content: str) -> str:
    """Return a text with other content between the two lines of a block."""
    before, _, rest = text.partition(block[0])
    _, end, after = rest.partition(block[1])
    if not end:
        raise ValueError(f"there is no block {block[0].strip()}")
    return before + block[0] + content + block[1] + after


def written(root: Path = ROOT) -> dict[Path, str]:
    """Return the files that follow from the declarations, as they should be."""
    source, page = (root / name for name in (SOURCE, PAGE))
    code = replaced(source.read_text(encoding="utf-8"), CHANGES, changes())
    return {
        source: replaced(code, NAMES, names()),
        page: replaced(page.read_text(encoding="utf-8"), TABLE, table()),
    }


if __name__ == "__main__":
    for path, text in written().items():
        path.write_text(text, encoding="utf-8")
