"""A measurement held against what the simulator says it really did.

The simulator stamps each chunk just before its write, and each request as it arrives; both on the
clock this process reads, too.
"""

from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from drive import loadgen, read, strict_json

from loadgen.simulator.process import simulator_process


def truth_of(url: str) -> list[dict[str, Any]]:
    return httpx.get(f"{url}/sim/stats?chunks=1", trust_env=False).json()["requests"]


def p50_ms(values: list[float]) -> float:
    return float(np.percentile(values, 50)) / 1e6


@pytest.mark.parametrize("concurrency", [pytest.param(1, marks=pytest.mark.slow), 8])
def test_ttft_and_itl_agree_with_the_servers_own_send_times(
    concurrency: int, tmp_path: Path
) -> None:
    with simulator_process() as simulator:
        done = loadgen("run", "--url", simulator.url, "-c", str(concurrency), "--requests", "24",
                       "--input-tokens", "64", "--output-tokens", "16",
                       "--out", str(tmp_path / "run"))  # fmt: skip
        truth = [row for row in truth_of(simulator.url) if len(row["sent_ns"]) == 16]
    assert done.returncode == 0, done.stderr
    manifest, records = read(tmp_path / "run")
    assert len(truth) == len(records)
    level = strict_json((tmp_path / "run" / "summary.json").read_text())["levels"][0]
    # requests reach the server in the order they are sent, over loopback
    truth.sort(key=lambda row: row["arrived_ns"])
    records.sort(key=lambda row: row["sent_ns"])
    pairs = zip(records, truth, strict=True)
    measured = [pair for pair in pairs if pair[0]["phase"] == "measure"]
    assert len(measured) == 24
    # Of eight requests that come together the server reads the last one later than the first;
    # that wait is its own, so a request counts from its send.
    epoch = manifest["epoch_monotonic_ns"]
    sent = [record["sent_ns"] + epoch for record, _ in measured]
    assert all(at <= row["read_ns"] for at, (_, row) in zip(sent, measured, strict=True))
    first = [row["sent_ns"][0] - at for at, (_, row) in zip(sent, measured, strict=True)]
    ttft = p50_ms(first)
    itl = p50_ms([gap for _, row in measured for gap in np.diff(row["sent_ns"])])
    assert level["ttft"]["p50"]["value"] == pytest.approx(ttft, rel=0.02, abs=0.5)
    assert level["itl"]["p50"]["value"] == pytest.approx(itl, rel=0.02, abs=0.5)


@pytest.mark.slow
def test_every_token_the_server_sent_is_stamped_and_counted(tmp_path: Path) -> None:
    with simulator_process() as simulator:
        done = loadgen("run", "--url", simulator.url, "-c", "4", "--requests", "20",
                       "--input-tokens", "32", "--output-tokens", "12",
                       "--out", str(tmp_path / "run"))  # fmt: skip
        truth = [row for row in truth_of(simulator.url) if len(row["sent_ns"]) > 1]
    assert done.returncode == 0, done.stderr
    _, records = read(tmp_path / "run")
    assert sum(len(row["sent_ns"]) for row in truth) == 12 * len(records)
    assert all(len(row["chunks"]["at_ns"]) == 12 for row in records)
    assert all(row["reported_output"] == 12 for row in records)
    assert all(min(row["chunks"]["at_ns"]) >= 0 for row in records)
