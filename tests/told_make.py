"""Pages on which servers tell how they are set up, for the tests of what is found by asking."""

import json
from typing import Any

from wire_cases import WIRE

SECRET = "sk-live-51f0c2"


def captured(name: str) -> bytes:
    """The body of a captured answer, out of its chunks where it came in some."""
    head, _, body = (WIRE / f"{name}.txt").read_bytes().partition(b"\r\n\r\n")
    if b"transfer-encoding: chunked" not in head.lower():
        return body
    whole = b""
    while (size := int(body.partition(b"\r\n")[0], 16)) > 0:
        start = body.index(b"\r\n") + 2
        whole, body = whole + body[start : start + size], body[start + size + 2 :]
    return whole


# vLLM 0.32.0 on the CPU with VLLM_SERVER_DEV_MODE=1, captured: the keys that are read, and some
VLLM_CPU: dict[str, Any] = {
    "vllm_config": {
        "model_config": {
            "model": "/srv/models/tiny",
            "tokenizer": "/srv/models/tiny",
            "dtype": "torch.float32",
            "seed": 0,
            "max_model_len": 2048,
            "quantization": None,
            "enforce_eager": True,
            "served_model_name": "tiny",
            "hf_token": None,
        },
        "cache_config": {
            "block_size": 128,
            "gpu_memory_utilization": 0.92,
            "cache_dtype": "auto",
            "enable_prefix_caching": True,
            "num_gpu_blocks": 8192,
            "kv_cache_size_tokens": 1048576,
        },
        "parallel_config": {
            "pipeline_parallel_size": 1,
            "tensor_parallel_size": 1,
            "data_parallel_size": 1,
        },
        "scheduler_config": {"max_num_seqs": 16, "max_num_batched_tokens": 2048},
        "speculative_config": None,
    },
    "vllm_env": {"VLLM_HOST_IP": "127.0.0.1"},
    "system_env": {
        "is_cuda_available": "False",
        "nvidia_driver_version": None,
        "nvidia_gpu_models": None,
        "cpu_info": "Architecture:                            x86_64\n"
        "CPU(s):                                  2\n"
        "On-line CPU(s) list:                     0,1\n"
        "Model name:                              AMD EPYC\n",
    },
}

# the same keys as a GPU host fills them
VLLM_GPUS: dict[str, Any] = {
    "vllm_config": {
        "model_config": {
            "model": "hugging-quants/Meta-Llama-3.1-70B-Instruct-AWQ-INT4",
            "dtype": "torch.float16",
            "max_model_len": 32768,
            "quantization": "awq_marlin",
            "enforce_eager": False,
        },
        "cache_config": {"cache_dtype": "fp8_e4m3", "enable_prefix_caching": False},
        "parallel_config": {"tensor_parallel_size": 2, "data_parallel_size": 1},
        "scheduler_config": {"max_num_seqs": 256},
        "speculative_config": {"method": "ngram", "num_speculative_tokens": 5, "model": None},
    },
    "system_env": {
        "is_cuda_available": "True",
        "nvidia_driver_version": "570.86.15",
        "nvidia_gpu_models": "GPU 0: NVIDIA H100 80GB HBM3\nGPU 1: NVIDIA H100 80GB HBM3",
        "cpu_info": "CPU(s):                                  96\n",
    },
}

# SGLang: ServerArgs, the scheduler's facts and the version, in one object
SGLANG: dict[str, Any] = {
    "model_path": "Qwen/Qwen3-8B",
    "dtype": "auto",
    "quantization": "fp8",
    "kv_cache_dtype": "fp8_e5m2",
    "context_length": None,
    "tp_size": 4,
    "dp_size": 2,
    "pp_size": 1,
    "api_key": SECRET,
    "disable_radix_cache": True,
    "disable_cuda_graph": False,
    "speculative_algorithm": "EAGLE",
    "max_running_requests": None,
    "max_total_num_tokens": 452_112,
    "internal_states": [{"effective_max_running_requests_per_dp": 128}],
    "version": "0.5.23",
}


def page(tree: dict[str, Any]) -> bytes:
    return json.dumps(tree).encode()
