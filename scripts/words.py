"""Words, semicolons and sentence lengths of the documentation's prose, by page.

    python scripts/words.py [PAGE ...] [--long 45]

Prose is what stands outside fenced blocks, tables, front matter of lists of links and inline code. ``--long`` prints
every sentence with at least so many words.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FENCE = re.compile(r"^( *)```.*?^\1```$", re.M | re.S)
TABLE = re.compile(r"^ *\|.*$", re.M)
INCLUDE = re.compile(r'^ *--8<--.*$|^:::.*\n(?:^ +.*\n)*', re.M)
CODE = re.compile(r"`[^`]+`")
ENTITY = re.compile(r"&\w+;|<[^>\n]+>")
LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)(?:\{[^}]*\})?")
SENTENCE_END = re.compile(r"(?<=[.!?:])[*)\"”]*\s+(?=[*(\"“`]*[A-ZΣνσκ0-9`])")


def pages() -> list[Path]:
    """Return the files whose prose is held: the README, the changelog, and the pages."""
    return [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]


def prose(text: str) -> str:
    """Return a page without its fenced blocks, tables and includes; inline code and links become words."""
    for pattern, instead in ((FENCE, ""), (TABLE, ""), (INCLUDE, ""), (CODE, "code"), (ENTITY, " "), (LINK, r"\1")):
        text = pattern.sub(instead, text)
    return text


def semicolons_per_thousand(text: str) -> float:
    """Return the semicolons in a page's prose for each thousand of its words."""
    words = prose(text)
    return 1000 * words.count(";") / max(len(words.split()), 1)


def sentences(text: str) -> list[str]:
    """Return the sentences of a page's prose, headings and the items of lists among them."""
    blocks = re.split(r"\n\s*\n|\n(?= *(?:[-*#]|\d+\.) )", prose(text))
    return [" ".join(part.split()) for block in blocks for part in SENTENCE_END.split(block) if part.strip()]


def main() -> None:
    """Print a line for each page, and its long sentences where these are wanted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", type=Path, default=pages())
    parser.add_argument("--long", type=int)
    options = parser.parse_args()
    print(f"{'page':28} {'words':>6} {';':>4} {'‰':>5} {'words a sentence':>17}")
    for path in options.pages:
        text = path.read_text(encoding="utf-8")
        found, words = sentences(text), prose(text)
        print(
            f"{path.name:28} {len(words.split()):6} {words.count(';'):4} {semicolons_per_thousand(text):5.1f} "
            f"{len(words.split()) / max(len(found), 1):17.1f}"
        )
        for sentence in found:
            if options.long and len(sentence.split()) >= options.long:
                print(f"    {len(sentence.split())}: {sentence}")


if __name__ == "__main__":
    main()
