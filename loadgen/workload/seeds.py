"""One named seed per random dimension, all derived from the scenario's one seed.

Equal seed and name, equal draws; different names never share a stream. The nonce is no seed: it is
drawn anew for each run and only opens the prompts (see ``synthetic``).
"""

import hashlib

import numpy as np


def derive(seed: int, name: str, *parts: int) -> np.random.SeedSequence:
    """Return the seed of one dimension ("lengths", "words", …), and of one part of it.

    Hashed, not listed: numpy pads a list of numbers with zeros, so that (7, 0) would equal (7,).
    """
    text = "/".join([str(seed), name, *map(str, parts)])
    return np.random.SeedSequence(int.from_bytes(hashlib.sha256(text.encode()).digest()[:16]))
