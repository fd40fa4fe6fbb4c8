"""Prompts of exact length on real tokenizers, and what the report says where they cannot be.

The same tiny model three times: with all words of the list in its vocabulary (one token each, as
in large models), with some of them, and with hardly any.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from drive import loadgen
from installs import ROOT, VOCABULARIES, interpreter, packages_of
from load import Measured, run
from serve import Asked, Out, content, finish, scripted
from servers import HERE, Serve, Server, transformers_serve

pytestmark = pytest.mark.real

UNIFORM = "prompts.input_tokens={distribution: uniform, min: 16, max: 1500}"
FLAGS = ("-c", "4", "--requests", "200", "--warmup", "4 requests", "--output-tokens", "2",
         "--set", UNIFORM)  # fmt: skip


@pytest.fixture(scope="module")
def transformers_with_words(
    transformers_python: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    made = tmp_path_factory.mktemp("words")
    script, model = str(HERE / "make_tiny_model.py"), made / "tiny-words"
    line = [str(transformers_python), script, "tiny-words", "--hf", str(model)]
    subprocess.run(line, check=True, timeout=60)
    with transformers_serve(transformers_python, model, made / "serve.log") as server:
        yield server


def off_by(found: Measured) -> list[int]:
    return [record["reported_input"] - record["asked_input"] for record in found.records]


def lengths_are_exact(found: Measured, how: str, server: Server) -> None:
    assert found.status == 0, server.last_words()
    assert found.outcomes == {("ok", None)}
    assert found.manifest["prompts"]["calibration"] == how
    assert len(found.records) == 204
    assert set(off_by(found)) == {0}
    asked = [record["asked_input"] for record in found.records]
    assert min(asked) < 60
    assert max(asked) > 1450
    level = found.summary["levels"][0]
    assert level["input_tokens"]["mean"] == pytest.approx(level["asked_input_mean"])


def test_where_words_are_tokens_every_prompt_of_llamacpp_is_exact(
    serve_llamacpp: Serve, tmp_path: Path
) -> None:
    with serve_llamacpp("tiny-words") as server:
        lengths_are_exact(run(server, tmp_path / "run", *FLAGS), "linear", server)


def test_where_words_are_tokens_every_prompt_of_transformers_is_exact(
    transformers_with_words: Server, tmp_path: Path
) -> None:
    found = run(transformers_with_words, tmp_path / "run", *FLAGS)
    lengths_are_exact(found, "linear", transformers_with_words)


def test_the_words_a_server_has_are_found_by_its_own_tokenizer_and_then_exact(
    serve_llamacpp: Serve, tmp_path: Path
) -> None:
    with serve_llamacpp("tiny-some-words") as server:
        found = run(server, tmp_path / "run", *FLAGS)
        lengths_are_exact(found, "filtered", server)
    assert 600 <= found.manifest["prompts"]["words"] < 2000


@pytest.mark.parametrize(
    "flags",
    [
        ("--endpoint", "completions"),
        ("--set", "prompts.shared_prefix_tokens=12"),
        ("--turns", "3", "--set", "prompts.history=recorded", "--set", "prompts.input_tokens=40"),
    ],
    ids=["without-a-template", "with-a-shared-prefix", "over-three-turns"],
)
def test_other_shapes_are_exact_too(
    flags: tuple[str, ...], serve_llamacpp: Serve, tmp_path: Path
) -> None:
    lengths = ("--input-tokens", "300±100", "--output-tokens", "6")
    with serve_llamacpp("tiny-words") as server:
        found = run(server, tmp_path / "run", "-c", "4", "--requests", "60", *lengths, *flags)
        assert found.status == 0, server.last_words()
    assert found.manifest["prompts"]["calibration"] == "linear"
    assert set(off_by(found)) == {0}


def lengths_are_told(found: Measured, server: Server) -> None:
    """Words of several tokens: the mean comes out, single prompts do not, and all of it is said."""
    assert found.status == 0, server.last_words()
    assert found.manifest["prompts"]["calibration"] == "scaled"
    assert "prompt lengths are approximate" in found.err
    assert "prompt lengths are approximate" in found.out
    level = found.summary["levels"][0]
    assert level["input_tokens"]["mean"] == pytest.approx(level["asked_input_mean"], rel=0.03)
    assert sum(off == 0 for off in off_by(found)) < 0.5 * len(found.records)
    assert level["input_tokens"]["min"] < 80
    assert level["input_tokens"]["max"] > 1300


def test_where_words_are_not_tokens_llamacpp_is_scaled_and_told(
    serve_llamacpp: Serve, tmp_path: Path
) -> None:
    with serve_llamacpp("tiny") as server:
        lengths_are_told(run(server, tmp_path / "run", *FLAGS), server)


def test_where_words_are_not_tokens_transformers_is_scaled_and_told(
    transformers: Server, tmp_path: Path
) -> None:
    lengths_are_told(run(transformers, tmp_path / "run", *FLAGS), transformers)


# --- vocabularies that a package brings along

TEXT = "The server's first token, in 42 ms — naïve? 東京 and \U0001f680 say no."
OURS = """
import sys
from loadgen.workload.synthetic import universal_words
from loadgen.workload.tokens import counter
name, text = sys.argv[1:]
found = counter(name)
words = list(universal_words())
print(found.count(text), found.count(" ".join(words)), len(words))
"""
ITS_OWN = """
import json, sys
import tiktoken
name, text = sys.argv[1:]
found = tiktoken.get_encoding(name)
words = json.load(open("loadgen/workload/words.json"))
print(len(found.encode(text)), len(found.encode(" ".join(words))), len(words))
"""
UNREACHABLE = {"HTTP_PROXY": "http://127.0.0.1:9", "HTTPS_PROXY": "http://127.0.0.1:9"}


@pytest.fixture(scope="module")
def bundled() -> Path:
    """Where the package lies; it is not installed for us, only found."""
    interpreter(VOCABULARIES)
    return packages_of(VOCABULARIES)


def counted(script: str, name: str, **env: str) -> "subprocess.CompletedProcess[str]":
    clean = {key: value for key, value in os.environ.items() if "TIKTOKEN" not in key}
    return subprocess.run(
        [sys.executable, "-c", script, name, TEXT],
        cwd=ROOT,
        env={**clean, **UNREACHABLE, **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(("name", "tokens"), [("cl100k_base", 24), ("o200k_base", 21)])
def test_a_vocabulary_found_in_a_package_counts_as_tiktoken_does(
    name: str, tokens: int, bundled: Path, tmp_path: Path
) -> None:
    files = str(bundled / "llama_index" / "core" / "_static" / "tiktoken_cache")
    ours = counted(OURS, name, PYTHONPATH=str(bundled), TMPDIR=str(tmp_path))
    its_own = counted(ITS_OWN, name, TIKTOKEN_CACHE_DIR=files, TMPDIR=str(tmp_path))
    assert ours.stdout.split() == [str(tokens), "2818", "2818"], ours.stderr
    assert its_own.stdout == ours.stdout, its_own.stderr
    assert list(tmp_path.iterdir()) == []  # nothing was fetched, nothing kept


def test_without_it_the_fix_is_named_and_nothing_is_fetched(tmp_path: Path) -> None:
    done = counted(OURS, "o200k_base", TMPDIR=str(tmp_path))
    assert "the file of o200k_base is not on this machine" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_answers_without_usage_are_counted_by_the_named_vocabulary(
    bundled: Path, tmp_path: Path
) -> None:
    async def script(asked: Asked, out: Out) -> None:
        await out.head()
        for part in ("The ser", "ver answ", "ers."):
            await out.send(content(part))
        await out.send(finish())
        await out.send(b"data: [DONE]\n\n")
        await out.end()

    with scripted(script) as server:
        done = loadgen("run", "--url", server.url, "-c", "1", "--requests", "4",
                       "--input-tokens", "8", "--output-tokens", "9",
                       "--set", "target.tokenizer=cl100k_base", "--out", str(tmp_path / "run"),
                       env={**UNREACHABLE, "NO_PROXY": "127.0.0.1", "PYTHONPATH": str(bundled)},
                       )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = (tmp_path / "run" / "requests.jsonl").read_text().splitlines()
    assert all('"counted_output":4' in line for line in lines)
    assert all('"token_source":"counted"' in line for line in lines)
