"""A summary → strict JSON: null where a number is not known, never NaN or Infinity."""

from dataclasses import fields, is_dataclass
from typing import Any

import orjson

from loadgen.analysis.summary import Summary


def to_json(summary: Summary) -> bytes:
    """Return ``summary.json``: keys as in ``summary.py`` (``class_`` is written "class")."""
    options = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
    return orjson.dumps(to_plain(summary), option=options)


def to_plain(value: Any) -> Any:  # noqa: ANN401 - any part of a summary, or of a manifest
    """Turn dataclasses into dicts, all the way down; orjson writes NaN and ±∞ as null."""
    if is_dataclass(value):
        return {f.name.rstrip("_"): to_plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, dict):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    return value
