"""``samples.jsonl`` → one frame of readings: what each sweep of the server's page and GPU found.

A reading is one line: at_ns (from the run's epoch), source (server, gpu), name, labels, value.
Labels become one text, ``k=v,k=v`` in order of key, a comma in a value written ``\\,``.
"""

import re
from array import array
from collections.abc import Iterable
from typing import Any

import numpy as np
import orjson
import pandas as pd

SERVER, GPU = "server", "gpu"
FAILED = "failed"
"""The name of a reading that says why a sweep brought none; its label ``why`` tells."""

COLUMNS = ("at_ns", "source", "name", "labels", "value")
_TEXTS = ("source", "name", "labels")

_PART = re.compile(r"(?:[^,\\]|\\.)+")
_ESCAPED = re.compile(r"\\(.)")


def no_readings() -> pd.DataFrame:
    """Return the empty frame: a run without ``samples.jsonl``."""
    return _Gatherer().frame()


def readings_of(lines: Iterable[bytes]) -> tuple[pd.DataFrame, list[int], int]:
    """Build the frame in order of time; with it the numbers of unusable lines and of the last."""
    gatherer = _Gatherer()
    bad: list[int] = []
    number = 0
    for number, line in enumerate(lines, start=1):
        if not gatherer.take(line) and line.strip():
            bad.append(number)
    return gatherer.frame(), bad, number


def joined(parts: Iterable[pd.DataFrame]) -> pd.DataFrame:
    """Join the readings of several parts of a run, in order of time."""
    some = [part for part in parts if len(part)]
    if not some:
        return no_readings()
    if len(some) == 1:
        return some[0]
    plain = pd.concat([part.astype(dict.fromkeys(_TEXTS, object)) for part in some])
    plain = plain.sort_values("at_ns", kind="stable", ignore_index=True)
    return plain.astype(dict.fromkeys(_TEXTS, "category"))


def label_of(labels: str, key: str) -> str | None:
    """Return one label's value out of a reading's labels; None where it has no such label."""
    for part in _PART.findall(labels):
        name, _, value = part.partition("=")
        if name == key:
            return _ESCAPED.sub(r"\1", value)
    return None


def without_label(labels: str, key: str) -> str:
    """Return the labels less one of them: what all buckets of one histogram have in common."""
    parts = _PART.findall(labels)
    return ",".join(part for part in parts if not part.startswith(f"{key}="))


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace(",", "\\,")


class _Gatherer:
    """Collects readings in flat arrays; a text that repeats is kept once."""

    def __init__(self) -> None:
        self.at_ns, self.value = array("q"), array("d")
        self.codes: dict[str, array[int]] = {name: array("i") for name in _TEXTS}
        self.texts: dict[str, dict[str, int]] = {name: {} for name in _TEXTS}
        self.known: dict[tuple[Any, ...], str] = {}

    def take(self, line: bytes) -> bool:
        """Add one line; False, and nothing added, where it is not a whole reading."""
        try:
            row = orjson.loads(line)
            at_ns, value, labels = row["at_ns"], row["value"], row.get("labels") or {}
            texts = (row["source"], row["name"], self._text_of(labels))
        except (ValueError, TypeError, KeyError, AttributeError):
            return False
        if type(at_ns) is not int or abs(at_ns) >= 2**63 or type(value) not in (int, float):
            return False
        if not (isinstance(texts[0], str) and isinstance(texts[1], str)):
            return False
        self.at_ns.append(at_ns)
        self.value.append(value)
        for name, text in zip(_TEXTS, texts, strict=True):
            known = self.texts[name]
            self.codes[name].append(known.setdefault(text, len(known)))
        return True

    def _text_of(self, labels: dict[str, str]) -> str:
        items = tuple(labels.items())
        text = self.known.get(items)
        if text is None:
            text = ",".join(f"{key}={_escaped(str(value))}" for key, value in sorted(items))
            self.known[items] = text
        return text

    def frame(self) -> pd.DataFrame:
        """Turn what was collected into the frame."""
        columns: dict[str, Any] = {"at_ns": np.array(self.at_ns, dtype=np.int64)}
        for name in _TEXTS:
            codes = np.array(self.codes[name], dtype=np.int32)
            words = pd.Index(list(self.texts[name]), dtype=object)
            columns[name] = pd.Categorical.from_codes(codes, categories=words)
        columns["value"] = np.array(self.value, dtype=np.float64)
        frame = pd.DataFrame(columns)
        if frame["at_ns"].is_monotonic_increasing:
            return frame
        return frame.sort_values("at_ns", kind="stable", ignore_index=True)
