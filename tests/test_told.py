"""What servers tell of themselves: their own pages, how we started them, what their name says."""

import shlex
from collections.abc import Callable

import pytest
from told_make import SECRET, SGLANG, VLLM_CPU, VLLM_GPUS, captured, page

from loadgen.run.spelling import contradict, contradictions, gguf_type, named_quantisation
from loadgen.run.started import of_command, of_service, visible_gpus
from loadgen.run.told import (
    llamacpp_props,
    models_page,
    sglang_model_info,
    sglang_server_info,
    vllm_metrics,
    vllm_server_info,
)

# --- captured pages


def test_vllms_metrics_tell_of_its_cache() -> None:
    assert vllm_metrics(captured("vllm-get-metrics")) == {
        "kv_cache_dtype": "auto",
        "kv_cache_tokens": 1_048_576,
        "prefix_caching": "on",
    }


def test_an_older_vllms_tokens_are_its_blocks_times_their_size() -> None:
    line = b'vllm:cache_config_info{block_size="16",cache_dtype="fp8",num_gpu_blocks="27000"} 1.0\n'
    drafts = b"vllm:spec_decode_num_drafts_total 0.0\n"
    told = vllm_metrics(line + drafts)
    assert told["kv_cache_tokens"] == 432_000
    assert (told["kv_cache_dtype"], told["speculative_decoding"]) == ("fp8", "on")


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("vllm", {"model": "/srv/inference/server/models/tiny", "max_model_len": 2048}),
        ("sglang", {"model": "tiny", "max_model_len": 4096}),
        (
            "llamacpp",
            {"max_model_len": 2048, "parameters": 426_624, "weight_bytes": 1_706_496,
             "dtype": "float32", "quantisation": "none"},
        ),
        ("transformers", {}),
    ],
)  # fmt: skip
def test_the_list_of_models_tells_of_the_one_that_is_asked(name: str, told: dict) -> None:
    assert models_page(captured(f"{name}-get-models"), "tiny") == told


def test_llamacpps_props_tell_of_file_slots_and_build() -> None:
    assert llamacpp_props(captured("llamacpp-get-props")) == {
        "engine_version": "b0-unknown",
        "model": "models/tiny.gguf",
        "max_model_len": 2048,
        "max_sequences": 4,
        "speculative_decoding": "off",
        "dtype": "float32",
        "quantisation": "none",
    }


def test_without_its_type_a_gguf_file_tells_by_its_name() -> None:
    props = page({"model_path": "/models/Qwen3-8B-Q4_K_M.gguf", "build_info": "b11434-1a2b3c"})
    assert llamacpp_props(props)["quantisation"] == "Q4_K_M"


def test_vllm_in_development_mode_tells_all() -> None:
    assert vllm_server_info(page(VLLM_CPU)) == {
        "model": "/srv/models/tiny",
        "dtype": "float32",
        "quantisation": "none",
        "max_model_len": 2048,
        "cuda_graphs": "off",
        "kv_cache_dtype": "auto",
        "kv_cache_tokens": 1_048_576,
        "prefix_caching": "on",
        "tensor_parallel": 1,
        "max_sequences": 16,
        "machine": "AMD EPYC, 2 CPUs",
        "speculative_decoding": "off",
    }


def test_vllm_on_gpus_tells_of_them_too() -> None:
    told = vllm_server_info(page(VLLM_GPUS))
    assert told["gpu"] == "2 × NVIDIA H100 80GB HBM3"
    assert told["driver"] == "570.86.15"
    assert (told["quantisation"], told["kv_cache_dtype"]) == ("awq_marlin", "fp8_e4m3")
    assert (told["prefix_caching"], told["tensor_parallel"]) == ("off", 2)
    assert told["speculative_decoding"] == "ngram, 5 tokens"
    assert "machine" not in told


def test_sglang_tells_its_arguments_and_never_its_key() -> None:
    told = sglang_server_info(page(SGLANG))
    assert told == {
        "engine_version": "0.5.23",
        "model": "Qwen/Qwen3-8B",
        "quantisation": "fp8",
        "kv_cache_dtype": "fp8_e5m2",
        "kv_cache_tokens": 452_112,
        "prefix_caching": "off",
        "tensor_parallel": 4,
        "data_parallel": 2,
        "max_sequences": 128,
        "speculative_decoding": "EAGLE",
    }
    assert SECRET not in str(told)


def test_what_sglang_was_not_told_is_as_the_checkpoint_says_and_so_unknown() -> None:
    told = sglang_server_info(page({**SGLANG, "quantization": None, "speculative_algorithm": None}))
    assert "quantisation" not in told
    assert told["speculative_decoding"] == "off"


@pytest.mark.parametrize(
    "read",
    [vllm_server_info, vllm_metrics, sglang_server_info, sglang_model_info, llamacpp_props],
)
@pytest.mark.parametrize(
    "body", [b"", b"<html>", b"[]", b"null", b'{"vllm_config": "text"}', b"vllm:cache_config_info{"]
)
def test_a_page_of_something_else_tells_nothing(read: Callable[[bytes], dict], body: bytes) -> None:
    assert read(body) == {}


# --- how we started it


@pytest.mark.parametrize(
    ("engine", "command", "told"),
    [
        (
            "vllm",
            "vllm serve org/m-AWQ --dtype half -q awq --max_model_len=4096 -tp 2"
            " --no-enable-prefix-caching --kv-cache-dtype fp8 --max-num-seqs 64 --api-key sk-1",
            {"model": "org/m-AWQ", "dtype": "float16", "quantisation": "awq",
             "max_model_len": 4096, "tensor_parallel": 2, "prefix_caching": "off",
             "kv_cache_dtype": "fp8", "max_sequences": 64},
        ),
        (
            "vllm",
            "vllm serve m --dtype auto --enforce-eager --dtype bfloat16"
            """ --speculative-config '{"method": "eagle", "num_speculative_tokens": 3}'""",
            {"model": "m", "dtype": "bfloat16", "cuda_graphs": "off",
             "speculative_decoding": "eagle, 3 tokens"},
        ),
        (
            "sglang",
            "python3 -m sglang.launch_server --model-path org/m --tp 4 --context-length 8192"
            " --disable-radix-cache",
            {"model": "org/m", "tensor_parallel": 4, "max_model_len": 8192,
             "prefix_caching": "off"},
        ),
        (
            "llamacpp",
            "llama-server -m /m/qwen-Q4_K_M.gguf -c 8192 -np 4 -ctk q8_0 -ctv q8_0",
            {"model": "/m/qwen-Q4_K_M.gguf", "quantisation": "Q4_K_M", "max_model_len": 2048,
             "max_sequences": 4, "kv_cache_dtype": "q8_0"},
        ),
        ("llamacpp", "llama-server -m m-f16.gguf -ctk q4_0",
         {"model": "m-f16.gguf", "dtype": "float16", "quantisation": "none",
          "kv_cache_dtype": "q4_0 keys, float16 values"}),
        ("trtllm", "trtllm-serve serve org/m --tp_size 2 --max_seq_len 4096 --max_batch_size 32",
         {"model": "org/m", "tensor_parallel": 2, "max_model_len": 4096, "max_sequences": 32}),
        ("transformers", "transformers serve org/m --dtype float32 --port 8000",
         {"model": "org/m", "dtype": "float32"}),
        ("unknown", "bash -c 'cd /srv && exec vllm serve m --dtype bfloat16'",
         {"model": "m", "dtype": "bfloat16"}),
        ("trtllm", """sh -c 'exec "$0" "$@"' trtllm-serve org/m --max_seq_len 4096""",
         {"model": "org/m", "max_model_len": 4096}),
        ("unknown", "./serve.sh --dtype float16", {}),
        ("vllm", "bash start.sh VENV MODEL 8000 --dtype bfloat16", {"dtype": "bfloat16"}),
        ("vllm", "vllm serve --dtype", {}),
    ],
    ids=["vllm", "the last word counts", "sglang", "llama.cpp", "keys apart from values", "trtllm",
         "transformers", "in a shell", "given to a shell", "unknown", "a script of ours",
         "cut off"],
)  # fmt: skip
def test_a_commands_words_tell_how_it_was_started(engine: str, command: str, told: dict) -> None:
    assert of_command(shlex.split(command), engine) == told


def test_a_compose_service_tells_its_image_and_its_command() -> None:
    rendered = {
        "image": "vllm/vllm-openai:v0.32.0",
        "entrypoint": "vllm serve",
        "command": "Qwen/Qwen3-0.6B --max-model-len 4096 --tensor-parallel-size 1",
    }
    assert of_service(rendered, "vllm") == {
        "image": "vllm/vllm-openai:v0.32.0",
        "model": "Qwen/Qwen3-0.6B",
        "max_model_len": 4096,
        "tensor_parallel": 1,
    }


def test_a_servers_own_word_on_its_gpus_goes_before_ours() -> None:
    ours = {"CUDA_VISIBLE_DEVICES": "0,1"}
    assert visible_gpus(["HF_HOME=/cache", "CUDA_VISIBLE_DEVICES=3"], ours) == "3"
    assert visible_gpus([], ours) == "0,1"
    assert visible_gpus([], {}) is None


# --- names and spellings


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("Qwen/Qwen2.5-7B-Instruct-AWQ", "AWQ"),
        ("Qwen2.5-7B-Instruct-GPTQ-Int4", "GPTQ-Int4"),
        ("neuralmagic/Meta-Llama-3.1-8B-Instruct-FP8", "FP8"),
        ("nvidia/Llama-3.3-70B-Instruct-NVFP4", "NVFP4"),
        ("RedHatAI/Qwen3-8B-quantized.w4a16", "W4A16"),
        ("unsloth/llama-3-8b-bnb-4bit", "BNB-4bit"),
        ("Qwen/Qwen3-0.6B-GGUF:Q8_0", "Q8_0"),
        ("Llama-3-8B.Q4_K_M.gguf", "Q4_K_M"),
        ("model-IQ2_XXS", "IQ2_XXS"),
        ("Qwen3-8B-BF16", None),
        ("meta-llama/Llama-3.1-8B-Instruct", None),
        ("awqward-7b", None),
    ],
)
def test_a_models_name_hints_at_its_quantisation(name: str, hint: str | None) -> None:
    assert named_quantisation(name) == hint


@pytest.mark.parametrize(
    ("words", "short"),
    [("Q4_K - Medium", "Q4_K_M"), ("all F32", "F32"), ("Q8_0 (guessed)", "Q8_0"),
     ("IQ2_XXS - 2.0625 bpw", "IQ2_XXS"), ("MXFP4 MoE", "MXFP4"), ("tiny", None)],
)  # fmt: skip
def test_llamacpps_words_for_a_type_become_its_short_name(words: str, short: str | None) -> None:
    assert gguf_type(words) == short


@pytest.mark.parametrize(
    ("key", "declared", "found"),
    [
        ("dtype", "bf16", "bfloat16"),
        ("dtype", "torch.float16", "half"),
        ("dtype", "whatever", "float16"),
        ("kv_cache_dtype", "fp8", "fp8_e4m3"),
        ("kv_cache_dtype", "bf16", "auto"),
        ("quantisation", "int4", "awq_marlin"),
        ("quantisation", "AWQ", "awq"),
        ("quantisation", "int4", "Q4_K_M"),
        ("quantisation", "int8", "W8A8"),
        ("quantisation", "fp16", "none"),
        ("quantisation", "fp8", "compressed-tensors"),
        ("gpu", "1 × H100", "1 × NVIDIA H100 80GB HBM3"),
        ("gpu", "the big one", "1 × NVIDIA L4"),
        ("prefix_caching", "true", "on"),
        ("tensor_parallel", 2, 2),
        ("thermal", "no", "yes"),
    ],
)
def test_two_spellings_are_no_contradiction(key: str, declared: object, found: object) -> None:
    assert not contradict(key, declared, found)


@pytest.mark.parametrize(
    ("key", "declared", "found"),
    [
        ("dtype", "bfloat16", "float32"),
        ("kv_cache_dtype", "fp8_e5m2", "fp8_e4m3"),
        ("quantisation", "int4", "fp8"),
        ("quantisation", "awq", "gptq"),
        ("quantisation", "int4", "Q8_0"),
        ("quantisation", "bf16", "awq"),
        ("quantisation", "int8", "none"),
        ("gpu", "H200", "2 × NVIDIA H100 80GB HBM3"),
        ("prefix_caching", "off", "on"),
        ("tensor_parallel", 1, 2),
        ("max_model_len", "4096", 2048),
    ],
)
def test_what_cannot_both_be_true_contradicts(key: str, declared: object, found: object) -> None:
    assert contradict(key, declared, found)


def test_weights_declared_by_a_type_are_held_against_the_type() -> None:
    found = {"quantisation": "none", "dtype": "float32"}
    assert list(contradictions({"weights": "bf16", "thermal": "no"}, found)) == ["weights"]
    assert list(contradictions({"quantization": "fp32"}, found)) == []
