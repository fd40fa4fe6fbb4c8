"""Numbers with units, in and out: "30s" ↔ 30.0, "4/s" ↔ 4.0, "2%" ↔ 0.02.

Inside the program times are integer nanoseconds (``_ns``); seconds (``_s``) live at the edges.
"""

import re

NS_PER_S = 1_000_000_000
NS_PER_MS = 1_000_000

_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0,
            "h": 3600.0, "d": 86400.0}  # fmt: skip
_NUMBER = r"([0-9]+(?:\.[0-9]+)?|\.[0-9]+)"
_DURATION_PART = re.compile(_NUMBER + r"\s*(ns|us|µs|ms|min|s|m|h|d)")
_RATE = re.compile(_NUMBER + r"\s*(?:/|per\s*)\s*(s|sec|min|m|h)$")


def parse_duration_s(text: str | float | int) -> float:
    """Return seconds for "250ms", "30s", "1m30s", "2h", or a bare number of seconds.

    Raises ValueError, with what is accepted, for anything else (negative numbers too).
    """
    if isinstance(text, bool):
        raise ValueError("a duration like 30s, 500ms or 2m is needed")
    if isinstance(text, int | float):
        if text < 0 or text != text or text == float("inf"):
            raise ValueError(f"a duration cannot be {text}")
        return float(text)
    stripped = text.strip().lower()
    if re.fullmatch(_NUMBER, stripped):
        return float(stripped)
    position, total = 0, 0.0
    for part in _DURATION_PART.finditer(stripped):
        if stripped[position : part.start()].strip():
            break
        total += float(part[1]) * _SECONDS[part[2]]
        position = part.end()
    if position == 0 or stripped[position:].strip():
        raise ValueError(f"'{text}' is not a duration; write it like 30s, 500ms or 1m30s")
    return total


def parse_rate(text: str | float | int) -> float:
    """Return events per second for "4/s", "90/min" or a bare positive number."""
    if isinstance(text, bool):
        raise ValueError("a rate like 4/s or 90/min is needed")
    if isinstance(text, int | float):
        rate = float(text)
    else:
        stripped = text.strip().lower()
        match = _RATE.fullmatch(stripped)
        if match:
            rate = float(match[1]) / {"s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600}[match[2]]
        elif re.fullmatch(_NUMBER, stripped):
            rate = float(stripped)
        else:
            raise ValueError(f"'{text}' is not a rate; write it like 4/s or 90/min")
    if not 0 < rate < float("inf"):
        raise ValueError(f"a rate must be above 0, not {text}")
    return rate


def parse_share(text: str | float | int) -> float:
    """Return a share between 0 and 1 for "2%", "0.02" or a number."""
    if isinstance(text, bool):
        raise ValueError("a share like 2% or 0.02 is needed")
    if isinstance(text, str):
        stripped = text.strip()
        number = stripped[:-1] if stripped.endswith("%") else stripped
        if not re.fullmatch(_NUMBER, number.strip()):
            raise ValueError(f"'{text}' is not a share; write it like 2% or 0.02")
        share = float(number) / (100 if stripped.endswith("%") else 1)
    else:
        share = float(text)
    if not 0 <= share <= 1:
        hint = f"; did you mean {share:g}%?" if share <= 100 and "%" not in str(text) else ""
        raise ValueError(f"a share lies between 0 and 100 %, not {text}{hint}")
    return share


def seconds_to_ns(seconds: float) -> int:
    """Round seconds to integer nanoseconds."""
    return round(seconds * NS_PER_S)


def format_duration(seconds: float) -> str:
    """Write seconds for people: 250ms, 1.5s, 30s, 1m30s."""
    if seconds < 1:
        return f"{seconds * 1000:g}ms"
    if seconds < 60:
        return f"{seconds:g}s"
    minutes, rest = divmod(seconds, 60)
    return f"{minutes:.0f}m{rest:g}s" if rest else f"{minutes:.0f}m"
