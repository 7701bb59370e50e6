"""JSON of findings, whose numbers may be infinite or missing."""

from __future__ import annotations

import json
import math
from typing import Any


def to_json(document: dict[str, Any]) -> str:
    """Return JSON of a document; numbers that JSON does not have are the strings "inf", "-inf" and "nan"."""
    return json.dumps(_plain(document), indent=2, allow_nan=False)


def _plain(value: Any) -> Any:
    """Return ``value`` with the floats that JSON lacks as strings."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    return value
