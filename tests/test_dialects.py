"""A whole run against each engine's dialect, as the simulator speaks it: all is understood.

Answers of 9 tokens come as chunks of 1, 4 and 4, as engines send them that hold tokens back. Who
reports a running total says so of each chunk; of the others the total alone is known.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import httpx
import pytest
from drive import measure

from loadgen.errors import PreflightFailed
from loadgen.report.write import summarise_run
from loadgen.simulator.process import simulator_process

pytestmark = pytest.mark.slow  # whole runs: seconds each

PROMPT = 24  # more than a template adds: the words make up the rest, exactly
ANSWER = 9
SIZES = [1, 4, 4]


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What a run must know of a dialect without being told."""

    engine: str
    version: str | None = None
    sizes_known: bool = False
    takes_n: bool = True
    cached: int | None = None  # vLLM and SGLang name cached tokens only when told to
    flags: tuple[str, ...] = ()


DIALECTS = {
    "vllm": Expected(engine="vllm", version="0.32.0", sizes_known=True),
    "trtllm": Expected(engine="trtllm", version="1.3.0", sizes_known=True, cached=0),
    "llamacpp": Expected(engine="llamacpp", version="simulated", cached=0),
    "sglang": Expected(engine="sglang", version="simulated", sizes_known=True),
    # it ends a stream with the finish reason, and answers n=2 with one choice
    "transformers": Expected(engine="transformers", takes_n=False, flags=("no_done",)),
    # none of its answers names it: what every server takes is sent
    "azure": Expected(engine="unknown", cached=0),
}


@dataclass(frozen=True)
class Served:
    """A simulator and the dialect it speaks."""

    url: str
    dialect: str

    @property
    def expected(self) -> Expected:
        return DIALECTS[self.dialect]

    def tokens_sent(self, last: int) -> int:
        """Tokens that the last so many requests got, as the simulator counts them."""
        told = httpx.get(f"{self.url}/sim/stats", trust_env=False).json()["requests"]
        return sum(row["completion_tokens"] for row in told[-last:])


@pytest.fixture(scope="module")
def serve() -> Iterator[Callable[[str], Served]]:
    """A function that gives the simulator of a dialect; each is started once."""
    with ExitStack() as stack:

        @cache
        def started(dialect: str) -> Served:
            flags = ("--dialect", dialect, "--speed", "10", "--stream-interval", "4")
            return Served(stack.enter_context(simulator_process(*flags)).url, dialect)

        yield started


@pytest.fixture(params=DIALECTS)
def served(request: pytest.FixtureRequest, serve: Callable[[str], Served]) -> Served:
    return serve(request.param)


def run(
    served: Served,
    out: Path,
    *,
    endpoint: Literal["chat", "completions"] = "chat",
    engine: str = "auto",
    **request: Any,
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    return measure(
        served.url,
        out,
        target={"url": served.url, "endpoint": endpoint, "engine": engine},
        prompts={"source": "synthetic", "input_tokens": PROMPT, "output_tokens": ANSWER},
        request=request,
    )


@dataclass(frozen=True, kw_only=True)
class Plain:
    """One run of each dialect and endpoint, with nothing special asked for."""

    served: Served
    endpoint: str
    directory: Path
    manifest: dict[str, Any]
    records: list[dict[str, Any]]
    sent: int  # tokens, as the simulator counts them

    @property
    def expected(self) -> Expected:
        return self.served.expected


@pytest.fixture(scope="module")
def run_once(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Served, str], Plain]:
    """A function that gives the plain run against a simulator; each is made once."""

    @cache
    def made(served: Served, endpoint: Literal["chat", "completions"]) -> Plain:
        directory = tmp_path_factory.mktemp(served.dialect) / "run"
        manifest, records = run(served, directory, endpoint=endpoint)
        return Plain(
            served=served,
            endpoint=endpoint,
            directory=directory,
            manifest=manifest,
            records=records,
            sent=served.tokens_sent(len(records)),
        )

    return made


@pytest.fixture(params=["chat", "completions"])
def plain(
    served: Served, request: pytest.FixtureRequest, run_once: Callable[[Served, str], Plain]
) -> Plain:
    return run_once(served, request.param)


def flags(row: dict[str, Any]) -> tuple[str, ...]:
    """The flags of a record, but for one that tells of the machine: it read an answer at once."""
    return tuple(flag for flag in row.get("flags", ()) if flag != "buffered")


def test_each_dialect_is_recognised_and_all_its_answers_are_ok(plain: Plain) -> None:
    target, expected = plain.manifest["target"], plain.expected
    assert (target["engine"], target["engine_version"]) == (expected.engine, expected.version)
    assert [row["outcome"] for row in plain.records] == ["ok"] * 10
    assert all(flags(row) == expected.flags for row in plain.records)
    assert all(row["finish_reasons"] == ["length"] for row in plain.records)
    assert plain.manifest["warnings"] == []


def test_each_dialects_tokens_are_those_asked_for_and_sent(plain: Plain) -> None:
    records = plain.records
    assert {row["token_source"] for row in records} == {"reported"}
    assert {(row["reported_input"], row["reported_output"]) for row in records} == {
        (PROMPT, ANSWER)
    }
    assert {row.get("cached_input") for row in records} == {plain.expected.cached}
    assert plain.sent == ANSWER * len(records)


def test_a_chunks_tokens_are_known_where_a_total_runs_along(plain: Plain) -> None:
    records, sizes = plain.records, SIZES if plain.expected.sizes_known else None
    assert all(row["chunks"]["kind"] == "ccc" for row in records)
    assert all(row["chunks"].get("tokens") == sizes for row in records)
    assert {row.get("first_chunk_tokens") for row in records} == {sizes and 1}
    assert summarise_run(plain.directory).levels[0].tokens_per_chunk == ANSWER / len(SIZES)


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
def test_two_choices_are_told_apart_and_each_is_counted_once(
    served: Served, endpoint: Literal["chat", "completions"], tmp_path: Path
) -> None:
    _, records = run(served, tmp_path / "run", endpoint=endpoint, n=2)
    choices = 2 if served.expected.takes_n else 1
    assert [row["outcome"] for row in records] == ["ok"] * 10
    assert all(flags(row) == served.expected.flags for row in records)
    assert all(row["finish_reasons"] == ["length"] * choices for row in records)
    assert {row["reported_output"] for row in records} == {choices * ANSWER}
    # both choices answer the same prompt
    assert {row["reported_input"] for row in records} == {PROMPT}
    for row in records:
        assert_choices(row["chunks"], choices, sizes_known=served.expected.sizes_known)


def assert_choices(chunks: dict[str, Any], choices: int, *, sizes_known: bool) -> None:
    """Each choice came in three chunks, whose sizes are known or not at all."""
    of = chunks.get("choice", [0] * len(chunks["at_ns"]))
    assert sorted(of) == sorted(list(range(choices)) * len(SIZES))
    tokens = chunks.get("tokens")
    assert (tokens is not None) == sizes_known
    for choice in range(choices if tokens else 0):
        assert [n for n, own in zip(tokens, of, strict=True) if own == choice] == SIZES


@pytest.mark.parametrize("served", ["azure", "transformers"], indirect=True)
def test_an_engine_may_be_named_and_is_then_believed(served: Served, tmp_path: Path) -> None:
    manifest, records = run(served, tmp_path / "run", engine=served.dialect)
    assert manifest["target"]["engine"] == served.dialect
    assert [row["outcome"] for row in records] == ["ok"] * 10
    assert {row["reported_output"] for row in records} == {ANSWER}


@pytest.mark.parametrize("served", ["trtllm", "transformers"], indirect=True)
def test_a_field_that_a_strict_server_refuses_ends_the_run_before_any_load(
    served: Served, tmp_path: Path
) -> None:
    with pytest.raises(PreflightFailed, match=r"refuses a one-token request \(4..\).*made_up"):
        run(served, tmp_path / "run", made_up=1)
    assert not (tmp_path / "run").exists()
