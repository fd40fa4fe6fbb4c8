"""Make a tiny model, for engines that have to run for real but need not be wise.

    python make_tiny_model.py VARIANT [--hf DIR] [--gguf FILE]

Writes, from one seed and in under a second, a Hugging Face model directory (transformers) and a
GGUF file (llama.cpp; needs the ``gguf`` package). Run by the interpreter of the engine's own
environment.
"""

import argparse
from pathlib import Path

from tiny_files import write_gguf, write_hf
from tiny_model import VARIANTS, make


def main() -> None:
    parser = argparse.ArgumentParser(description="Make a tiny random-weight Llama model.")
    parser.add_argument("variant", choices=sorted(VARIANTS))
    parser.add_argument("--hf", metavar="DIR", type=Path)
    parser.add_argument("--gguf", metavar="FILE", type=Path)
    asked = parser.parse_args()
    model = make(VARIANTS[asked.variant])
    if asked.hf:
        write_hf(model, asked.hf)
    if asked.gguf:
        write_gguf(model, asked.gguf)


if __name__ == "__main__":
    main()
