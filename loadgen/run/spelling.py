"""One thing, several spellings: bf16 and bfloat16, what a model's name tells, what contradicts.

Two conditions contradict each other only where both are understood and cannot both be true; a
word that is not known here contradicts nothing.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_DTYPES = {
    "bf16": "bfloat16",
    "fp16": "float16",
    "f16": "float16",
    "half": "float16",
    "fp32": "float32",
    "f32": "float32",
    "float": "float32",
    "fp8_e4m3fn": "fp8_e4m3",
    "float8_e4m3fn": "fp8_e4m3",
    "float8_e5m2": "fp8_e5m2",
    "float8": "fp8",
}
FULL = frozenset({"bfloat16", "float16", "float32"})
"""Weights in one of these are not quantised."""

_GGUF = re.compile(
    r"(?i)(?<![a-z0-9])(I?Q\d_(?:\d|K|NL|XXS|XS|S|M)(?:_(?:XXS|XS|XL|NL|S|M|L))?|TQ\d_\d|"
    r"MXFP4|BF16|F16|F32)(?![a-z0-9])"
)
_IN_NAMES = (
    re.compile(r"(?i)(?<![a-z])(GPTQ-?Int[48]|AWQ|GPTQ|AutoRound|EXL[23]|HQQ)(?![a-z])"),
    re.compile(r"(?i)(?<![a-z])(NVFP4|MXFP4|FP8|FP4|NF4|W\d{1,2}A\d{1,2}|Int[48])(?![a-z0-9])"),
    re.compile(r"(?i)(?<![a-z0-9])((?:bnb-)?[48]-?bit)(?![a-z0-9])"),
)
_GPU = re.compile(r"(?i)(?:GH|GB|MI|RTX ?|[ABHLTV])\d{1,4}[A-Z]{0,2}(?![A-Z0-9])")

KEYS = {
    "quantization": "quantisation",
    "weights": "quantisation",
    "kv_cache": "kv_cache_dtype",
    "tp": "tensor_parallel",
    "tensor_parallel_size": "tensor_parallel",
    "context": "max_model_len",
    "context_length": "max_model_len",
    "hardware": "gpu",
    "gpus": "gpu",
    "device": "gpu",
}
"""What a scenario may call a condition, beside its own name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A quantisation by its method ("int": any with integers; None: none at all) and its bits."""

    method: str | None
    bits: frozenset[int]


def spelled(text: str) -> str:
    """Return a data type as it is written here: bfloat16, float16, float32, fp8_e4m3."""
    word = text.strip().lower().removeprefix("torch.")
    return _DTYPES.get(word, word)


def gguf_type(text: str) -> str | None:
    """Return the type that a GGUF file's name or llama.cpp's own words tell: Q4_K_M, F16.

    "Q4_K - Medium" is Q4_K_M; "all F32" is F32; "Q8_0 (guessed)" is Q8_0.
    """
    size = {"small": "S", "medium": "M", "large": "L"}
    joined = re.sub(r"(?i) - (small|medium|large)", lambda m: f"_{size[m[1].lower()]}", text)
    found = _GGUF.findall(joined)
    return found[-1].upper() if found else None


def named_quantisation(name: str) -> str | None:
    """Return what a model's name says of its weights: AWQ, GPTQ-Int4, FP8, Q4_K_M; else None.

    A name that says no more than a full-precision type (BF16) says nothing of a quantisation.
    """
    for pattern in _IN_NAMES:
        if found := pattern.search(name):
            return found[1].upper().replace("INT", "Int").replace("BIT", "bit")
    found_type = gguf_type(name)
    return None if found_type is None or spelled(found_type) in FULL else found_type


def contradict(key: str, declared: object, found: object) -> bool:
    """Say whether a declared condition cannot be true where another was found."""
    said, told = str(declared), str(found)
    if not said.strip() or not told.strip():
        return False
    match key:
        case "dtype" | "kv_cache_dtype":
            return _types_differ(spelled(said), spelled(told))
        case "quantisation":
            return _kinds_differ(_kind(said), _kind(told))
        case "gpu":
            return _gpus_differ(said, told)
        case "tensor_parallel" | "max_model_len" | "max_sequences":
            return said.isdigit() and told.isdigit() and int(said) != int(told)
        case "prefix_caching":
            return _switch(said) is not None and _switch(said) is (not _switch(told))
    return False


def contradictions(declared: Mapping[str, Any], found: Mapping[str, Any]) -> Iterator[str]:
    """Yield the declared keys whose values cannot be true, by their own names."""
    for name, said in declared.items():
        key = KEYS.get(name, name)
        if isinstance(said, str | int | float) and key in found:
            weights_are_full = key == "quantisation" and found[key] == "none" and "dtype" in found
            against = found["dtype"] if weights_are_full and spelled(str(said)) in FULL else None
            if against is not None:
                if contradict("dtype", said, against):
                    yield name
            elif contradict(key, said, found[key]):
                yield name


def _types_differ(said: str, told: str) -> bool:
    known = {*_DTYPES.values(), "fp8", "auto"}
    if said not in known or told not in known or "auto" in (said, told):
        return False
    # fp8 alone is either of its two forms
    return said != told and not (said.startswith("fp8") and told.startswith("fp8")
                                 and "fp8" in (said, told))  # fmt: skip


def _kind(text: str) -> Kind | None:
    """Return what a word for a quantisation means; None where it is not known."""
    word = text.lower().partition(" (")[0].strip()
    if spelled(word) in FULL or word in ("none", "off", "unquantised", "unquantized", "no"):
        return Kind(method=None, bits=frozenset())
    if (found := gguf_type(text)) is not None:
        bits = next((int(letter) for letter in found if letter.isdigit()), 0)
        return Kind(method="gguf", bits=frozenset({bits}))
    if (wide := re.fullmatch(r"w(\d{1,2})a\d{1,2}", word)) is not None:
        return Kind(method="int", bits=frozenset({int(wide[1])}))
    told = re.search(r"int([48])", word)
    for start, method, usual in _METHODS:
        if word.startswith(start):
            return Kind(method=method, bits=frozenset([int(told[1])] if told else usual))
    return None


_METHODS: tuple[tuple[str, str, tuple[int, ...]], ...] = (
    ("awq", "awq", (4,)),
    ("gptq", "gptq", (2, 3, 4, 8)),
    ("int4", "int", (4,)),
    ("int8", "int", (8,)),
    ("4-bit", "int", (4,)),
    ("4bit", "int", (4,)),
    ("8-bit", "int", (8,)),
    ("8bit", "int", (8,)),
    ("bitsandbytes", "bnb", (4, 8)),
    ("bnb", "bnb", (4, 8)),
    ("nf4", "bnb", (4,)),
    ("fp8", "fp8", (8,)),
    ("nvfp4", "fp4", (4,)),
    ("mxfp4", "fp4", (4,)),
    ("fp4", "fp4", (4,)),
)
_FLOATING = ("fp8", "fp4")


def _kinds_differ(said: Kind | None, told: Kind | None) -> bool:
    if said is None or told is None:
        return False
    if said.method is None or told.method is None:
        return said.method is not told.method
    methods = {said.method, told.method}
    any_integer = "int" in methods and not methods & set(_FLOATING)
    return not (any_integer or len(methods) == 1) or not said.bits & told.bits


def _gpus_differ(said: str, told: str) -> bool:
    names = [
        {name.upper().replace(" ", "") for name in _GPU.findall(text)} for text in (said, told)
    ]
    return bool(names[0]) and bool(names[1]) and not names[0] & names[1]


def _switch(text: str) -> bool | None:
    word = text.strip().lower()
    return {"on": True, "true": True, "yes": True, "off": False, "false": False, "no": False}.get(
        word
    )
