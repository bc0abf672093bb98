"""``make gpu``: what passes of large models cost by their width, and how fast a real model decodes, on a GPU or this processor.

A pass of random weights costs as much as one of trained weights of the same shape. Results are CSV files in
``data/results/<device>``: ``passes.csv`` by shape, runtime and width, and ``decoding.csv`` by method. Needs torch,
transformers, numpy and numba alone. Each shape is written as soon as it is measured.
"""

from __future__ import annotations

import argparse
import csv
import gc
import json
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from specdec_lib import generate, load_model, paths
from specdec_lib.drafters import PromptLookup
from specdec_lib.experiments.pass_costs import RUNTIMES, step_times
from specdec_lib.models.loading import resolve_device, resolve_dtype
from specdec_lib.report.display import provenance

#: Layers, width, inner width, heads, key-value heads and vocabulary.
SHAPES = {
    "0.35b": (32, 960, 2560, 15, 5, 49152),  # SmolLM2-360M
    "1b": (16, 2048, 8192, 32, 8, 128256),  # Llama-3.2-1B
    "7b": (32, 4096, 11008, 32, 32, 32000),  # Llama-2-7B, Vicuna-7B, CodeLlama-7B
    "13b": (40, 5120, 13824, 40, 40, 32000),  # Llama-2-13B, Vicuna-13B
    "34b": (48, 8192, 22016, 64, 8, 32000),  # CodeLlama-34B
}
WIDTHS = (1, 2, 4, 8, 16, 32, 64, 128)


def random_model(shape: str, device: torch.device, dtype: torch.dtype) -> LlamaForCausalLM:
    """A model of a shape with random weights, made on its device in its type."""
    layers, hidden, inner, heads, key_value, vocabulary = SHAPES[shape]
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=key_value,
        max_position_embeddings=4096,
        attn_implementation="sdpa",
    )
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with device:
            return LlamaForCausalLM(config).eval()
    finally:
        torch.set_default_dtype(before)


def decode(model: Any, tokenizer: Any, prompts: int, tokens: int) -> list[dict[str, Any]]:
    """Tokens a second and tokens a pass of plain decoding and PLD on edits of code, prefill included."""
    lines = (paths.root() / "data" / "prompts" / "code_edits.jsonl").read_text(encoding="utf-8").splitlines()
    texts = [f"{row['instruction']}\n\n{row['text']}\n\n" for row in map(json.loads, lines[: prompts + 1])]
    rows = []
    for method, drafter in (("plain", None), ("PLD", PromptLookup(3, 10))):
        seconds, emitted, after_prefill, passes = 0.0, 0, 0, 0
        for number, text in enumerate(texts):
            ids = tokenizer(text)["input_ids"]
            began = time.perf_counter()
            run = generate(model, ids, drafter, max_new_tokens=tokens)
            if number:  # the first one warms up
                seconds += time.perf_counter() - began
                emitted, passes = emitted + len(run.tokens), passes + len(run.steps)
                after_prefill += len(run.tokens) - 1
        rows.append({"method": method, "tokens_per_s": emitted / seconds, "tokens_per_pass": after_prefill / passes})
    return rows


def write(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write rows as a CSV file, and where they come from next to it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys(), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    path.with_suffix(".json").write_text(json.dumps(provenance.collect(), indent=1) + "\n", encoding="utf-8")
    print(f"written to {path}")


def main(words: Sequence[str]) -> None:
    """Measure the shapes that are asked for, then decode the model."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--shapes", nargs="*", choices=SHAPES, help="default: 7b 13b on a GPU, else 0.35b")
    parser.add_argument("--runtimes", nargs="*", choices=RUNTIMES, help="default: eager graph on a GPU, else eager")
    parser.add_argument("--model", default="smollm2", help="the real model; empty: none (default: %(default)s)")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--context", type=int, default=512, help="tokens before a pass (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=20, help="timed passes of each width (default: %(default)s)")
    parser.add_argument("--prompts", type=int, default=5, help="decoded (default: %(default)s)")
    parser.add_argument("--tokens", type=int, default=128, help="of an answer (default: %(default)s)")
    parser.add_argument("--out", type=Path, help="folder (default: data/results/<device>)")
    options = parser.parse_args(words)
    device = resolve_device(options.device)
    dtype, on_gpu = resolve_dtype(options.dtype, device), device.type == "cuda"
    name = torch.cuda.get_device_name(device) if on_gpu else device.type
    out = options.out or paths.root() / "data" / "results" / re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    rows: list[dict[str, Any]] = []
    for shape in options.shapes if options.shapes is not None else ("7b", "13b") if on_gpu else ("0.35b",):
        model = random_model(shape, device, dtype)
        for runtime in options.runtimes or (("eager", "graph") if on_gpu else ("eager",)):
            timed = step_times(model, options.context, runtime, WIDTHS, options.repeats)
            rows += [{"shape": shape, **row, "ratio": row["ms"] / timed[0]["ms"]} for row in timed]
        write(out / "passes.csv", rows)
        del model
        gc.collect()
    if options.model:
        model, tokenizer = load_model(options.model, options.device, options.dtype)
        write(out / "decoding.csv", decode(model, tokenizer, options.prompts, options.tokens))


if __name__ == "__main__":
    main(sys.argv[1:])
