"""Words, semicolons and sentence lengths of the documentation's prose, by page.

    python scripts/words.py [PAGE ...] [--long 45]

Prose is what stands outside fenced blocks, tables and includes. Inline code counts as a word. ``--long`` prints every
sentence with at least so many words. `tests/project/test_words.py` holds the bounds.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FENCE = re.compile(r"^( *)```.*?^\1```$", re.M | re.S)
TABLE = re.compile(r"^ *\|.*$", re.M)
INCLUDE = re.compile(r"^ *--8<--.*$|^:::.*\n(?:^ +.*\n)*", re.M)
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


def count(text: str) -> tuple[int, int, float]:
    """Return the words of a page's prose, its semicolons, and the mean number of words in a sentence."""
    words = prose(text)
    return len(words.split()), words.count(";"), len(words.split()) / max(len(sentences(text)), 1)


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
    print(f"{'page':28} {'words':>6} {';':>4} {'per 1000':>9} {'words a sentence':>17}")
    for path in options.pages:
        text = path.read_text(encoding="utf-8")
        words, semicolons, mean = count(text)
        print(f"{path.name:28} {words:6} {semicolons:4} {1000 * semicolons / max(words, 1):9.1f} {mean:17.1f}")
        for sentence in sentences(text):
            if options.long and len(sentence.split()) >= options.long:
                print(f"    {len(sentence.split())}: {sentence}")


if __name__ == "__main__":
    main()
