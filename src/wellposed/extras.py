"""How the extras of this package are installed: from where the package itself was."""

from __future__ import annotations

import json
from functools import cache
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urlsplit


@cache
def installing(extra: str) -> str:
    """Return the command that installs an extra: from an index, a tree, a file or a repository, as the package was.

    What a tree that is gone was is not known: a package of conda was built in one.
    """
    try:
        origin = metadata.distribution("wellposed").read_text("direct_url.json")
    except metadata.PackageNotFoundError:  # its sources are on the path
        return f"pip install '.[{extra}]' in a clone of wellposed"
    if origin is None:
        return f"pip install 'wellposed[{extra}]'"
    told = json.loads(origin)
    url = told["url"]
    if not url.startswith("file:"):
        system = told.get("vcs_info", {}).get("vcs")
        return f"pip install 'wellposed[{extra}] @ {f'{system}+' if system else ''}{url}'"
    path = unquote(urlsplit(url).path)
    editable = "-e " if told.get("dir_info", {}).get("editable") else ""
    return f"pip install {editable}'{path if Path(path).exists() else 'wellposed'}[{extra}]'"
