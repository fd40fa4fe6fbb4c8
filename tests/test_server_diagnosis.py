"""What engines and Docker say when they fail, and what we make of it. The lines are their own."""

import pytest

from loadgen.server.diagnosis import diagnose, last_words

CASES = [
    (
        "e07-shm", "shared_memory", ["nccl-Ab12", "7340384", "ipc: host"],
        "NCCL WARN Error while creating shared memory segment /dev/shm/nccl-Ab12 (size 7340384)",
    ),
    (
        "e07-shm-full", "shared_memory", ["/dev/shm/nccl-x"],
        "OSError: [Errno 28] No space left on device: '/dev/shm/nccl-x'",
    ),
    (
        "e08-no-runtime", "no_gpu_runtime", ["container toolkit", "llamacpp-cpu"],
        'Error response from daemon: could not select device driver "nvidia" with capabilities: '
        "[[gpu]]",
    ),
    (
        "e10-gated", "gated_model", ["meta-llama/Llama-3.1-8B", "licence", "HF_TOKEN"],
        "huggingface_hub.errors.GatedRepoError: 401 Client Error. (Request ID: Root=1-66)\n\n"
        "Cannot access gated repo for url https://hub.example/meta-llama/Llama-3.1-8B/resolve/"
        "main/config.json.\nAccess to model meta-llama/Llama-3.1-8B is restricted. You must have "
        "access to it and be authenticated to access it. Please log in.",
    ),
    (
        "e10-gated-403", "gated_model", ["google/gemma-2-2b"],
        "403 Client Error: Forbidden for url: https://hub.example/google/gemma-2-2b/resolve/"
        "main/config.json. Access to model google/gemma-2-2b is restricted and you are not in the "
        "authorized list.",
    ),
    (
        "no-such-model", "model_not_found", ["Qwen/Qwen3-0.6"],
        "OSError: Qwen/Qwen3-0.6 is not a local folder and is not a valid model identifier listed "
        "on 'https://hub.example/models'",
    ),
    (
        "no-such-repository", "model_not_found", ["org/private"],
        "RepositoryNotFoundError: 401 Client Error. Repository Not Found for url: "
        "https://hub.example/api/models/org/private.",
    ),
    ("bad-token", "bad_token", ["HTTP 401"], "HTTPError: Invalid user token. 401 Client Error"),
    (
        "e12-no-blocks", "no_kv_memory", ["KV cache", "nvidia-smi"],
        "ValueError: No available memory for the cache blocks. Try increasing "
        "`gpu_memory_utilization` when initializing the engine.",
    ),
    (
        "e12-somebody-else", "gpu_busy", ["1.20 of 79.15 GiB", "71.24 GiB", "0.9"],
        "ValueError: Free memory on device cuda:0 (1.20/79.15 GiB) on startup is less than desired "
        "GPU memory utilization (0.9, 71.24 GiB). Decrease GPU memory utilization",
    ),
    (
        "e12-before-devices-had-names", "gpu_busy", ["59.32 of 79.15 GiB"],
        "ValueError: Free memory on device (59.32/79.15 GiB) on startup is less than desired GPU "
        "memory utilization (0.9, 71.24 GiB).",
    ),
    (
        "sglang-memory", "no_kv_memory", ["0.2"],
        "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. Current "
        "value: self.server_args.mem_fraction_static=0.2",
    ),
    (
        "kv-below-context", "kv_cache_below_context", ["262144", "24.0 GiB", "3.18 GiB", "34736"],
        "ValueError: To serve at least one request with the models's max seq len (262144), (24.0 "
        "GiB KV cache is needed, which is larger than the available KV cache memory (3.18 GiB). "
        "Based on the available memory, the estimated maximum model length is 34736.",
    ),
    (
        "kv-below-context-old", "kv_cache_below_context", ["4096", "3664", "CONTEXT"],
        "ValueError: The model's max seq len (4096) is larger than the maximum number of tokens "
        "that can be stored in KV cache (3664). Try increasing `gpu_memory_utilization`",
    ),
    (
        "cuda-oom", "gpu_out_of_memory", ["2.32 GiB", "23.64 GiB", "1.10 GiB"],
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.32 GiB. GPU 0 has a total "
        "capacity of 23.64 GiB of which 1.10 GiB is free.",
    ),
    (
        "llamacpp-oom", "gpu_out_of_memory", ["17166.82 MiB"],
        "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 17166.82 MiB on device 0: "
        "cudaMalloc failed: out of memory",
    ),
    (
        "port-docker", "port_taken", ["8000"],
        "Error response from daemon: driver failed programming external connectivity on endpoint "
        "x: Bind for 127.0.0.1:8000 failed: port is already allocated",
    ),
    (
        "port-uvicorn", "port_taken", ["8123"],
        "ERROR: [Errno 98] error while attempting to bind on address ('0.0.0.0', 8123): address "
        "already in use",
    ),
    ("port-unnamed", "port_taken", ["its port is taken"], "OSError: [Errno 98] Address already in "
     "use"),
    (
        "port-llamacpp", "port_taken", ["18101"],
        "start: couldn't bind HTTP server socket, hostname: 127.0.0.1, port: 18101",
    ),
    (
        "architecture-llamacpp", "unknown_architecture", ["'gemma4'", "newer image"],
        "llama_model_load: error loading model: error loading model architecture: unknown model "
        "architecture: 'gemma4'",
    ),
    (
        "architecture-vllm", "unknown_architecture", ["'NewForCausalLM'"],
        "ValueError: Model architectures ['NewForCausalLM'] are not supported for now.",
    ),
    (
        "architecture-transformers", "unknown_architecture", ["qwen9"],
        "ValueError: The checkpoint you are trying to load has model type `qwen9` but Transformers "
        "does not recognize this architecture.",
    ),
    (
        "quantisation", "unknown_quantisation", ["awq9"],
        "ValueError: Unknown quantization method: awq9. Must be one of ['awq', 'fp8']",
    ),
    (
        "quantisation-mismatch", "unknown_quantisation", ["awq", "gptq"],
        "ValueError: Quantization method specified in the model config (awq) does not match the "
        "quantization method specified in the `quantization` argument (gptq).",
    ),
    (
        "capability", "gpu_too_old", ["fp8", "89", "75"],
        "ValueError: The quantization method fp8 is not supported for the current GPU. Minimum "
        "capability: 89. Current capability: 75.",
    ),
    (
        "bfloat16", "gpu_too_old", ["8.0", "7.5", "float16"],
        "ValueError: Bfloat16 is only supported on GPUs with compute capability of at least 8.0. "
        "Your Tesla T4 GPU has compute capability 7.5. You can use float16 instead",
    ),
    ("disk", "disk_full", ["MODEL_CACHE"], "OSError: [Errno 28] No space left on device"),
    (
        "disk-docker", "disk_full", ["/var/lib/docker/tmp/x"],
        "write /var/lib/docker/tmp/x: no space left on device: /var/lib/docker/tmp/x",
    ),
    (
        "driver", "gpu_driver", ["cuda>=12.8"],
        "nvidia-container-cli: requirement error: unsatisfied condition: cuda>=12.8, please update "
        "your driver",
    ),
    ("no-gpu", "no_gpu", ["sees no GPU"], "RuntimeError: No CUDA GPUs are available"),
    (
        "gpus", "too_few_gpus", ["8", "4"],
        "ValueError: World size (8) is larger than the number of available GPUs (4) in this node.",
    ),
    (
        "heads", "uneven_split", ["40", "3"],
        "ValueError: Total number of attention heads (40) must be divisible by tensor parallel "
        "size (3).",
    ),
    (
        "image", "image_not_found", ["vllm/vllm-openai:v9"],
        "Error response from daemon: manifest for vllm/vllm-openai:v9 not found: manifest unknown",
    ),
    (
        "file", "model_file_missing", ["/models/x.gguf"],
        "gguf_init_from_file: failed to open GGUF file '/models/x.gguf'",
    ),
    (
        "argument", "wrong_argument", ["--max-len 5"],
        "vllm: error: unrecognized arguments: --max-len 5",
    ),
    (
        "network", "no_network", ["cannot be reached"],
        "requests.exceptions.ConnectionError: Failed to establish a new connection: [Errno -3] "
        "Temporary failure in name resolution",
    ),
    (
        "limits", "limit_refused", ["NOFILE", "7"],
        "error during container init: error setting rlimit type 7: operation not permitted",
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "words", "log"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_a_log_line_gives_its_cause_and_its_numbers(kind: str, words: list[str], log: str) -> None:
    found = diagnose(f"INFO loading\n{log}\nINFO ending", exit_code=1)
    assert found is not None
    assert found.kind == kind
    text = str(found)
    assert [word for word in words if word not in text] == []
    assert "?" not in text
    assert "{" not in text


@pytest.mark.parametrize(
    ("code", "out_of_memory", "kind"),
    [(137, False, "out_of_memory"), (1, True, "out_of_memory"), (132, False, "cpu_too_old"),
     (139, False, "crash"), (127, False, "no_program"), (126, False, "not_executable")],
)  # fmt: skip
def test_without_a_telling_log_the_exit_code_speaks(
    code: int, out_of_memory: bool, kind: str
) -> None:
    found = diagnose("INFO loading", exit_code=code, out_of_memory=out_of_memory)
    assert found is not None
    assert found.kind == kind


@pytest.mark.parametrize("code", [0, 1, 2, None])
def test_what_is_not_known_is_not_guessed(code: int | None) -> None:
    assert diagnose("INFO server started\nINFO ok", exit_code=code) is None


def test_the_root_of_a_long_log_is_found_before_its_last_words() -> None:
    log = "\n".join(
        [
            "(EngineCore) ValueError: No available memory for the cache blocks.",
            *(f'  File "/usr/lib/x.py", line {n}' for n in range(300)),
            "RuntimeError: Engine core initialization failed. See root cause above.",
        ]
    )
    found = diagnose(log, exit_code=1)
    assert found is not None
    assert found.kind == "no_kv_memory"


@pytest.mark.parametrize(
    ("log", "words"),
    [
        (["starting", "no option --speeed; did you mean --seed?", "", "  "],
         "no option --speeed; did you mean --seed?"),
        (["\x1b[31mERROR\x1b[0m   it   broke\t"], "ERROR it broke"),
        (["refused: Bearer abcdef0123456789"], "refused: Bearer ***"),
        (["x" * 200], "x" * 160 + "…"),
        (["", " "], None),
        ([], None),
    ],
    ids=["the last that says something", "no colours", "no secrets", "cut", "blank", "empty"],
)  # fmt: skip
def test_the_last_words_of_a_log(log: list[str], words: str | None) -> None:
    assert last_words(log) == words
