"""Why a server did not start: its last words and exit code → one cause, and what to do. Pure.

The rules are tried in order, the narrow before the wide: a shared memory segment that cannot be
made also says "no space left", and a gated model also says 401. Each names the numbers of the log.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from loadgen.scenario.private import mask


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """One cause. kind: a word for tests and tables; message: with the log's numbers."""

    kind: str
    message: str
    advice: str

    def __str__(self) -> str:
        return f"{self.message}; {self.advice}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rule:
    """Any of the patterns; its named groups fill the braces of ``message`` (unnamed: "?")."""

    kind: str
    patterns: tuple[str, ...]
    message: str
    advice: str


_TOOLKIT = (
    "install the NVIDIA container toolkit and run: nvidia-ctk runtime configure --runtime=docker, "
    "then restart Docker; without a GPU take the profile llamacpp-cpu"
)
_LESS_CONTEXT = "lower CONTEXT, or give the cache more of the GPU (vLLM: --gpu-memory-utilization)"
_FREE_GPU = "end what else uses the GPU (nvidia-smi lists it), or take a smaller share of it"
_SMALLER = (
    "take a smaller or quantised model, a smaller CONTEXT, or more GPUs "
    "(GPUS=0,1 and TENSOR_PARALLEL=2)"
)
_LICENCE = "accept its licence on the model's page, then: export HF_TOKEN=… (never stored here)"
_REPOSITORY = r"https?://[^/\s]+/(?:api/models/)?(?P<model>[\w.-]+/[\w.-]+?)(?:/|\s|\.?$)"

_RULES = (
    _Rule(
        kind="gated_model",
        patterns=(
            r"(?is)access to model (?P<model>\S+) is restricted",
            rf"(?is)gated repo.{{0,300}}?{_REPOSITORY}",
            rf"(?is){_REPOSITORY}.{{0,300}}?(?:gated repo|not in the authorized list)",
            r"(?i)gated repo|GatedRepoError",
        ),
        message="the model {model} is gated: its hub wants a token of somebody who may use it",
        advice=_LICENCE,
    ),
    _Rule(
        kind="model_not_found",
        patterns=(
            rf"(?is)repository not found.{{0,200}}?{_REPOSITORY}",
            r"(?i)(?P<model>\S+) is not a local folder and is not a valid model identifier",
            r"(?i)repo id must be .{0,60}: '(?P<model>[^']*)'",
            r"(?i)RepositoryNotFoundError",
        ),
        message="the model {model} does not exist, or is private",
        advice="correct MODEL; for a private one: export HF_TOKEN=…",
    ),
    _Rule(
        kind="bad_token",
        patterns=(r"(?i)401 client error|invalid user token|invalid username or password",),
        message="the model hub refuses the token (HTTP 401)",
        advice="export a valid HF_TOKEN, or unset it for public models",
    ),
    _Rule(
        kind="limit_refused",
        patterns=(r"(?i)error setting rlimit type (?P<what>\d+): operation not permitted",),
        message="this host does not allow the resource limit asked for (rlimit type {what}: "
        "7 is open files, 8 is locked memory)",
        advice="lower NOFILE to what ulimit -Hn says, or the ulimits of the compose file",
    ),
    _Rule(
        kind="no_gpu_runtime",
        patterns=(
            r'(?i)could not select device driver "?(?P<driver>[\w-]+)"? with capabilities',
            r"(?i)unknown or invalid runtime name: (?P<driver>\w+)",
            r"(?i)nvidia-container-cli: (?:initialization|ldcache|mount) error",
            r"(?i)unresolvable CDI devices|failed to discover GPU vendor",
        ),
        message="Docker cannot hand a GPU to a container",
        advice=_TOOLKIT,
    ),
    _Rule(
        kind="gpu_driver",
        patterns=(
            r"(?i)unsatisfied condition: (?P<need>cuda\s*>=\s*[\d.]+)",
            r"(?i)driver on your system is too old \(found version (?P<have>\d+)\)",
            r"(?i)CUDA driver version is insufficient for CUDA runtime version",
        ),
        message="the GPU's driver is too old for the image (needed: {need}; found: {have})",
        advice="update the driver, or take an older image",
    ),
    _Rule(
        kind="no_gpu",
        patterns=(
            r"(?i)no CUDA GPUs are available|no CUDA-capable device|found no NVIDIA driver",
            r"(?i)failed to infer device type|libcuda\.so\.1: cannot open shared object",
            r"(?i)CUDA error: invalid device ordinal",
        ),
        message="the engine sees no GPU",
        advice="check that nvidia-smi lists one here, and GPUS names ids it lists; without a GPU "
        "take the profile llamacpp-cpu",
    ),
    _Rule(
        kind="gpu_too_old",
        patterns=(
            r"(?i)(?P<what>bfloat16) is only supported on GPUs with compute capability of at least "
            r"(?P<need>[\d.]+)\.? .{0,80}?compute capability (?P<have>[\d.]+)",
            r"(?i)quantization method (?P<what>[\w-]+) is not supported for the current GPU\. "
            r"Minimum capability: (?P<need>\d+)\. Current capability: (?P<have>\d+)",
        ),
        message="{what} needs compute capability {need}, this GPU has {have}",
        advice="choose another quantisation or --dtype float16 (EXTRA_ARGS)",
    ),
    _Rule(
        kind="shared_memory",
        patterns=(
            r"(?i)creating shared memory segment (?P<path>/dev/shm/\S+) \(size (?P<size>\d+)\)",
            r"(?i)no space left on device.{0,40}(?P<path>/dev/shm\S*)",
            r"(?i)insufficient shared memory|unable to (?:open|mmap|allocate) shared memory",
        ),
        message="the container's shared memory is too small ({path}, {size} bytes wanted)",
        advice="give the service ipc: host or shm_size: 16gb (podman may drop ipc silently)",
    ),
    _Rule(
        kind="kv_cache_below_context",
        patterns=(
            r"(?i)max seq len \((?P<context>\d+)\),? \((?P<need>[\d.]+ GiB) KV cache is needed, "
            r"which is larger than the available KV cache memory \((?P<have>[\d.]+ GiB)\)"
            r"(?:.{0,60}?estimated maximum model length is (?P<fits>\d+))?",
            r"(?i)max seq len \((?P<context>\d+)\) is larger than the maximum number of tokens "
            r"that can be stored in KV cache \((?P<fits>\d+)\)",
        ),
        message="a context of {context} tokens does not fit into the KV cache "
        "(needed: {need}; there is: {have}; tokens that fit: {fits})",
        advice=_LESS_CONTEXT,
    ),
    _Rule(
        kind="gpu_busy",
        patterns=(
            r"(?i)free memory on device \S*?\s*\((?P<free>[\d.]+)/(?P<total>[\d.]+) GiB\) on "
            r"startup is less than desired GPU memory utilization "
            r"\((?P<share>[\d.]+), (?P<want>[\d.]+) GiB",
        ),
        message="only {free} of {total} GiB of the GPU are free, {want} GiB ({share}) are wanted",
        advice=_FREE_GPU,
    ),
    _Rule(
        kind="no_kv_memory",
        patterns=(
            r"(?i)no available memory for the cache blocks",
            r"(?i)not enough memory\. please try to increase --mem-fraction-static"
            r"(?:.{0,40}mem_fraction_static=(?P<share>[\d.]+))?",
            r"(?i)failed to (?:allocate|create) .{0,40}kv[ _]?cache",
        ),
        message="after the weights no memory is left for the KV cache (memory share: {share})",
        advice=f"{_FREE_GPU}; or {_SMALLER}",
    ),
    _Rule(
        kind="gpu_out_of_memory",
        patterns=(
            r"(?is)CUDA out of memory\. Tried to allocate (?P<want>[\d.]+ \wiB)"
            r"(?:.{0,60}?total capacity of (?P<total>[\d.]+ \wiB) of which (?P<free>[\d.]+ \wiB))?",
            r"(?i)allocating (?P<want>[\d.]+ MiB) on device \d+: cudaMalloc failed",
            r"(?i)CUDA out of memory|CUDA_ERROR_OUT_OF_MEMORY|cudaMalloc failed: out of memory",
        ),
        message="the GPU's memory ran out (wanted: {want}; free: {free} of {total})",
        advice=f"{_SMALLER}; {_FREE_GPU}",
    ),
    _Rule(
        kind="too_few_gpus",
        patterns=(
            r"(?i)world size \((?P<want>\d+)\) is larger than the number of available GPUs "
            r"\((?P<have>\d+)",
        ),
        message="tensor parallelism of {want} needs as many GPUs, the engine sees {have}",
        advice="lower TENSOR_PARALLEL, or name more ids in GPUS",
    ),
    _Rule(
        kind="uneven_split",
        patterns=(
            r"(?i)attention heads \((?P<have>\d+)\) must be divisible by tensor parallel size "
            r"\((?P<want>\d+)\)",
        ),
        message="{have} attention heads cannot be split over {want} GPUs",
        advice="set TENSOR_PARALLEL to a divisor of that number",
    ),
    _Rule(
        kind="port_taken",
        patterns=(
            r"(?i)bind for \S+?:(?P<port>\d+) failed: port is already allocated",
            r"(?i)couldn't bind .{0,60}port[:=] ?(?P<port>\d+)",
            r"(?i)(?<!Errno)[:, ](?P<port>\d{2,5})\)?\D{0,40}address already in use",
            r"(?i)address already in use|port is already allocated",
        ),
        message="its port ({port}) is taken by something else",
        advice="end that, or set another port in target.url",
    ),
    _Rule(
        kind="unknown_architecture",
        patterns=(
            r"(?i)model architectures \[(?P<what>[^\]]*)\] (?:are not supported|failed)",
            r"(?i)unknown model architecture: (?P<what>'[^']*')",
            r"(?i)model type [`'](?P<what>[^`']+)[`'].{0,80}does not recognize this architecture",
            r"(?i)unsupported (?:model )?architecture:? (?P<what>\S+)",
        ),
        message="this version of the engine does not know the architecture {what}",
        advice="take a newer image (its tag is a variable of the compose file), or another engine",
    ),
    _Rule(
        kind="unknown_quantisation",
        patterns=(
            r"(?i)unknown quantization method: (?P<what>\S+?)[.,]?(?:\s|$)",
            r"(?i)in the model config \((?P<have>[\w-]+)\) does not match .{0,80}argument "
            r"\((?P<what>[\w-]+)\)",
            r"(?i)--quantization/?-?q?: invalid choice: (?P<what>'[^']*')",
        ),
        message="the engine cannot serve the quantisation {what} (the model's own: {have})",
        advice="leave QUANTIZATION empty: the model says what it is",
    ),
    _Rule(
        kind="image_not_found",
        patterns=(
            r"(?i)manifest for (?P<what>\S+) not found",
            r"(?i)pull access denied for (?P<what>[^,\s]+)",
            r"(?i)failed to resolve reference \"(?P<what>[^\"]+)\".{0,60}not found",
            r"(?i)manifest unknown|no such image:? ?(?P<what>\S*)",
        ),
        message="there is no image {what}",
        advice="correct its tag (a variable of the compose file)",
    ),
    _Rule(
        kind="disk_full",
        patterns=(
            r"(?i)no space left on device(?:: '?(?P<path>/[^'\s]+))?",
            r"(?i)not enough free disk space.{0,120}?expected file size is: (?P<size>[\d.]+ \w+)",
            r"(?i)\[Errno 28\]|ENOSPC",
        ),
        message="the disk is full ({path}, {size})",
        advice="make room (docker system df tells what images and volumes hold), "
        "or put the model cache elsewhere: MODEL_CACHE=/big/disk",
    ),
    _Rule(
        kind="model_file_missing",
        patterns=(
            r"(?i)failed to open GGUF file '?(?P<path>[^'\s]+)",
            r"(?i)failed to load model,?(?: from)? '(?P<path>[^']+)'",
            r"(?i)no such file or directory: '(?P<path>[^']+\.(?:gguf|safetensors|json))'",
        ),
        message="the model file {path} cannot be loaded",
        advice="check that it exists where the server looks (MODELS is mounted at /models)",
    ),
    _Rule(
        kind="wrong_argument",
        patterns=(
            r"(?i)unrecognized arguments: (?P<what>.{1,80})",
            r"(?i)error: (?:invalid|unknown) argument: (?P<what>\S+)",
            r"(?i)no such option: (?P<what>\S+)",
        ),
        message="the engine does not know the argument {what}",
        advice="correct EXTRA_ARGS or the command",
    ),
    _Rule(
        kind="no_network",
        patterns=(
            r"(?i)temporary failure in name resolution|name or service not known",
            r"(?i)failed to establish a new connection|network is unreachable|no such host",
            r"(?i)couldn't connect to '?https?://|cannot find the requested files in the",
        ),
        message="the model hub or the image registry cannot be reached",
        advice="check the network and its proxy, or use a model that is here already (MODELS)",
    ),
)  # fmt: skip

_EXITS = {
    126: ("not_executable", "its program cannot be executed", "check the command"),
    127: ("no_program", "its program does not exist", "check the command"),
    132: ("cpu_too_old", "it used an instruction that this CPU lacks", "take a build for this CPU"),
    137: ("out_of_memory", "it was killed, as the kernel does when memory runs out",
          "give it more memory, or take a smaller model (dmesg tells whether it was the kernel)"),
    139: ("crash", "it crashed (segmentation fault)", "read the log above; try another image"),
}  # fmt: skip
_UNNAMED = "?"
_STYLED = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_LONGEST = 160


def diagnose(
    log: str, *, exit_code: int | None = None, out_of_memory: bool = False
) -> Diagnosis | None:
    """Return the first cause that the log, else the exit code, gives away; None if neither does.

    exit_code: as a shell counts, 128 + the signal's number for one that was killed.
    out_of_memory: the engine that runs the container says that the kernel killed it for memory.
    """
    for rule in _RULES:
        for pattern in rule.patterns:
            if found := re.search(pattern, log):
                return Diagnosis(
                    kind=rule.kind, message=_filled(rule.message, found), advice=rule.advice
                )
    code = 137 if out_of_memory else exit_code
    if code not in _EXITS:
        return None
    kind, message, advice = _EXITS[code]
    return Diagnosis(kind=kind, message=message, advice=advice)


def last_words(log: Sequence[str]) -> str | None:
    """Return a log's last line that says something, masked and cut; None where none does."""
    for line in reversed(log):
        said = mask(" ".join(_STYLED.sub("", line).split()))
        if said:
            return said if len(said) <= _LONGEST else f"{said[:_LONGEST]}…"
    return None


def _filled(message: str, found: re.Match[str]) -> str:
    """Put the log's numbers in; a parenthesis that would hold none is left out."""
    named = {name: text.strip() for name, text in found.groupdict().items() if text}
    filled = re.sub(r"\{(\w+)\}", lambda match: named.get(match[1], _UNNAMED), message)
    return _without_gaps(filled)


def _without_gaps(text: str) -> str:
    """Drop what a log did not say: "(needed: ?; there is: 2 GiB)" → "(there is: 2 GiB)"."""

    def kept(match: re.Match[str]) -> str:
        inner = match[1]
        separator = ";" if ";" in inner else ","
        parts = [part.strip() for part in inner.split(separator) if _UNNAMED not in part]
        return f" ({f'{separator} '.join(parts)})" if parts else ""

    text = re.sub(r" \(([^()]*)\)", kept, text)
    return " ".join(word for word in text.split() if word != _UNNAMED)
