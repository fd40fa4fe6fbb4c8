"""What a server's own pages tell of how it is set up; pure: a page in, conditions out.

A reader returns only what its page truly says; an "auto" that the engine has not resolved on that
page, a null that may mean "as the checkpoint says", is no answer. Readers are held against captured
pages (vLLM 0.32, llama.cpp b11434); SGLang's names are those of its ServerArgs (0.5).
Only the named keys are taken: such pages also hold keys and paths of the server.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import orjson

from loadgen.run.spelling import FULL, gguf_type, spelled

Told = dict[str, Any]
"""Conditions by the card's keys, each a plain value."""

ENGINE_VERSION = "engine_version"
SIMULATED = "simulated"
"""What the simulator says of itself; no other server does."""


def models_page(body: bytes, model: str) -> Told:
    """Read /v1/models: where the weights come from, the context, llama.cpp's sizes."""
    listed = _object(body).get("data")
    rows = [row for row in listed if isinstance(row, dict)] if isinstance(listed, list) else []
    row = next((row for row in rows if row.get("id") == model), rows[0] if len(rows) == 1 else {})
    meta = _inner(row, "meta")
    told: Told = {
        "model": row.get("root"),
        "max_model_len": row.get("max_model_len") or meta.get("n_ctx"),
        "parameters": meta.get("n_params"),
        "weight_bytes": meta.get("size"),
        **of_gguf(meta.get("ftype")),
    }
    if row.get(SIMULATED) is True:
        told["hardware"] = SIMULATED
    return _known(told)


def vllm_server_info(body: bytes) -> Told:
    """Read vLLM's /server_info?config_format=json, which it serves in development mode alone.

    All is as the engine resolved it, so that null is an answer: no quantisation, no speculation.
    """
    page = _object(body)
    config, env = _inner(page, "vllm_config"), _inner(page, "system_env")
    model, cache = _inner(config, "model_config"), _inner(config, "cache_config")
    spread = _inner(config, "parallel_config")
    told: Told = {
        "model": model.get("model"),
        "dtype": _dtype(model.get("dtype")),
        "quantisation": (model["quantization"] or "none") if "quantization" in model else None,
        "max_model_len": model.get("max_model_len"),
        "cuda_graphs": "off" if model.get("enforce_eager") is True else None,
        "kv_cache_dtype": _kv_dtype(cache.get("cache_dtype")),
        "kv_cache_tokens": cache.get("kv_cache_size_tokens"),
        "prefix_caching": switch(cache.get("enable_prefix_caching")),
        "tensor_parallel": spread.get("tensor_parallel_size"),
        "pipeline_parallel": _many(spread.get("pipeline_parallel_size")),
        "data_parallel": _many(spread.get("data_parallel_size")),
        "max_sequences": _inner(config, "scheduler_config").get("max_num_seqs"),
        **_hardware(env),
    }
    if "speculative_config" in config:
        told["speculative_decoding"] = speculation(config["speculative_config"])
    return _known(told)


def vllm_metrics(body: bytes) -> Told:
    """Read vLLM's /metrics: the labels of vllm:cache_config_info, and whether it drafts."""
    lines = body.decode("utf-8", "replace").splitlines()
    labels = _labels(line for line in lines if line.startswith("vllm:cache_config_info{"))
    tokens = _whole(labels.get("kv_cache_size_tokens"))
    if tokens is None:  # before 0.12 it tells blocks alone
        blocks, size = (_whole(labels.get(name)) for name in ("num_gpu_blocks", "block_size"))
        tokens = blocks * size if blocks and size else None
    told: Told = {
        "kv_cache_dtype": _kv_dtype(labels.get("cache_dtype")),
        "kv_cache_tokens": tokens,
        "prefix_caching": switch(labels.get("enable_prefix_caching")),
    }
    if any(line.startswith("vllm:spec_decode_") for line in lines):
        told["speculative_decoding"] = "on"
    return _known(told)


def sglang_server_info(body: bytes) -> Told:
    """Read SGLang's /server_info: its arguments as given, and what the scheduler made of them."""
    page = _object(body)
    states = page.get("internal_states")
    state = states[0] if isinstance(states, list) and states else {}
    state = state if isinstance(state, dict) else {}
    algorithm = page.get("speculative_algorithm")
    told: Told = {
        ENGINE_VERSION: page.get("version"),
        "model": page.get("model_path"),
        "dtype": _dtype(page.get("dtype")),
        "quantisation": page.get("quantization"),  # null: as the checkpoint says, which is not told
        "max_model_len": page.get("context_length"),
        "kv_cache_dtype": _kv_dtype(page.get("kv_cache_dtype")),
        "kv_cache_tokens": page.get("max_total_num_tokens"),
        "prefix_caching": switch(page.get("disable_radix_cache"), reverse=True),
        "tensor_parallel": page.get("tp_size"),
        "pipeline_parallel": _many(page.get("pp_size")),
        "data_parallel": _many(page.get("dp_size")),
        "max_sequences": page.get("max_running_requests")
        or state.get("effective_max_running_requests_per_dp"),
        "cuda_graphs": "off" if page.get("disable_cuda_graph") is True else None,
    }
    if "speculative_algorithm" in page:
        told["speculative_decoding"] = "off" if algorithm is None else str(algorithm)
    return _known(told)


def sglang_model_info(body: bytes) -> Told:
    """Read SGLang's /get_model_info: where the weights come from."""
    return _known({"model": _object(body).get("model_path")})


def llamacpp_props(body: bytes) -> Told:
    """Read llama.cpp's /props: its build, the file, its type, the context of each slot."""
    page = _object(body)
    defaults = _inner(page, "default_generation_settings")
    path = page.get("model_path")
    drafts = _inner(defaults, "params").get("speculative.types")
    by_name = gguf_type(path.rpartition("/")[2]) if isinstance(path, str) else None
    told: Told = {
        ENGINE_VERSION: page.get("build_info"),
        "model": path,
        "max_model_len": defaults.get("n_ctx"),
        "max_sequences": page.get("total_slots"),
        "speculative_decoding": {"none": "off"}.get(drafts, drafts) if drafts else None,
        **of_gguf(page.get("model_ftype") or by_name),
    }
    return _known(told)


PAGES: Mapping[str, tuple[tuple[str, Callable[[bytes], Told]], ...]] = {
    "vllm": (("/server_info?config_format=json", vllm_server_info), ("/metrics", vllm_metrics)),
    "sglang": (
        ("/server_info", sglang_server_info),
        ("/get_server_info", sglang_server_info),  # its older name
        ("/get_model_info", sglang_model_info),
    ),
    "llamacpp": (("/props", llamacpp_props),),
}
"""What is asked of each engine until one of its pages tells something; none generates anything.

TensorRT-LLM's /server_info tells of disaggregated serving alone, transformers has no such page.
"""


def switch(value: object, *, reverse: bool = False) -> str | None:
    """Return on or off for a truth, also as text; None for what is none."""
    truth = {"true": True, "false": False}.get(str(value).lower())
    return None if truth is None else ("on" if truth is not reverse else "off")


def speculation(config: object) -> str | None:
    """Say how tokens are drafted: "off" for null, else method, tokens and the draft's model."""
    if config is None:
        return "off"
    if not isinstance(config, Mapping):
        return None
    count = config.get("num_speculative_tokens")
    parts = [config.get("method"), f"{count} tokens" if count else None, config.get("model")]
    return ", ".join(str(part) for part in parts if part) or "on"


def of_gguf(ftype: object) -> Told:
    """Split a GGUF type: a full-precision one is a data type, any other a quantisation."""
    found = gguf_type(ftype) if isinstance(ftype, str) else None
    if found is None:
        return {}
    if spelled(found) in FULL:
        return {"dtype": spelled(found), "quantisation": "none"}
    return {"quantisation": found}


def _hardware(env: Mapping[str, Any]) -> Told:
    """Read what vLLM collected of its machine: GPUs as nvidia-smi lists them, else the CPU."""
    listed = env.get("nvidia_gpu_models")
    names = re.findall(r"GPU \d+: (.+)", listed) if isinstance(listed, str) else []
    if names:
        return {"gpu": counted(names), "driver": env.get("nvidia_driver_version")}
    cpu = env.get("cpu_info")
    model = re.search(r"Model name: +(.+)", cpu) if isinstance(cpu, str) else None
    count = re.search(r"(?m)^CPU\(s\): +(\d+)", cpu) if isinstance(cpu, str) else None
    if model is None or count is None or env.get("is_cuda_available") != "False":
        return {}
    return {"machine": f"{model[1].strip()}, {count[1]} CPUs"}


def counted(names: Iterable[str]) -> str:
    """Write devices as "2 × NVIDIA H100 80GB HBM3"; unlike ones in the order of their first."""
    each = [name.strip() for name in names]
    return ", ".join(f"{each.count(name)} × {name}" for name in dict.fromkeys(each))


def _known(told: Mapping[str, Any]) -> Told:
    """Leave out what was not said."""
    return {key: value for key, value in told.items() if value not in (None, "", [], {})}


def _dtype(value: object) -> str | None:
    """Return a data type as spelled here; None for "auto", which says nothing."""
    word = spelled(value) if isinstance(value, str) else ""
    return word if word not in ("", "auto", "none") else None


def _kv_dtype(value: object) -> str | None:
    """Return the KV cache's type; "auto" is one: that of the model."""
    return spelled(value) if isinstance(value, str) and value != "None" else None


def _many(value: object) -> int | None:
    return value if isinstance(value, int) and value > 1 else None


def _whole(value: object) -> int | None:
    return int(value) if isinstance(value, str) and value.isdigit() else None


def _labels(lines: Iterable[str]) -> Mapping[str, str]:
    from prometheus_client.parser import text_string_to_metric_families

    def found() -> Iterator[Mapping[str, str]]:
        for family in text_string_to_metric_families("\n".join([*lines, ""])):
            yield from (row.labels for row in family.samples)

    try:
        return next(found(), {})  # of several engines of one server the first
    except (ValueError, KeyError, IndexError):
        return {}


def _object(body: bytes) -> dict[str, Any]:
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        return {}
    return value if isinstance(value, dict) else {}


def _inner(outer: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = outer.get(key)
    return found if isinstance(found, Mapping) else {}
