"""Names of nodes and values that a person recognises: ``layer1.0.conv2``, ``blocks.3.attn:softmax``."""

from __future__ import annotations

import re
from collections.abc import Sequence

from wellposed.graphs.raw import RawNode

_NUMBER = re.compile(r"\d+")


def numberless(name: str) -> str:
    """Return a name with ``#`` for every number: what like parts of blocks have in common."""
    return _NUMBER.sub("#", name)


def node_names(nodes: Sequence[RawNode]) -> list[str]:
    """Return a unique name for every node.

    A node is called like its module when it is the only operator of note that this call of a leaf module ran, and
    ``path:operator`` otherwise; the second call of a module is ``path@2``, the second node of one name ``name#2``.
    """
    used: set[str] = set()
    counts: dict[str, int] = {}
    names: list[str] = []
    for node in nodes:
        call = node.call
        path = call.path if call.index == 0 else f"{call.path or 'model'}@{call.index + 1}"
        alone = call.leaf and call.operators == 1 and not node.minor and call.path
        operator = node.op._schema.name.rpartition("::")[2].strip("_")
        wanted = path if alone else f"{path}:{operator}" if path else operator
        name = wanted
        count = counts.get(wanted, 0)
        while not count or name in used:
            count += 1
            name = wanted if count == 1 else f"{wanted}#{count}"
            if name not in used:
                break
        counts[wanted] = count
        used.add(name)
        names.append(name)
    return names
