"""How long one exchange may take, and which limit runs out next."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How long to wait, in seconds; None = for ever. ``max_event_bytes`` bounds one SSE event."""

    connect_s: float | None = 10.0
    first_token_s: float | None = 300.0
    idle_s: float | None = 60.0
    total_s: float | None = None
    max_event_bytes: int = 64 << 20

    def next_ns(self, *, started_ns: int, token_from_ns: int | None, progress_ns: int) -> "Due":
        """Return the limit that is exceeded first if nothing more happens.

        token_from_ns: since when a first token is awaited; None once it came: then silence counts,
        from ``progress_ns`` on.
        """
        found: list[Due] = []
        if self.total_s is not None:
            found.append(Due(started_ns + round(self.total_s * 1e9), "total"))
        if token_from_ns is None:
            if self.idle_s is not None:
                found.append(Due(progress_ns + round(self.idle_s * 1e9), "idle"))
        elif self.first_token_s is not None:
            found.append(Due(token_from_ns + round(self.first_token_s * 1e9), "first_token"))
        return min(found, default=NEVER)


@dataclass(frozen=True, slots=True, order=True)
class Due:
    """When a limit is exceeded, and its name (the error class of the timeout)."""

    at_ns: int
    name: str


NEVER = Due(1 << 62, "")
