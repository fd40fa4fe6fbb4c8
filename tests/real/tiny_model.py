"""A tiny random-weight Llama model: its plan, its tokenizer, its weights.

Hidden dimension 0 of the residual stream is a constant: every embedding row holds the same large
value there and no layer writes to it, so the head can give any token a fixed logit offset. That
keeps the end of the answer, and unprintable bytes, from ever being sampled, or gives a token a
chosen chance (at temperature 1).
"""

import json
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[np.float32]]

TEXT = (
    "the quick brown fox jumps over the lazy dog and then the other dog runs after the fox in the "
    "field where there are many trees and the river bends near the old stone bridge that leads to "
    "the town and its market with bread and fish and fruit for all of the people who live there "
    "when a server answers a request it sends tokens one after another and the client measures the "
    "time to the first token and the time between tokens and the total time of the whole answer "
    "user assistant system hello world how are you what is this please tell me more about that "
)
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MARKERS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
NEWLINE = chr(256 + 10)  # the byte 10 in the printable alphabet of byte-level BPE

EPSILON, THETA = 1e-5, 10000.0
CONSTANT, SPREAD = 4.0, 0.25  # of an embedding row: dimension 0, and the others
NEVER = -30.0  # a logit offset that is never sampled


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is made; the chances are per token.

    words: so many of the words that prompts are made of are one token each, alone and after a
        space, as all of them are in the vocabularies of large models. 0: none but by chance.
    """

    seed: int = 1
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    ffn: int = 256
    context: int = 4096
    merges: int = 249
    end_p: float = 0.0
    think_end_p: float = 0.0  # above 0: the template opens <think>
    tool_p: float = 0.0
    words: int = 0
    raw_bytes: bool = False  # let bytes of 0x80 and above be sampled: split and invalid UTF-8

    @property
    def hidden(self) -> int:
        return self.heads * self.head_dim


VARIANTS = {
    "tiny": Plan(),
    "tiny-eos": Plan(end_p=0.05),
    "tiny-think": Plan(end_p=0.03, think_end_p=0.15),
    "tiny-tool": Plan(end_p=0.2, tool_p=0.3),
    "tiny-bytes": Plan(raw_bytes=True),
    "tiny-words": Plan(words=2818),
    "tiny-some-words": Plan(words=600),
    "steady": Plan(layers=8, heads=8, kv_heads=2, head_dim=64, ffn=1408),  # slower: a few ms/token
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """Everything both formats need. ``tensors`` are named as in a Hugging Face checkpoint."""

    plan: Plan
    tokens: list[str]
    merges: list[tuple[str, str]]
    template: str
    tensors: dict[str, Array]

    def token_id(self, token: str) -> int:
        return self.tokens.index(token)


def make(plan: Plan) -> Model:
    """Draw a model; equal plans give equal models."""
    merges = learn_merges(plan.merges)
    known = [*alphabet().values(), *(a + b for a, b in merges), *whole_words(plan.words)]
    pieces = list(dict.fromkeys(known))
    tokens = [*pieces, *SPECIAL, *MARKERS]
    rng = np.random.default_rng(plan.seed)
    size, hidden = len(tokens), plan.hidden
    embedding = draw(rng, (size, hidden), SPREAD)
    embedding[:, 0] = CONSTANT
    tensors = {
        "model.embed_tokens.weight": embedding,
        "model.norm.weight": np.ones(hidden, np.float32),
        "lm_head.weight": head(rng, plan, tokens),
    }
    for number in range(plan.layers):
        tensors |= layer(rng, plan, f"model.layers.{number}.")
    template = chat_template(thinking=plan.think_end_p > 0)
    return Model(plan=plan, tokens=tokens, merges=merges, template=template, tensors=tensors)


# --- the tokenizer


def alphabet() -> dict[int, str]:
    """Return the printable character of each byte, as byte-level BPE has had it since GPT-2."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    found, unprintable = {}, 0
    for byte in range(256):
        if byte in printable:
            found[byte] = chr(byte)
        else:
            found[byte] = chr(256 + unprintable)
            unprintable += 1
    return found


def whole_words(number: int) -> list[str]:
    """Return evenly spread words of the list, each alone and after a space.

    No merge leads to them: a tokenizer that ignores merges for whole words (Llama 3's) finds them.
    """
    if not number:
        return []
    path = Path(__file__).parents[2] / "loadgen" / "workload" / "words.json"
    words = json.loads(path.read_text("utf-8"))
    chosen = words[:: max(1, len(words) // number)]
    return [form for word in chosen for form in (alphabet()[32] + word, word)]


def learn_merges(wanted: int) -> list[tuple[str, str]]:
    """Learn byte pair merges from the sample text: the most frequent neighbours first."""
    spelled = alphabet()
    words: Counter[tuple[str, ...]] = Counter()
    for word in TEXT.split():
        for form in (" " + word, word):
            words[tuple(spelled[byte] for byte in form.encode())] += 1
    merges: list[tuple[str, str]] = []
    while len(merges) < wanted:
        pairs: Counter[tuple[str, str]] = Counter()
        for word_pieces, times in words.items():
            for pair in pairwise(word_pieces):
                pairs[pair] += times
        if not pairs:
            break
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        merges.append(best)
        words = Counter({joined(word_pieces, best): n for word_pieces, n in words.items()})
    return merges


def joined(pieces: tuple[str, ...], pair: tuple[str, str]) -> tuple[str, ...]:
    out: list[str] = []
    position = 0
    while position < len(pieces):
        if pieces[position : position + 2] == pair:
            out.append(pair[0] + pair[1])
            position += 2
        else:
            out.append(pieces[position])
            position += 1
    return tuple(out)


def chat_template(*, thinking: bool) -> str:
    """Return a ChatML template; with ``thinking`` the answer starts inside <think>."""
    told = ""
    opening = ""
    if thinking:
        told = (
            "{%- if m.reasoning_content is string and m.reasoning_content %}"
            "{{- '<think>\\n' + m.reasoning_content + '\\n</think>\\n\\n' }}{%- endif %}"
        )
        opening = (
            "{%- if enable_thinking is not defined or enable_thinking %}{{- '<think>\\n' }}"
            "{%- else %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}"
        )
    return _TEMPLATE.replace("%TOLD%", told).replace("%OPENING%", opening)


_TEMPLATE = "".join(
    (
        "{%- if tools %}{{- '<|im_start|>system\\n' }}",
        "{%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}",
        "{{- '# Tools\\n\\n<tools>' }}",
        "{%- for t in tools %}{{- '\\n' + (t | tojson) }}{%- endfor %}",
        "{{- '\\n</tools>\\n\\nFor each call:\\n<tool_call>\\n",
        '{"name": <name>, "arguments": <json>}\\n</tool_call><|im_end|>\\n\' }}',
        "{%- elif messages and messages[0].role == 'system' %}",
        "{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}{%- endif %}",
        "{%- for m in messages %}{%- if m.content is string %}{%- set text = m.content %}",
        "{%- else %}{%- set text = '' %}{%- endif %}",
        "{%- if m.role == 'user' or (m.role == 'system' and not loop.first) %}",
        "{{- '<|im_start|>' + m.role + '\\n' + text + '<|im_end|>\\n' }}",
        "{%- elif m.role == 'assistant' %}{{- '<|im_start|>assistant\\n' }}%TOLD%{{- text }}",
        "{%- if m.tool_calls %}{%- for tc in m.tool_calls %}",
        "{%- if (loop.first and text) or (not loop.first) %}{{- '\\n' }}{%- endif %}",
        "{%- if tc.function %}{%- set tc = tc.function %}{%- endif %}",
        '{{- \'<tool_call>\\n{"name": "\' }}{{- tc.name }}{{- \'", "arguments": \' }}',
        "{%- if tc.arguments is string %}{{- tc.arguments }}",
        "{%- else %}{{- tc.arguments | tojson }}{%- endif %}",
        "{{- '}\\n</tool_call>' }}{%- endfor %}{%- endif %}",
        "{{- '<|im_end|>\\n' }}",
        "{%- elif m.role == 'tool' %}",
        "{{- '<|im_start|>user\\n<tool_response>\\n' + text",
        " + '\\n</tool_response><|im_end|>\\n' }}{%- endif %}{%- endfor %}",
        "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}%OPENING%{%- endif %}",
    )
)


# --- the weights


def draw(rng: np.random.Generator, shape: tuple[int, int], spread: float) -> Array:
    return (rng.standard_normal(shape) * spread).astype(np.float32)


def head(rng: np.random.Generator, plan: Plan, tokens: list[str]) -> Array:
    """Return the output layer, whose column 0 holds each token's logit offset."""
    hidden, scale = plan.hidden, 0.2
    # Mean square of the last hidden state, a rough estimate: what the final norm divides by.
    norm = np.sqrt((CONSTANT**2 + (hidden - 1) * SPREAD**2 * 1.5) / hidden)
    offset = offsets(plan, tokens)
    live = int((offset == 0).sum())
    variance = (hidden - 1) * (scale * SPREAD * np.sqrt(1.5) / norm) ** 2
    others = np.log(live) + variance / 2  # log of the summed weights of all ordinary tokens
    weights = draw(rng, (len(tokens), hidden), scale)
    weights[:, 0] = 0
    chances = {
        "<|im_end|>": plan.end_p,
        "</think>": plan.think_end_p,
        "<tool_call>": plan.tool_p,
        NEWLINE: plan.tool_p,
    }
    for token, chance in chances.items():
        if chance > 0:
            weights[tokens.index(token)] = 0
            offset[tokens.index(token)] = others + np.log(chance / (1 - chance))
    weights[offset == NEVER] = 0
    weights[:, 0] = offset / (CONSTANT / norm)
    return weights


def offsets(plan: Plan, tokens: list[str]) -> Array:
    """Return 0 for tokens of printable text, ``NEVER`` for all others."""
    byte_of = {character: byte for byte, character in alphabet().items()}
    highest = 255 if plan.raw_bytes else 127
    found = np.full(len(tokens), NEVER, np.float32)
    for position, token in enumerate(tokens[: len(tokens) - len(SPECIAL) - len(MARKERS)]):
        spelled = [byte_of[character] for character in token]
        if all(32 <= byte <= highest and byte != 127 for byte in spelled):
            found[position] = 0
    return found


def layer(rng: np.random.Generator, plan: Plan, prefix: str) -> dict[str, Array]:
    """Draw one layer. Nothing writes to dimension 0, and nothing but the head reads it."""
    hidden, ffn, kv = plan.hidden, plan.ffn, plan.kv_heads * plan.head_dim
    scale = 1 / np.sqrt(hidden)
    made = {
        "self_attn.q_proj.weight": draw(rng, (hidden, hidden), scale),
        "self_attn.k_proj.weight": draw(rng, (kv, hidden), scale),
        "self_attn.v_proj.weight": draw(rng, (kv, hidden), scale),
        "self_attn.o_proj.weight": draw(rng, (hidden, hidden), scale / 2),
        "mlp.gate_proj.weight": draw(rng, (ffn, hidden), scale),
        "mlp.up_proj.weight": draw(rng, (ffn, hidden), scale),
        "mlp.down_proj.weight": draw(rng, (hidden, ffn), 0.5 / np.sqrt(ffn)),
    }
    for name, weights in made.items():
        if "o_proj" in name or "down_proj" in name:
            weights[0] = 0
        else:
            weights[:, 0] = 0
    for norm in ("input_layernorm", "post_attention_layernorm"):
        made[f"{norm}.weight"] = np.ones(hidden, np.float32)
    return {prefix + name: weights for name, weights in made.items()}
