"""What an index of packages shows of the README: nothing lies beside it there, and what is installed comes from it."""

from __future__ import annotations

import re
from pathlib import Path

from hatchling.metadata.plugin.interface import MetadataHookInterface

_PICTURE = re.compile(r"!\[([^\]]*)\]\((?!https?:)[^)]*\)")
_LINK = re.compile(r"\[([^\]]*)\]\((?!https?:|#)[^)]*\)")
_WHERE = "\n\nPictures and pages that are named here without a link are in the source distribution, under `docs/`.\n"


def shown(text: str) -> str:
    """Return a README with words in the place of pictures and links to files, and the commands of who has no clone."""
    text = _LINK.sub(r"\1", _PICTURE.sub(r"*(Picture: \1.)*", text))
    return text.replace(", in a clone of this repository", "").replace('".[', '"wellposed[').rstrip() + _WHERE


class CustomMetadataHook(MetadataHookInterface):
    """Fills in the field ``readme`` of a project."""

    def update(self, metadata: dict[str, object]) -> None:
        """Set the text that an index shows."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": shown(text)}
