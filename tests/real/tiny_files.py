"""A tiny model as files: a Hugging Face directory, and the GGUF of llama.cpp."""

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
from tiny_model import EPSILON, MARKERS, SPECIAL, THETA, Array, Model, Plan

# --- Hugging Face


def write_hf(model: Model, directory: Path) -> None:
    """Write a model directory: weights, configuration, tokenizer, template."""
    directory.mkdir(parents=True, exist_ok=True)
    write_safetensors(model.tensors, directory / "model.safetensors")
    files: dict[str, object] = {
        "config.json": hf_config(model),
        "generation_config.json": hf_generation(model),
        "tokenizer.json": hf_tokenizer(model),
        "tokenizer_config.json": hf_tokenizer_config(model),
    }
    for name, value in files.items():
        (directory / name).write_text(json.dumps(value, indent=1, ensure_ascii=False), "utf-8")
    (directory / "chat_template.jinja").write_text(model.template, "utf-8")


def write_safetensors(tensors: dict[str, Array], path: Path) -> None:
    """Write tensors: header length (8 bytes), JSON header, padded to 8, then the data."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    blobs, offset = [], 0
    for name, weights in tensors.items():
        blob = weights.tobytes()
        place = [offset, offset + len(blob)]
        header[name] = {"dtype": "F32", "shape": list(weights.shape), "data_offsets": place}
        blobs.append(blob)
        offset += len(blob)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(b"".join((struct.pack("<Q", len(text)), text, *blobs)))


def hf_config(model: Model) -> dict[str, object]:
    plan = model.plan
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": plan.hidden,
        "intermediate_size": plan.ffn,
        "num_hidden_layers": plan.layers,
        "num_attention_heads": plan.heads,
        "num_key_value_heads": plan.kv_heads,
        "head_dim": plan.head_dim,
        "max_position_embeddings": plan.context,
        "rms_norm_eps": EPSILON,
        "rope_theta": THETA,
        "vocab_size": len(model.tokens),
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": model.token_id("<|endoftext|>"),
        "eos_token_id": model.token_id("<|im_end|>"),
        "torch_dtype": "float32",
        "use_cache": True,
    }


def hf_generation(model: Model) -> dict[str, object]:
    end_of_text, end = model.token_id("<|endoftext|>"), model.token_id("<|im_end|>")
    return {
        "bos_token_id": end_of_text,
        "eos_token_id": [end, end_of_text],
        "pad_token_id": end_of_text,
        "do_sample": True,
        "temperature": 1.0,
    }


def hf_tokenizer(model: Model) -> dict[str, object]:
    byte_level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": True,
    }
    pieces = [token for token in model.tokens if token not in (*SPECIAL, *MARKERS)]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added_tokens(model),
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": byte_level,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": model.plan.words > 0,
            "vocab": {piece: number for number, piece in enumerate(pieces)},
            "merges": [list(pair) for pair in model.merges],
        },
    }


def hf_tokenizer_config(model: Model) -> dict[str, object]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": model.plan.context,
        "bos_token": "<|endoftext|>",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
        "chat_template": model.template,
        "added_tokens_decoder": {
            str(token["id"]): {key: value for key, value in token.items() if key != "id"}
            for token in added_tokens(model)
        },
    }


def added_tokens(model: Model) -> list[dict[str, object]]:
    same = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return [
        {"id": model.token_id(token), "content": token, **same, "special": token in SPECIAL}
        for token in (*SPECIAL, *MARKERS)
    ]


# --- GGUF


def write_gguf(model: Model, path: Path) -> None:
    """Write the model as llama.cpp reads it."""
    import gguf  # type: ignore[import-not-found]

    plan = model.plan
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_name("tiny-llama")
    writer.add_context_length(plan.context)
    writer.add_embedding_length(plan.hidden)
    writer.add_block_count(plan.layers)
    writer.add_feed_forward_length(plan.ffn)
    writer.add_head_count(plan.heads)
    writer.add_head_count_kv(plan.kv_heads)
    writer.add_layer_norm_rms_eps(EPSILON)
    writer.add_rope_freq_base(THETA)
    writer.add_rope_dimension_count(plan.head_dim)
    writer.add_vocab_size(len(model.tokens))
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    add_gguf_tokenizer(model, writer, gguf.TokenType)
    for name, weights in model.tensors.items():
        writer.add_tensor(gguf_name(name), gguf_layout(name, weights, plan))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_gguf_tokenizer(model: Model, writer: Any, kinds: Any) -> None:
    special = dict.fromkeys(SPECIAL, kinds.CONTROL) | dict.fromkeys(MARKERS, kinds.USER_DEFINED)
    writer.add_tokenizer_model("gpt2")
    # Llama 3's takes a whole word for one token wherever it is in the vocabulary.
    writer.add_tokenizer_pre("llama-bpe" if model.plan.words else "gpt-2")
    writer.add_token_list(model.tokens)
    writer.add_token_types([special.get(token, kinds.NORMAL) for token in model.tokens])
    writer.add_token_merges([" ".join(pair) for pair in model.merges])
    writer.add_bos_token_id(model.token_id("<|endoftext|>"))
    writer.add_eos_token_id(model.token_id("<|im_end|>"))
    writer.add_pad_token_id(model.token_id("<|endoftext|>"))
    writer.add_add_bos_token(False)
    writer.add_chat_template(model.template)


_GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "model.layers": "blk",
}


def gguf_name(name: str) -> str:
    for theirs, ours in _GGUF_NAMES.items():
        name = name.replace(theirs, ours)
    return name


def gguf_layout(name: str, weights: Array, plan: Plan) -> Array:
    """Return the rows as llama.cpp has them: rotary pairs beside each other, not in two halves."""
    heads = plan.heads if "q_proj" in name else plan.kv_heads if "k_proj" in name else None
    if heads is None:
        return weights
    halves = weights.reshape(heads, 2, weights.shape[0] // heads // 2, weights.shape[1])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(weights.shape))
