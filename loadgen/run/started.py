"""How we started the server ourselves: what the words of its command say of its set-up; pure.

Only flags with a known meaning are read, each engine's own, and only their values are taken: a
key, a header or a path that stands beside them is seen by nobody.
"""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import orjson

from loadgen.run.spelling import spelled
from loadgen.run.told import Told, of_gguf, speculation

_SHARED = {
    "--model": "model",
    "--dtype": "dtype",
    "--quantization": "quantisation",
    "--kv-cache-dtype": "kv_cache_dtype",
    "--max-model-len": "max_model_len",
    "--tensor-parallel-size": "tensor_parallel",
    "--pipeline-parallel-size": "pipeline_parallel",
    "--data-parallel-size": "data_parallel",
    "--max-num-seqs": "max_sequences",
}
_FLAGS: Mapping[str, Mapping[str, str]] = {
    "vllm": {
        **_SHARED,
        "-q": "quantisation",
        "-tp": "tensor_parallel",
        "-pp": "pipeline_parallel",
        "-dp": "data_parallel",
        "--speculative-config": "speculative_decoding",
        "-sc": "speculative_decoding",
    },
    "sglang": {
        **_SHARED,
        "--model-path": "model",
        "--context-length": "max_model_len",
        "--tp": "tensor_parallel",
        "--tp-size": "tensor_parallel",
        "--pp-size": "pipeline_parallel",
        "--dp": "data_parallel",
        "--dp-size": "data_parallel",
        "--max-running-requests": "max_sequences",
        "--speculative-algorithm": "speculative_decoding",
    },
    "trtllm": {
        "--tp-size": "tensor_parallel",
        "--pp-size": "pipeline_parallel",
        "--max-seq-len": "max_model_len",
        "--max-batch-size": "max_sequences",
        "--kv-cache-dtype": "kv_cache_dtype",
    },
    "llamacpp": {
        "-m": "model",
        "--model": "model",
        "-hf": "model",
        "-hfr": "model",
        "--hf-repo": "model",
        "-c": "context",
        "--ctx-size": "context",
        "-np": "max_sequences",
        "--parallel": "max_sequences",
        "-ctk": "cache_k",
        "--cache-type-k": "cache_k",
        "-ctv": "cache_v",
        "--cache-type-v": "cache_v",
        "-md": "speculative_decoding",
        "--model-draft": "speculative_decoding",
    },
    "transformers": {
        "--dtype": "dtype",
        "--torch-dtype": "dtype",
        "--quantization": "quantisation",
    },
}
_SWITCHES: Mapping[str, tuple[str, str]] = {
    "--enable-prefix-caching": ("prefix_caching", "on"),
    "--no-enable-prefix-caching": ("prefix_caching", "off"),
    "--disable-radix-cache": ("prefix_caching", "off"),
    "--enforce-eager": ("cuda_graphs", "off"),
    "--disable-cuda-graph": ("cuda_graphs", "off"),
}
_PROGRAMS = (
    ("sglang", "sglang"),
    ("trtllm", "trtllm"),
    ("llama", "llamacpp"),
    ("transformers", "transformers"),
    ("vllm", "vllm"),
)
_NUMBERS = ("max_model_len", "context", "max_sequences", "tensor_parallel", "pipeline_parallel",
            "data_parallel")  # fmt: skip
_SERVES = ("serve", "trtllm-serve")
"""Words after which the model stands by itself."""


def of_command(words: Sequence[str], engine: str) -> Told:
    """Return what a command says; engine: whose flags they are, "unknown" to go by the program."""
    words = _unwrapped(words)
    name = engine if engine in _FLAGS else _program(words)
    if name is None:
        return {}
    said: Told = {}
    if (model := _positional(words, name)) is not None:
        said["model"] = model
    for key, value in _pairs(words, _FLAGS[name]):
        if (read := _value(key, value)) is not None:
            said[key] = read
    for word in words:
        if word in _SWITCHES:
            key, switch = _SWITCHES[word]
            said[key] = switch
    return _of_llamacpp(said) if name == "llamacpp" else said


def of_service(rendered: Mapping[str, str], engine: str) -> Told:
    """Return what a compose service says: its image, and its command after its entrypoint."""
    told: Told = {"image": rendered["image"]} if "image" in rendered else {}
    line = f"{rendered.get('entrypoint', '')} {rendered.get('command', '')}"
    try:
        return told | of_command(shlex.split(line), engine)
    except ValueError:  # a quote that a variable left open
        return told


def visible_gpus(assignments: Sequence[str], environ: Mapping[str, str]) -> str | None:
    """Return CUDA_VISIBLE_DEVICES as a server gets it: of its own NAME=value, else of ours."""
    own = [text.partition("=")[2] for text in assignments if text.startswith(_VISIBLE)]
    return own[-1] if own else environ.get(_VISIBLE.rstrip("="))


_VISIBLE = "CUDA_VISIBLE_DEVICES="


def _unwrapped(words: Sequence[str]) -> list[str]:
    """Return the words inside ``sh -c '…'``, with those that it is given (``$0``, ``$@``)."""
    made = list(words)
    if len(made) > 2 and made[0].rpartition("/")[2] in ("sh", "bash") and made[1] in ("-c", "-lc"):
        try:
            made = [*shlex.split(made[2]), *made[3:]]
        except ValueError:
            return []
    return made


def _program(words: Sequence[str]) -> str | None:
    """Return the engine whose program or module stands among the first words."""
    for word in words[:8]:
        name = word.rpartition("/")[2].lower()
        for sign, engine in _PROGRAMS:
            if sign in name:
                return engine
    return None


def _positional(words: Sequence[str], engine: str) -> str | None:
    """Return the model of ``vllm serve MODEL`` and its like."""
    if engine not in ("vllm", "trtllm", "transformers", "sglang"):
        return None
    for before, word in pairwise(words):
        if before.rpartition("/")[2] in _SERVES and word not in _SERVES:
            return None if word.startswith("-") else word
    return None


def _pairs(words: Sequence[str], flags: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield (condition, value) of each known flag, ``--flag value`` or ``--flag=value``."""
    for word, following in zip(words, [*words[1:], ""], strict=True):
        flag, equals, inline = word.partition("=")
        if flag.startswith("--"):
            flag = flag.replace("_", "-")
        if flag in flags:
            value = inline if equals else following
            if value and not (value.startswith("-") and not equals):
                yield flags[flag], value


def _value(key: str, text: str) -> Any:  # noqa: ANN401 - a number, or a word
    """Return a flag's value in the card's terms; None for "auto" and what is not understood."""
    if key in _NUMBERS:
        return int(text) if text.isdigit() and int(text) > 0 else None
    match key:
        case "dtype":
            return spelled(text) if text != "auto" else None
        case "kv_cache_dtype" | "cache_k" | "cache_v":
            return spelled(text)
        case "speculative_decoding":
            return _speculation(text)
    return text


def _speculation(text: str) -> str | None:
    try:
        config = orjson.loads(text)
    except orjson.JSONDecodeError:
        return text
    return speculation(config)


def _of_llamacpp(said: Told) -> Told:
    """Put llama.cpp's words in order: a context for all slots, one type for keys and for values."""
    told = dict(said)
    whole, slots = told.pop("context", None), told.get("max_sequences")
    keys, values = told.pop("cache_k", None), told.pop("cache_v", None)
    if whole and slots:
        told["max_model_len"] = whole // slots
    if keys or values:
        one, other = keys or "float16", values or "float16"
        told["kv_cache_dtype"] = one if one == other else f"{one} keys, {other} values"
    return {**of_gguf(told.get("model")), **told}
