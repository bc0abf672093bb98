"""Models in GGUF files, the format of llama.cpp: weights of fewer bits, which transformers turns back into floats."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from specdec_lib.decoding.served_models import UnsupportedModel


def read(path: Path, dtype: torch.dtype | str, **options) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The model and the tokenizer of a GGUF file; UnsupportedModel if transformers cannot read it."""
    if not path.is_file():
        raise FileNotFoundError(f"no model at {path}: expected a GGUF file")
    if importlib.util.find_spec("gguf") is None:
        raise ImportError(f"{path.name} is a GGUF file, which needs the package gguf: pip install gguf")
    with path.open("rb") as file:
        magic = file.read(4)
    if magic != b"GGUF":
        raise UnsupportedModel(f"{path} is no GGUF file: it begins with {magic!r}, not b'GGUF'")
    try:
        tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
        model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=dtype, **options)
    except Exception as error:  # each reader of the file raises its own
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UnsupportedModel(f"transformers cannot read {path.name}: {reason}") from error
    return model, tokenizer


def described(path: Path):
    """Placeholder: configuration and tokenizer of a file."""
    from transformers import AutoConfig

    if not path.is_file():
        raise FileNotFoundError(f"no model at {path}: expected a GGUF file")
    from specdec_lib.models.gguf_tensors import GGUF

    GGUF(path)
    return (
        AutoConfig.from_pretrained(path.parent, gguf_file=path.name),
        AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name),
    )
