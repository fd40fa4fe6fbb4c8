"""A run directory → tables: the manifest, one row per arrival, per chunk, per read, per reading.

Rows lie in order of request id, and the chunks and reads of a request lie together in the same
order, so that ``requests.chunks`` and ``requests.reads`` (their numbers) say whose they are.
Instants are float64 nanoseconds from the run's epoch where they may be null (NaN); a float holds
every integer up to 2**53, which is 104 days.
"""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pandas as pd

from loadgen.analysis.readings import joined, no_readings, readings_of
from loadgen.errors import UsageError
from loadgen.record import CONTENT, REASONING, REFUSAL, SCHEMA_VERSION, TOOL, Record

KINDS = (CONTENT, REASONING, TOOL, REFUSAL)

_WHOLE = ("id", "level", "round", "worker", "due_ns", "attempts", "reconnects")
_NUMBERS = (
    "slot", "turn", "slot_ns", "connect_start_ns", "connected_ns", "tls_done_ns", "throttled_ns",
    "sent_ns", "written_ns", "headers_ns", "first_ns", "first_output_ns", "last_ns", "end_ns",
    "http_status", "retry_after_s", "asked_input", "asked_output", "reported_input",
    "cached_input", "reported_output", "reasoning", "counted_output", "first_chunk_tokens",
    "output_chars", "earlier_connects_ns",
)  # fmt: skip
_LISTS = ("finish_reasons", "flags")
_TEXTS = (
    "phase", "class", "conversation", "prompt_hash", "connection", "peer", "outcome",
    "error_class", "error", "token_source", "output_hash",
)  # fmt: skip
_TYPES: tuple[tuple[tuple[str, ...], tuple[type, ...]], ...] = (
    (_WHOLE, (int,)),
    (_NUMBERS, (int, float)),
    (_LISTS, (list,)),
    (_TEXTS, (str,)),
)
_REQUIRED = ("id", "level", "phase", "due_ns", "outcome")
_LEVEL_NUMBERS = (
    "round", "concurrency", "rate", "start_ns", "measure_start_ns", "measure_end_ns", "end_ns",
    "peak_in_flight",
)  # fmt: skip
_COLUMNS = tuple(f.name for f in fields(Record) if f.name != "chunks")


@dataclass(frozen=True, kw_only=True)
class RunData:
    """The facts of one run.

    requests: Record's fields, and ``chunks``, ``reads`` (numbers of them), ``choices`` (distinct
        choices that streamed).
    chunks: request (id), index, at_ns (from the run's epoch), kind, choice, tokens (NaN =
        unknown), coalesced.
    reads: request (id), lag_ns (user-space stamp less kernel stamp).
    samples: what the server's page and the GPU told, in order of time (``readings``): at_ns,
        source, name, labels, value; empty where the run has none.
    """

    manifest: dict[str, Any]
    requests: pd.DataFrame
    chunks: pd.DataFrame
    reads: pd.DataFrame
    samples: pd.DataFrame = field(default_factory=no_readings)
    warnings: list[str] = field(default_factory=list)

    def with_requests(self, requests: pd.DataFrame) -> "RunData":
        """Return the run with other columns of the same requests."""
        return replace(self, requests=requests)


def read_run(directory: Path) -> RunData:
    """Load a run directory; also one whose run was cut off in the middle of a line.

    Raises UsageError where the directory is no run, or was written by a newer version.
    """
    manifest = _read_manifest(directory)
    path = directory / "requests.jsonl"
    if not path.exists():
        empty = tables_of(manifest, [])
        run = _warned(empty, [f"{path.name} is missing: no request was recorded"])
        return _with_samples(run, directory)
    try:
        with path.open("rb") as lines:
            return _with_samples(tables_of(manifest, lines), directory)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error


def _with_samples(run: RunData, directory: Path) -> RunData:
    """Add what the server and the GPU told; a run without it, or of before, has no such file."""
    path = directory / "samples.jsonl"
    if not path.exists():
        return run
    try:
        with path.open("rb") as lines:
            samples, bad, last = readings_of(lines)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error
    told = replace(run, samples=samples)
    return _warned(told, _about_bad_lines(bad, last, name=path.name))


def tables_of(manifest: dict[str, Any], lines: Iterable[bytes]) -> RunData:
    """Build the tables from lines of ``requests.jsonl``; unusable lines are left out and named."""
    gatherer = _Gatherer()
    bad: list[int] = []
    number = 0
    for number, line in enumerate(lines, start=1):
        if line.strip() and not gatherer.take(line):
            bad.append(number)
    run = _in_order_of_id(gatherer.tables(manifest))
    about_lines = _about_bad_lines(bad, number, name="requests.jsonl")
    return _warned(run, about_lines + _about_ids(run.requests))


def select(run: RunData, rows: "np.ndarray[Any, np.dtype[np.bool_]]") -> RunData:
    """Keep the requests where ``rows`` is true, with their chunks and reads."""
    requests = run.requests
    return replace(
        run,
        requests=requests[rows].reset_index(drop=True),
        chunks=run.chunks[np.repeat(rows, requests["chunks"])].reset_index(drop=True),
        reads=run.reads[np.repeat(rows, requests["reads"])].reset_index(drop=True),
    )


def merge(parts: Sequence[RunData]) -> RunData:
    """Join the parts of one run (its workers'); the same tables whatever the order of the parts.

    The manifest is the first part's.
    """
    whole = RunData(
        manifest=parts[0].manifest,
        requests=pd.concat([part.requests for part in parts], ignore_index=True),
        chunks=pd.concat([part.chunks for part in parts], ignore_index=True),
        reads=pd.concat([part.reads for part in parts], ignore_index=True),
        samples=joined(part.samples for part in parts),
        warnings=[warning for part in parts for warning in part.warnings],
    )
    return _in_order_of_id(whole)


def row_of_each_chunk(run: RunData) -> "np.ndarray[Any, np.dtype[np.int64]]":
    """Return, for each chunk, the position of its request in ``run.requests``."""
    return np.repeat(np.arange(len(run.requests)), run.requests["chunks"])


class _Gatherer:
    """Collects the lines of a run: rows as dicts, chunks and reads in flat arrays."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.at_ns, self.choice, self.lag_ns = array("q"), array("q"), array("q")
        self.tokens = array("d")
        self.coalesced = array("q")  # positions in the flat arrays
        self.kinds: list[str] = []
        self.chunk_counts, self.read_counts = array("q"), array("q")

    def take(self, line: bytes) -> bool:
        """Add one line; False, and nothing added, where it is not a whole record."""
        try:
            row = _checked_row(orjson.loads(line))
            chunks = _chunk_lists(row.pop("chunks", None) or {})
        except (ValueError, TypeError, AttributeError, OverflowError):
            return False
        self._take_chunks(chunks)
        self.rows.append(row)
        return True

    def _take_chunks(self, chunks: "_ChunkLists") -> None:
        start = len(self.at_ns)
        self.at_ns.extend(chunks.at_ns)
        self.choice.extend(chunks.choice)
        self.tokens.extend(chunks.tokens)
        self.kinds.append(chunks.kind)
        self.coalesced.extend(array("q", [start + index for index in chunks.coalesced]))
        self.lag_ns.extend(chunks.lag_ns)
        self.chunk_counts.append(len(chunks.at_ns))
        self.read_counts.append(len(chunks.lag_ns))

    def tables(self, manifest: dict[str, Any]) -> RunData:
        """Turn what was collected into frames."""
        requests = _request_frame(self.rows)
        requests["chunks"] = np.array(self.chunk_counts, dtype=np.int64)
        requests["reads"] = np.array(self.read_counts, dtype=np.int64)
        chunks = self._chunk_frame(requests)
        requests["choices"] = _distinct_choices(requests, chunks["choice"].to_numpy())
        lag = np.array(self.lag_ns, dtype=np.int64)
        owner = np.repeat(requests["id"].to_numpy(), requests["reads"])
        reads = pd.DataFrame({"request": owner, "lag_ns": lag})
        return RunData(manifest=manifest, requests=requests, chunks=chunks, reads=reads)

    def _chunk_frame(self, requests: pd.DataFrame) -> pd.DataFrame:
        counts = requests["chunks"].to_numpy()
        starts = np.cumsum(counts) - counts
        letters = np.frombuffer("".join(self.kinds).encode("ascii"), dtype=np.uint8)
        code = np.full(128, -1, dtype=np.int8)
        code[[ord(kind) for kind in KINDS]] = np.arange(len(KINDS))
        coalesced = np.zeros(len(letters), dtype=bool)
        coalesced[np.array(self.coalesced, dtype=np.int64)] = True
        return pd.DataFrame(
            {
                "request": np.repeat(requests["id"].to_numpy(), counts),
                "index": np.arange(len(letters)) - np.repeat(starts, counts),
                "at_ns": _instants(np.array(self.at_ns, dtype=np.int64), starts, counts),
                "kind": pd.Categorical.from_codes(code[letters], categories=pd.Index(KINDS)),
                "choice": np.array(self.choice, dtype=np.int64),
                "tokens": np.array(self.tokens, dtype=np.float64),
                "coalesced": coalesced,
            }
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _ChunkLists:
    """The chunks of one request with every default filled in; arrays of equal length."""

    at_ns: "array[int]"
    kind: str
    choice: "array[int]"
    tokens: "array[float]"
    lag_ns: "array[int]"
    coalesced: list[int]


def _chunk_lists(stored: dict[str, Any]) -> _ChunkLists:
    """Check one record's chunks; ValueError or TypeError where they do not fit together."""
    at_ns = array("q", stored.get("at_ns") or [])
    count = len(at_ns)
    choice, tokens = stored.get("choice"), stored.get("tokens")
    lists = _ChunkLists(
        at_ns=at_ns,
        kind=stored.get("kind") or CONTENT * count,
        choice=array("q", choice) if choice else array("q", bytes(8 * count)),
        tokens=array("d", tokens if tokens else [float("nan")] * count),
        lag_ns=array("q", stored.get("lag_ns") or []),
        coalesced=stored.get("coalesced") or [],
    )
    if not count == len(lists.kind) == len(lists.choice) == len(lists.tokens):
        raise ValueError("chunk arrays of unlike length")
    if not lists.kind.isascii() or any(not 0 <= index < count for index in lists.coalesced):
        raise ValueError("a kind or an index that cannot be")
    return lists


def _checked_row(row: dict[str, Any]) -> dict[str, Any]:
    """Let a record through whose fields are of their types; TypeError for any other line."""
    if type(row) is not dict or any(row.get(key) is None for key in _REQUIRED):
        raise TypeError("not a record")
    for keys, types in _TYPES:
        for key in keys:
            value = row.get(key)
            if value is not None and type(value) not in types:
                raise TypeError(key)
    if any(abs(row.get(key) or 0) >= 2**63 for key in _WHOLE):
        raise OverflowError("too large a number")
    return row


def _request_frame(rows: list[dict[str, Any]]) -> pd.DataFrame:
    columns: dict[str, Any] = {}
    for name in _COLUMNS:
        key = name.rstrip("_")  # class_ is stored as "class"
        values = [row.get(key) for row in rows]
        if name in _WHOLE:
            columns[name] = np.array([value or 0 for value in values], dtype=np.int64)
        elif name in _NUMBERS:
            columns[name] = np.array(values, dtype=np.float64)
        else:
            filled = [value or [] for value in values] if name in _LISTS else values
            columns[name] = pd.Series(filled, dtype=object)
    return pd.DataFrame(columns)


def _instants(
    gaps: "np.ndarray[Any, np.dtype[np.int64]]",
    starts: "np.ndarray[Any, np.dtype[np.int64]]",
    counts: "np.ndarray[Any, np.dtype[np.int64]]",
) -> "np.ndarray[Any, np.dtype[np.int64]]":
    """Undo the deltas: running sums within each request.

    One running sum over everything, less what had been reached before each request. It may wrap
    around in 64 bits; the difference is right all the same.
    """
    if not len(gaps):
        return gaps
    total = np.cumsum(gaps)
    before = np.concatenate(([0], total))[starts]
    return np.asarray(total - np.repeat(before, counts))


def _distinct_choices(
    requests: pd.DataFrame, choice: "np.ndarray[Any, np.dtype[np.int64]]"
) -> "np.ndarray[Any, np.dtype[np.int64]]":
    """Count the choices that streamed in each request; 0 where nothing did."""
    counts = requests["chunks"].to_numpy()
    if not choice.any():
        return (counts > 0).astype(np.int64)
    row = np.repeat(np.arange(len(requests)), counts)
    pairs = pd.DataFrame({"row": row, "choice": choice}).drop_duplicates()
    return np.bincount(pairs["row"], minlength=len(requests)).astype(np.int64)


def _in_order_of_id(run: RunData) -> RunData:
    """Sort requests by id, and chunks and reads with them; arrival order of lines is chance."""
    requests = run.requests
    order = np.argsort(requests["id"].to_numpy(), kind="stable")
    if np.array_equal(order, np.arange(len(order))):
        return run
    return replace(
        run,
        requests=requests.iloc[order].reset_index(drop=True),
        chunks=_regrouped(run.chunks, requests["chunks"].to_numpy(), order),
        reads=_regrouped(run.reads, requests["reads"].to_numpy(), order),
    )


def _regrouped(
    frame: pd.DataFrame,
    counts: "np.ndarray[Any, np.dtype[np.int64]]",
    order: "np.ndarray[Any, np.dtype[np.int64]]",
) -> pd.DataFrame:
    """Reorder whole groups of rows (``counts`` rows each) by ``order``."""
    starts = np.cumsum(counts) - counts
    taken = counts[order]
    within = np.arange(len(frame)) - np.repeat(np.cumsum(taken) - taken, taken)
    return frame.take(np.repeat(starts[order], taken) + within).reset_index(drop=True)


def _read_manifest(directory: Path) -> dict[str, Any]:
    path = directory / "manifest.json"
    if not directory.is_dir():
        what = "is a file" if directory.exists() else "no such directory"
        raise UsageError(f"{directory}: {what}; give the directory of a run")
    try:
        manifest = orjson.loads(path.read_bytes())
    except FileNotFoundError:
        raise UsageError(
            f"{directory}: not a run (manifest.json is missing); give the directory of a run"
        ) from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise UsageError(f"{path}: not JSON ({error}); the run is damaged") from error
    return _checked_manifest(manifest, path)


def _checked_manifest(manifest: object, path: Path) -> dict[str, Any]:
    """Refuse what is no manifest, or a later kind of manifest than this program knows."""
    if not isinstance(manifest, dict) or not isinstance(manifest.get("schema"), int):
        raise UsageError(f"{path}: not the manifest of a run; give the directory of a run")
    if manifest["schema"] > SCHEMA_VERSION:
        raise UsageError(
            f"{path}: schema {manifest['schema']} is newer than {SCHEMA_VERSION}, the latest that"
            " this version reads; update loadgen"
        )
    problem = _shape_problem(manifest)
    if problem:
        raise UsageError(f"{path}: {problem}; the run is damaged")
    return manifest


def _shape_problem(manifest: dict[str, Any]) -> str | None:
    """Name the first part of a manifest that is not of the shape the figures are made from."""
    for key, kind in (("scenario", dict), ("target", dict), ("levels", list), ("warnings", list)):
        if manifest.get(key) is not None and not isinstance(manifest[key], kind):
            return f"{key}: is not a {'list' if kind is list else 'mapping'}"
    if not isinstance((manifest.get("scenario") or {}).get("objectives") or [], list):
        return "scenario.objectives: is not a list"
    for number, entry in enumerate(manifest.get("levels") or []):
        if not isinstance(entry, dict) or type(entry.get("level")) is not int:
            return f"levels[{number}]: has no number of its level"
        for key in _LEVEL_NUMBERS:
            if entry.get(key) is not None and type(entry[key]) not in (int, float):
                return f"levels[{number}].{key}: is not a number"
        if not isinstance(entry.get("client") or {}, dict):
            return f"levels[{number}].client: is not a mapping"
    return None


def _about_bad_lines(bad: list[int], last: int, *, name: str) -> list[str]:
    if not bad:
        return []
    if bad == [last]:
        return [f"the last line of {name} was cut off and left out"]
    shown = ", ".join(str(number) for number in bad[:5]) + (", …" if len(bad) > 5 else "")
    return [f"unusable lines of {name} were left out: {len(bad)} (line {shown})"]


def _about_ids(requests: pd.DataFrame) -> list[str]:
    repeated = int(requests["id"].duplicated().sum())
    return [f"request ids that stand in requests.jsonl again: {repeated}"] if repeated else []


def _warned(run: RunData, warnings: list[str]) -> RunData:
    return replace(run, warnings=[*run.warnings, *warnings])
