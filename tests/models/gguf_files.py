"""GGUF files of tiny models, written by the package gguf."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from gguf import MODEL_ARCH_NAMES, GGMLQuantizationType, GGUFWriter, TokenType, get_tensor_name_map, quants
from transformers import PreTrainedModel

Q4_0, Q4_1, Q8_0 = GGMLQuantizationType.Q4_0, GGMLQuantizationType.Q4_1, GGMLQuantizationType.Q8_0


def write(
    model: PreTrainedModel, path: Path, kind: GGMLQuantizationType = Q4_1, ends: GGMLQuantizationType = Q8_0, **changes
) -> Path:
    """A model's weights, of the kind ``kind``, embedding and output layer of ``ends``; ``changes`` replace tensors, or drop them."""
    config, architecture = model.config, model.config.model_type
    architecture = {"mistral": "llama", "gemma3_text": "gemma3"}.get(architecture, architecture)
    arch = next(key for key, name in MODEL_ARCH_NAMES.items() if name == architecture)
    names = get_tensor_name_map(arch, config.num_hidden_layers)
    writer = GGUFWriter(path, architecture)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(
        config.head_dim if getattr(config, "head_dim", None) else config.hidden_size // config.num_attention_heads
    )
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters.get("rope_theta", 10000.0))
    writer.add_vocab_size(config.vocab_size)
    words = ["<s>", "</s>", *(chr(33 + i) for i in range(config.vocab_size - 3)), "!#"]
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(words)
    writer.add_token_types([TokenType.CONTROL] * 2 + [TokenType.NORMAL] * (len(words) - 2))
    writer.add_token_merges(["! #"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    for name, weights in model.named_parameters():
        base, _, last = name.rpartition(".")
        tensor = f"{names.get_name(base)}.{last}"
        values = weights.detach().numpy()
        if architecture == "llama" and ("q_proj" in name or "k_proj" in name):
            heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
            values = values.reshape(heads, 2, -1, values.shape[1]).swapaxes(1, 2).reshape(values.shape)
        if architecture.startswith("gemma") and "norm" in name:
            values = values + 1
        values, of = changes.get(tensor.replace(".", "_"), (values, None))
        if values is None:
            continue
        if of is None:
            of = GGMLQuantizationType.F32 if values.ndim == 1 else ends if "blk" not in tensor else kind
        raw = quants.quantize(np.ascontiguousarray(values, np.float32), of)
        writer.add_tensor(tensor, raw, raw_dtype=of)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
