"""The model of an inference engine: a queue, prefill, continuous batching, a KV limit.

Pure and in virtual time: it draws from its seed, reads no clock and touches no socket. Time goes
in as ``now_ns`` and comes out as the end of each step, on an absolute schedule: a caller that is
late gets the same ends as one that is on time.

One step serves every running sequence, as a batched engine does:

    duration = (base + per_sequence · decoding + per_context_token · context + prefill / rate)
               · noise · drift / speed

``decoding`` sequences give one token each, ``context`` is the sum of their tokens so far, and
``prefill`` is the number of prompt tokens taken into this step: what the token budget leaves
after decoding, dealt to unfinished prompts in order of arrival (chunked prefill). A sequence
whose prompt is finished gives its first token at the end of that same step.

Admission is first come, first served. A sequence is admitted when one of ``max_running`` places
is free and its whole need, prompt plus output, fits into ``kv_tokens``; it keeps that until it
ends, so nothing is ever preempted, and a long one at the head holds back those behind it.
"""

from collections import OrderedDict, deque
from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

NS_PER_S = 1_000_000_000
BLOCK_TOKENS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec:
    """What the engine can do. Durations are seconds at ``speed`` 1."""

    prefill_tokens_per_s: float = 16_000.0
    step_base_s: float = 0.008
    step_per_sequence_s: float = 0.000_15
    step_per_context_token_s: float = 20e-9
    step_tokens: int = 512  # the token budget of a step: decoding sequences plus prompt tokens
    max_running: int = 16
    kv_tokens: int = 131_072
    prefix_cache_tokens: int = 65_536  # 0 switches it off
    noise: float = 0.0  # sigma of a lognormal factor with mean 1 on each step
    drift_per_min: float = 0.0  # a step lasts (1 + drift · minutes since the first request) longer
    cold_start_s: float = 0.0  # how much longer the first step lasts that serves more than probes
    speed: float = 1.0  # divides every duration


@dataclass(slots=True, eq=False, kw_only=True)
class Sequence:
    """One choice of one request; the engine fills in the lower half."""

    key: int
    prompt_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] = ()
    arrived_ns: int = 0
    admitted_ns: int = 0
    cached_tokens: int = 0
    prefilled: int = 0
    emitted: int = 0
    ended: bool = False

    @property
    def need(self) -> int:
        """KV tokens it holds from admission to its end."""
        return self.prompt_tokens + self.output_tokens


class Emission(NamedTuple):
    """One token of one sequence: its number from 0, and whether it is the last."""

    key: int
    number: int
    last: bool


class Step(NamedTuple):
    """A finished step: when it was due to end and the tokens it gave, in order of admission."""

    end_ns: int
    emissions: list[Emission]


def block_hashes(words: Items[object]) -> tuple[int, ...]:
    """Hash each full block of ``BLOCK_TOKENS`` words together with all that stands before it."""
    hashes: list[int] = []
    chain = 0
    for start in range(0, len(words) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
        chain = hash((chain, *words[start : start + BLOCK_TOKENS]))
        hashes.append(chain)
    return tuple(hashes)


class PrefixCache:
    """The most recently used prompt blocks, up to a number of tokens."""

    def __init__(self, tokens: int) -> None:
        self._capacity = tokens // BLOCK_TOKENS
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def match(self, blocks: tuple[int, ...]) -> int:
        """Return how many leading tokens are held, and mark their blocks as just used."""
        held = 0
        for block in blocks:
            if block not in self._blocks:
                break
            self._blocks.move_to_end(block)
            held += 1
        return held * BLOCK_TOKENS

    def store(self, blocks: tuple[int, ...]) -> None:
        """Hold these blocks; the least recently used ones make room."""
        for block in blocks:
            self._blocks[block] = None
            self._blocks.move_to_end(block)
        while len(self._blocks) > self._capacity:
            self._blocks.popitem(last=False)


class Engine:
    """Sequences in, steps out; see the head of this file for the model."""

    def __init__(self, spec: EngineSpec, *, seed: int = 0) -> None:
        self._spec = spec
        self._rng = np.random.default_rng(seed)
        self._cache = PrefixCache(spec.prefix_cache_tokens)
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []
        self._decoding: list[Sequence] = []
        self._prefilling: list[tuple[Sequence, int]] = []
        self._end_ns: int | None = None
        self._free_ns = 0  # when the last step ended
        self._first_ns: int | None = None
        self._cold = spec.cold_start_s > 0
        self.kv_held = 0
        self.prefix_queries = 0
        self.prefix_hits = 0

    @property
    def running(self) -> int:
        """Sequences that hold a place in the batch."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Sequences in the queue."""
        return len(self._waiting)

    def submit(self, sequence: Sequence, *, now_ns: int) -> None:
        """Queue a sequence. ValueError where it could never fit into the KV tokens."""
        if sequence.need > self._spec.kv_tokens:
            raise ValueError(f"{sequence.need} tokens do not fit into {self._spec.kv_tokens}")
        sequence.arrived_ns = now_ns
        self._first_ns = now_ns if self._first_ns is None else self._first_ns
        self._waiting.append(sequence)
        if self._end_ns is None:
            self._begin(now_ns)

    def cancel(self, sequence: Sequence) -> None:
        """Take a sequence out; a step that already began still lasts as long as planned."""
        if sequence.ended:
            return
        sequence.ended = True
        if sequence in self._running:
            self._release(sequence)
        else:
            self._waiting.remove(sequence)

    def next_event_ns(self) -> int | None:
        """When the step in progress ends; None while there is nothing to do."""
        return self._end_ns

    def step(self, now_ns: int) -> Step | None:
        """Finish the step in progress if it is due by ``now_ns`` and begin the next one."""
        end_ns = self._end_ns
        if end_ns is None or end_ns > now_ns:
            return None
        emissions = self._finish()
        self._free_ns = end_ns
        self._begin(end_ns)
        return Step(end_ns, emissions)

    def _begin(self, start_ns: int) -> None:
        start_ns = max(start_ns, self._free_ns)
        if not self._running and self._waiting:
            start_ns = max(start_ns, self._waiting[0].arrived_ns)
        self._admit(start_ns)
        if not self._running:
            self._end_ns = None
            return
        self._decoding = [one for one in self._running if one.prefilled >= one.prompt_tokens]
        self._prefilling = self._share_budget()
        self._end_ns = start_ns + self._duration_ns(start_ns)

    def _admit(self, now_ns: int) -> None:
        spec = self._spec
        while self._waiting and len(self._running) < spec.max_running:
            first = self._waiting[0]
            if first.arrived_ns > now_ns or self.kv_held + first.need > spec.kv_tokens:
                return
            self._waiting.popleft()
            self._running.append(first)
            first.admitted_ns = now_ns
            self.kv_held += first.need
            # The last prompt token is always computed: its output is the first token.
            first.cached_tokens = min(self._cache.match(first.blocks), first.prompt_tokens - 1)
            first.prefilled = first.cached_tokens
            self.prefix_queries += first.prompt_tokens
            self.prefix_hits += first.cached_tokens

    def _share_budget(self) -> list[tuple[Sequence, int]]:
        budget = max(1, self._spec.step_tokens - len(self._decoding))
        shares: list[tuple[Sequence, int]] = []
        for one in self._running:
            missing = one.prompt_tokens - one.prefilled
            if missing > 0 and budget > 0:
                shares.append((one, min(missing, budget)))
                budget -= min(missing, budget)
        return shares

    def _duration_ns(self, start_ns: int) -> int:
        spec = self._spec
        context = sum(one.prompt_tokens + one.emitted for one in self._decoding)
        prefill = sum(tokens for _, tokens in self._prefilling)
        seconds = (
            spec.step_base_s
            + spec.step_per_sequence_s * len(self._decoding)
            + spec.step_per_context_token_s * context
            + prefill / spec.prefill_tokens_per_s
        )
        if spec.noise:
            seconds *= float(self._rng.lognormal(-(spec.noise**2) / 2, spec.noise))
        if spec.drift_per_min and self._first_ns is not None:
            seconds *= 1 + spec.drift_per_min * (start_ns - self._first_ns) / (60 * NS_PER_S)
        # A request for one token is a client's probe: it does not take the cold start away.
        if self._cold and any(one.output_tokens > 1 for one in self._running):
            self._cold = False
            seconds += spec.cold_start_s
        return max(1, round(seconds / spec.speed * NS_PER_S))

    def _finish(self) -> list[Emission]:
        for one, tokens in self._prefilling:
            one.prefilled += tokens
            if one.prefilled >= one.prompt_tokens:
                self._cache.store(one.blocks)
                self._decoding.append(one)
        emissions: list[Emission] = []
        for one in self._decoding:
            if one.ended:
                continue
            last = one.emitted + 1 >= one.output_tokens
            emissions.append(Emission(one.key, one.emitted, last))
            one.emitted += 1
            if last:
                one.ended = True
                self._release(one)
        return emissions

    def _release(self, sequence: Sequence) -> None:
        self._running.remove(sequence)
        self.kv_held -= sequence.need
