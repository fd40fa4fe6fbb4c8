"""What is known of hardware and number formats by their names alone; unknown names tell nothing."""

import re
from typing import NamedTuple


class _Gpu(NamedTuple):
    """A GPU's name as a pattern, and the bandwidth of its memory by its data sheet."""

    name: str
    gb_per_s: float


_GPUS = (  # what is said more exactly comes first; a name alone is the fastest that bears it
    _Gpu(r"\bA100\b(?=.*40 ?GB)", 1555),
    _Gpu(r"\bA100\b(?=.*PCI)", 1935),
    _Gpu(r"\bA100\b", 2039),
    _Gpu(r"\bH100\b(?=.*PCI)", 2039),
    _Gpu(r"\bH100\b(?!.*NVL)(?=.*(?:HBM3|SXM))", 3350),
    _Gpu(r"\bH100\b", 3938),
    _Gpu(r"\bH200\b", 4800),
    _Gpu(r"\bB200\b", 8000),
    _Gpu(r"\bL4\b", 300),
    _Gpu(r"\bL40S?\b", 864),
    _Gpu(r"\bA10G?\b", 600),
    _Gpu(r"\bT4\b", 320),
    _Gpu(r"\bV100S\b", 1134),
    _Gpu(r"\bV100\b", 900),
    _Gpu(r"\b(?:RTX ?)?3090 ?Ti\b", 1008),
    _Gpu(r"\b(?:RTX ?)?3090\b", 936),
    _Gpu(r"\b(?:RTX ?)?4090\b", 1008),
    _Gpu(r"\b(?:RTX ?)?5090\b", 1792),
    _Gpu(r"\bMI300X\b", 5300),
)
_OTHER = re.compile(r"(?i)\bMIG\b|laptop|max-q|mobile|,")
"""A slice of a GPU, one with other memory, or several kinds: its name alone tells no bandwidth."""

_COUNT = re.compile(r"(?i)^\s*(\d+)\s*(?:×|x|\*)\s*")

_BITS = (
    re.compile(r"(?<![a-z])w(\d{1,2})a\d"),
    re.compile(r"(?<![a-z])(?:b|nv|mx)?f(?:p|loat)?_?(4|8|16|32)(?!\d)"),
    re.compile(r"(?:(?<![a-z])|gptq-?)int(4|8)(?!\d)"),
    re.compile(r"(?<![a-z])nf(4)(?!\d)"),
    re.compile(r"(?<![a-z])[it]?q(\d)_"),
    re.compile(r"(?<!\d)(4|8)-?bit"),
)
_WORDS = {"awq": 4, "half": 16}


def bandwidth_of(gpu: str) -> float | None:
    """Return bytes per second of one such GPU; None for a name that is not known."""
    name = _COUNT.sub("", gpu)
    if _OTHER.search(name):
        return None
    known = (one.gb_per_s for one in _GPUS if re.search(one.name, name, re.IGNORECASE))
    found = next(known, None)
    return None if found is None else found * 1e9


def count_of(gpu: str) -> int:
    """Return how many GPUs "2 × NVIDIA L4" names; a name without a number is one."""
    found = _COUNT.match(gpu)
    return int(found[1]) if found else 1


def bytes_of_weight(format_: str) -> float | None:
    """Return the bytes of one weight in a data type or quantisation; at least, without its scales.

    None where the word tells no width (gptq, bitsandbytes) or is not known.
    """
    word = format_.lower()
    for pattern in _BITS:
        if found := pattern.search(word):
            return int(found[1]) / 8
    bits = next((bits for name, bits in _WORDS.items() if word.startswith(name)), None)
    return None if bits is None else bits / 8
