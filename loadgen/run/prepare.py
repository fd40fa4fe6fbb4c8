"""Between the preflight and the load: how prompts get the length they were asked for.

Universal words are one token each, in every tokenizer they were tried with; what a chat template
adds is found by probes of the run's own shape: usage.prompt_tokens(n words) − n for several n. If
that is the same for all, the relation is linear and prompts are exact. Every response is held
against it afterwards, in the report.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import httpx

from loadgen.run.calibrate import Calibration, calibrate
from loadgen.run.conditions import found_conditions
from loadgen.run.headers import Credentials
from loadgen.run.preflight import Found, Preflight
from loadgen.run.session import limits_of
from loadgen.scenario.model import Scenario
from loadgen.workload.prompts import PromptSource, prompt_source
from loadgen.workload.replay.follow import made_of_words, natural_answers
from loadgen.workload.synthetic import Overhead
from loadgen.workload.tokens import counter_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """All that is known before the first level.

    conditions: what was found by asking, as the manifest keeps it.
    """

    found: Found
    source: PromptSource
    calibration: Calibration
    count_tokens: Callable[[str], int] | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    conditions: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def for_workers(self, nonce: str) -> dict[str, Any]:
        """Return what another process needs to make the same requests."""
        return {
            "nonce": nonce,
            "model": self.found.model,
            "engine": self.found.engine.name,
            "chat_limit": self.found.engine.chat_limit,
            "peers": self.found.peers,
            "overhead": _plain(self.calibration.overhead),
        }


async def prepare(
    scenario: Scenario,
    *,
    transport: httpx.AsyncBaseTransport,
    credentials: Credentials,
    nonce: str,
) -> Prepared:
    """Ask the server, calibrate the prompts, and open their source."""
    preflight = Preflight(
        scenario, transport=transport, credentials=credentials, limits=limits_of(scenario)
    )
    found = await preflight.run()
    conditions = await found_conditions(scenario, preflight, found, secrets=credentials.secrets)
    found = replace(found, engine_version=found.engine_version or conditions.engine_version)
    calibration = await _calibrated(scenario, preflight, found)
    source = prompt_source(scenario, nonce=nonce, overhead=calibration.overhead)
    return Prepared(
        found=found,
        source=source,
        calibration=calibration,
        count_tokens=tokenizer.count if (tokenizer := counter_of(scenario)) else None,
        facts={
            **source.facts(),
            "calibration": calibration.how,
            "probes": calibration.probes,
        },
        conditions=conditions.plain(),
        notes=[
            *found.notes,
            *conditions.against(scenario.conditions),
            *([calibration.note] if calibration.note else []),
            *natural_answers(scenario),
        ],
    )


async def _calibrated(scenario: Scenario, preflight: Preflight, found: Found) -> Calibration:
    """Calibrate where prompts are made of words of ours and the server answered the preflight."""
    if not made_of_words(scenario) or found.probe["outcome"] != "ok":
        return Calibration(how="none", overhead=Overhead(), probes=[])
    return await calibrate(
        preflight.asker(found),
        preflight.splitter(found),
        chat=scenario.target.endpoint == "chat",
        turns=scenario.conversational,
    )


def _plain(overhead: Overhead) -> dict[str, Any]:
    words = overhead.words
    return {**asdict(overhead), "words": sorted(words) if words is not None else None}
