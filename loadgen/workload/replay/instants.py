"""The times that logs write, as exact nanoseconds: ISO in many dresses, and numbers of any unit.

A time without a zone is taken for UTC. Digits beyond nanoseconds are cut off.
"""

import math
import re
from datetime import date
from typing import Literal, NamedTuple

from loadgen.workload.rows import BadRow

Unit = Literal["auto", "s", "ms", "us", "ns"]
Kind = Literal["number", "naive", "zoned"]

EPOCH_FROM_NS = 10**17
"""Later than this (1973) is a date; earlier counts from some beginning of the log's own."""

_SCALE = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
_LATEST_NS = 2**63
_NUMBER = re.compile(r"([0-9]+)(?:\.([0-9]*))?")
_ISO = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[T ](\d\d):(\d\d)(?::(\d\d)(?:[.,](\d+))?)?"
    r"\s*(Z|z|UTC|[+-]\d\d(?::?\d\d)?)?"
)
_DAY_ONE = date(1970, 1, 1).toordinal()


class Moment(NamedTuple):
    """An instant and how it was written; ``naive`` is without a zone."""

    ns: int
    kind: Kind


def moment(value: object, unit: Unit) -> Moment | None:
    """Read a time; None where there is none.

    unit: of numbers. auto: a number as large as a date of our times is taken in the unit that makes
    it one, a smaller one is seconds.
    """
    if value is None or value == "":
        return None
    if isinstance(value, str):
        return _written(value.strip(), unit)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadRow("has a time that is no time")
    if not math.isfinite(value):
        raise BadRow("has a time that is no finite number")
    scale = _scale(value, unit)
    integer = int(value)
    return Moment(_checked(integer * scale + round((value - integer) * scale)), "number")


def duration_ns(value: object, unit: Unit) -> int | None:
    """Read how long something took; None where the log does not say."""
    try:
        found = moment(value, unit)
    except BadRow:
        return None
    return None if found is None or found.kind != "number" else found.ns


def _written(text: str, unit: Unit) -> Moment:
    if number := _NUMBER.fullmatch(text):
        integer, digits = int(number[1]), number[2] or ""
        scale = _scale(integer, unit)
        part = int(digits) * scale // 10 ** len(digits) if digits else 0
        return Moment(_checked(integer * scale + part), "number")
    iso = _ISO.fullmatch(text)
    if iso is None:
        raise BadRow("has a time below 0" if text.startswith("-") else "has a time that is no time")
    return Moment(_checked(_iso_ns(iso)), "naive" if iso[8] is None else "zoned")


def _iso_ns(iso: re.Match[str]) -> int:
    year, month, day, hour, minute = (int(iso[i]) for i in range(1, 6))
    second = int(iso[6] or 0)
    if hour > 23 or minute > 59 or second > 60:
        raise BadRow("has a time that is no time")
    try:
        days = date(year, month, day).toordinal() - _DAY_ONE
    except ValueError:
        raise BadRow("has a time that is no time") from None
    seconds = ((days * 24 + hour) * 60 + minute) * 60 + second - _zone_s(iso[8])
    return seconds * 10**9 + int((iso[7] or "").ljust(9, "0")[:9])


def _zone_s(zone: str | None) -> int:
    if zone is None or zone in ("Z", "z", "UTC"):
        return 0
    digits = zone[1:].replace(":", "").ljust(4, "0")
    seconds = (int(digits[:2]) * 60 + int(digits[2:])) * 60
    return -seconds if zone[0] == "-" else seconds


def _scale(value: float, unit: Unit) -> int:
    """Return ns per unit of a number."""
    if unit != "auto":
        return _SCALE[unit]
    for least, found in ((1e17, "ns"), (1e14, "us"), (1e11, "ms")):
        if value >= least:
            return _SCALE[found]
    return _SCALE["s"]


def _checked(ns: int) -> int:
    if ns < 0:
        raise BadRow("has a time below 0")
    if ns >= _LATEST_NS:
        raise BadRow("has a time beyond the year 2262")
    return ns
