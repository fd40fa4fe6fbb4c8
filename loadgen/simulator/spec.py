"""What one simulator is: its engine, its dialect, how it fails."""

from dataclasses import dataclass, field
from pathlib import Path

from loadgen.simulator.engine import EngineSpec
from loadgen.simulator.faults import Fault


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatorSpec:
    """Everything a simulator is told; times in seconds."""

    engine: EngineSpec = field(default_factory=EngineSpec)
    dialect: str = "vllm"
    model: str = "sim"
    seed: int = 0
    max_context: int = 32_768
    template_tokens: int = 8  # what the chat template adds to each prompt
    natural_tokens: float = 128.0  # mean length of an answer that no maximum was asked for
    stream_interval: int = 1  # tokens per chunk after the first one
    report_cached: bool = False  # vllm and sglang name cached tokens only when told to
    faults: tuple[Fault, ...] = ()
    fault_probes: bool = False  # requests for a single token are spared unless this is set
    slow_connect_s: float = 2.0
    garble: float = 0.0  # share of answers that are nonsense
    api_key: str | None = field(default=None, repr=False)
    tls: tuple[Path, Path] | None = None  # certificate chain, private key
    close_after: int | None = None  # requests after which a connection is closed, unannounced
    idle_close_s: float | None = None

    @property
    def context_limit(self) -> int:
        """Tokens of prompt and answer together; never more than the KV tokens can hold."""
        return min(self.max_context, self.engine.kv_tokens)
