"""A server's metrics page as samples: bytes in, values out; no I/O.

Of a page only what the engine's signals name is kept, under the server's own names: a page has
hundreds of lines, and most are of no use here. Lines are chosen by their name before they are
parsed, so that a large page costs little more than a small one.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import orjson
from prometheus_client.parser import text_string_to_metric_families

from loadgen.engines import STARTED, Engine
from loadgen.run.telemetry.source import Sample

PARTS = ("_bucket", "_sum", "_count")
PER_ITERATION = frozenset(
    f"trtllm:{field}"
    for field in (
        "numCompletedRequests",
        "specDecodingStats.numDraftTokens",
        "specDecodingStats.numAcceptedTokens",
    )
)
"""Fields of TensorRT-LLM's statistics that count within one iteration."""

_NAME = re.compile(r"[A-Za-z_:][A-Za-z0-9_:]*")
_SHARED_LABELS = ("model_name", "engine")  # no news where a page has one value of them
_USED = "trtllm:kvCacheStats.usedNumBlocks"
_MOST = "trtllm:kvCacheStats.maxNumBlocks"


class PageError(ValueError):
    """A page that is not what it should be; the text is one short clause."""


class NoneOfItsOwnError(PageError):
    """A page without a metric of the engine's own."""


def prometheus_samples(body: bytes, engine: Engine, *, info: bool = False) -> list[Sample]:
    """Return what the engine's signals name on a Prometheus page; PageError where nothing is.

    Beside that its ``STARTED``, where it has one.

    info: also keep the engine's own ``…_info`` gauges, whose labels say how it is configured.
    """
    text = body.decode("utf-8", "replace")
    chosen = "\n".join(_chosen(text.splitlines(), engine, info=info))
    try:
        families = list(text_string_to_metric_families(chosen))
    except (ValueError, IndexError, KeyError) as error:
        raise PageError("cannot be read as a Prometheus page") from error
    read = [sample for family in families for sample in family.samples]
    kept = [
        Sample(name=one.name, value=float(one.value), labels=one.labels)
        for one in read
        if math.isfinite(one.value)
    ]
    if all(one.name == STARTED for one in kept):
        advice = f"; {engine.without_figures}" if engine.without_figures else ""
        raise NoneOfItsOwnError(f"has no metrics of {engine.label}{advice}")
    return _without_shared_labels(kept)


def iteration_samples(body: bytes, engine: Engine) -> list[Sample]:
    """Return what the signals name of TensorRT-LLM's JSON: a list of iterations, oldest first.

    States are the latest iteration's, of each rank where there are several; what counts within
    an iteration (``PER_ITERATION``) is the sum over the list. An empty list, as an idle server
    gives it, says nothing. PageError where it is no list of objects.
    """
    try:
        rows = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise PageError("is not JSON") from error
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise PageError("is not a list of iterations")
    wanted = _names_of(engine)
    ranks: dict[object, dict[str, float]] = {}
    for row in rows:
        values = dict(_fields(row))
        values |= _usage(values)
        held = ranks.setdefault(row.get("attentionDpRank"), {})
        for name in wanted & values.keys():
            so_far = held.get(name, 0.0) if name in PER_ITERATION else 0.0
            held[name] = so_far + values[name]
    return [
        Sample(name=name, value=held[name], labels={} if rank is None else {"rank": str(rank)})
        for rank, held in ranks.items()
        for name in sorted(held)
    ]


def _names_of(engine: Engine) -> frozenset[str]:
    """All names that a page of this engine is searched for."""
    return frozenset(
        name + part
        for signal in engine.signals.values()
        for name in (*signal.names, *signal.plus)
        for part in (PARTS if signal.kind == "histogram" else ("",))
    )


def _chosen(lines: Iterable[str], engine: Engine, *, info: bool) -> Iterator[str]:
    names, own = _names_of(engine) | {STARTED}, engine.signs.metrics
    for line in lines:
        found = _NAME.match(line)
        if found is None:
            continue
        name = found[0]
        if name in names or (info and name.endswith("_info") and name.startswith(own)):
            yield line


def _without_shared_labels(samples: list[Sample]) -> list[Sample]:
    """Drop the labels that are the same throughout."""
    values = {name: {one.labels.get(name) for one in samples} - {None} for name in _SHARED_LABELS}
    drop = {name for name, found in values.items() if len(found) == 1}
    return [
        Sample(
            name=one.name,
            value=one.value,
            labels={key: text for key, text in one.labels.items() if key not in drop},
        )
        for one in samples
    ]


def _fields(row: Mapping[str, Any], before: str = "trtllm:") -> Iterator[tuple[str, float]]:
    """Yield the numbers of an iteration, nested ones as ``trtllm:outer.inner``."""
    for key, value in row.items():
        if isinstance(value, dict):
            yield from _fields(value, f"{before}{key}.")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield f"{before}{key}", float(value)


def _usage(values: Mapping[str, float]) -> dict[str, float]:
    """The share of KV blocks in use: a page tells both numbers, not their quotient."""
    used, most = values.get(_USED), values.get(_MOST)
    return {f"{_USED}/maxNumBlocks": used / most} if used is not None and most else {}
