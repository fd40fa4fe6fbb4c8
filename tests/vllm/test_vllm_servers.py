"""Two servers in one scenario: the tiny model at float32 and at bfloat16, speed and quality.

The golden set is what the float32 server answers when it is asked without chance: it must pass
its own, and half the bits answer some of them otherwise.
"""

import json
import urllib.request
from pathlib import Path
from typing import Any

import orjson
import pytest
from servers import free_port
from serving import MODEL, Vllm, scenario, written

pytestmark = pytest.mark.vllm

QUESTIONS = 24
GREEDY = {"temperature": 0, "ignore_eos": True}
TOKENS = 24


@pytest.fixture(scope="module")
def golden(served: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("golden") / "set.jsonl"
    rows = [
        {
            "id": f"q{number}",
            "prompt": (prompt := f"say what {number} foxes and {number * number} dogs do"),
            "expect": {"exact": answer(served, prompt)},
            "max_tokens": TOKENS,
            "request": GREEDY,
        }
        for number in range(QUESTIONS)
    ]
    file.write_bytes(b"\n".join(map(orjson.dumps, rows)) + b"\n")
    return file


def answer(url: str, prompt: str) -> str:
    asked = {
        "model": MODEL,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": TOKENS,
        **GREEDY,
    }
    request = urllib.request.Request(
        f"{url}/v1/chat/completions",
        data=json.dumps(asked).encode(),
        headers={"content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        return str(json.load(response)["choices"][0]["message"]["content"])


@pytest.fixture(scope="module")
def swept(vllm: Vllm, golden: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a sweep: each server is started in turn, and both have one port."""
    made = tmp_path_factory.mktemp("servers")
    url = f"http://127.0.0.1:{free_port()}"
    asked = scenario(
        url,
        servers={
            dtype: {"server": vllm.server(url, dtype=dtype), "conditions": {"weights": dtype}}
            for dtype in ("float32", "bfloat16")
        },
        levels=[{"concurrency": 1}, {"concurrency": 8}],
        each_level={"measure": "60 requests"},
        quality={"set": str(golden), "pass": True},
    )
    done = vllm.loadgen("run", str(written(made / "s.yaml", asked)), "--out", str(made / "sweep"))
    assert done.returncode == 0, done.stderr
    return made / "sweep"


def read(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = orjson.loads(file.read_bytes())
    return found


def test_each_server_is_started_in_turn_and_measured_alike(swept: Path) -> None:
    runs = [read(swept / name / "summary.json") for name in ("float32", "bfloat16")]
    manifests = [read(swept / name / "manifest.json") for name in ("float32", "bfloat16")]
    assert {run["status"] for run in runs} == {"complete"}
    assert len({run["seeds"]["nonce"] for run in manifests}) == 1
    for run in runs:
        assert [level["label"] for level in run["levels"]] == ["concurrency 1", "concurrency 8"]
        assert [level["outcomes"] for level in run["levels"]] == [{"ok": 60}, {"ok": 60}]


def test_half_the_bits_answer_some_questions_otherwise(swept: Path) -> None:
    full, half = (row["quality"] for row in read(swept / "comparison.json")["matrix"]["rows"])
    assert full["questions"] == half["questions"] >= QUESTIONS
    assert full["accuracy"] > 0.9  # its own answers; other batches round a little otherwise
    assert half["accuracy"] < full["accuracy"]


def test_one_matrix_of_speed_and_quality_stands_at_the_end(swept: Path) -> None:
    told = read(swept / "comparison.json")
    rows = told["matrix"]["rows"]
    assert [row["result"]["name"] for row in rows] == ["float32", "bfloat16"]
    assert {row["result"]["status"] for row in rows} == {"measured"}
    assert all(rate > 0 for row in rows for rate in row["output"])
    assert all(one["expected"] for one in told["mismatches"])
    words = {row["word"] for level in told["levels"] for row in level["rows"]}
    assert any("accuracy" in word for word in words), words
    page = (swept / "comparison.html").read_text()
    assert "bfloat16" in page
    assert (swept / "comparison.md").exists()
