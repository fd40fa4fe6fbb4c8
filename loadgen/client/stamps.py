"""The token chunks of one exchange as they are noted: flat lists, one entry per chunk."""

from collections.abc import Iterable

from loadgen.client.answer import Delta
from loadgen.record import VISIBLE_KINDS, Chunks


class Stamps:
    """Instants, kinds, choices and sizes of chunks; lags of reads. All instants absolute ns."""

    __slots__ = (
        "_choices",
        "_coalesced",
        "_kinds",
        "_lags",
        "_read_ns",
        "_tokens",
        "at_ns",
        "first_output_ns",
    )

    def __init__(self) -> None:
        self.at_ns: list[int] = []
        self.first_output_ns: int | None = None
        self._kinds: list[str] = []
        self._choices: list[int] = []
        self._tokens: list[int | None] = []
        self._lags: list[int] = []
        self._coalesced: list[int] = []
        self._read_ns = 0

    @property
    def last_read_ns(self) -> int:
        """The stamp of the last read."""
        return self._read_ns

    @property
    def buffered(self) -> bool:
        """Whether several chunks all came at one instant: no pace can be told from them."""
        return len(self.at_ns) > 1 and self.at_ns[0] == self.at_ns[-1]

    def read(self, stamp_ns: int, lag_ns: int) -> None:
        """Note a read; pieces of one read share their stamp."""
        if stamp_ns != self._read_ns:
            self._read_ns = stamp_ns
            self._lags.append(lag_ns)

    def note(self, deltas: Iterable[Delta], stamp_ns: int) -> None:
        """Note the chunks that a read completed."""
        at_ns = self.at_ns
        for kind, choice, tokens in deltas:
            if at_ns and at_ns[-1] == stamp_ns:
                self._coalesced.append(len(at_ns) - 1)
            at_ns.append(stamp_ns)
            self._kinds.append(kind)
            self._choices.append(choice)
            self._tokens.append(tokens)
            if self.first_output_ns is None and kind in VISIBLE_KINDS:
                self.first_output_ns = stamp_ns

    def chunks(self, *, tokens_known: bool) -> Chunks:
        """Return them as a record keeps them; ``at_ns`` still holds absolute instants."""
        tokens = [token for token in self._tokens if token is not None]
        known = tokens_known and len(tokens) == len(self._tokens)
        return Chunks(
            at_ns=self.at_ns,
            kind="".join(self._kinds),
            choice=self._choices if any(self._choices) else None,
            tokens=tokens if known else None,
            lag_ns=self._lags,
            coalesced=self._coalesced,
        )
