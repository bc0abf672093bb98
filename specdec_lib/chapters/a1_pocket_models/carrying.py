"""A training under way carried between machines: checkpoints in pieces, and the training text in one compressed file.

What passes from one machine to another is often limited in the size of a file, and in the time that a machine is lent
for. A run ends after a checkpoint (``pocket --seconds``), whose pieces are all that the next machine needs to go on,
or, after the last step, to write the weights.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import lzma
import zipfile
from pathlib import Path

import numpy as np

from specdec_lib.files import replacing

#: Bytes of the largest piece.
PIECE_BYTES = 15_000_000
_INDEX = ".pieces.json"
_TOKENS = "<u2"


def split(file: Path, folder: Path, size: int = PIECE_BYTES) -> list[Path]:
    """Write a file in pieces into ``folder``, instead of an earlier version's.

    The index with the checksums is written last: if this is stopped, the earlier version is there whole.

    Parameters
    ----------
    file : Path
    folder : Path
    size : int
        Bytes of a piece at most.

    Returns
    -------
    list of Path
    """
    if size < 1:
        raise ValueError(f"size is {size}; expected 1 or more bytes")
    folder.mkdir(parents=True, exist_ok=True)
    content = file.read_bytes()
    whole = hashlib.sha256(content).hexdigest()
    index, pieces = {"name": file.name, "bytes": len(content), "sha256": whole, "pieces": []}, []
    for number, start in enumerate(range(0, len(content), size)):
        part = content[start : start + size]
        # Named after its version, so that it takes no place of an earlier one's.
        pieces.append(folder / f"{file.name}.{whole[:8]}.{number:03d}")
        with replacing(pieces[-1]) as aside:
            aside.write_bytes(part)
        index["pieces"].append({"name": pieces[-1].name, "sha256": hashlib.sha256(part).hexdigest()})
    with replacing(folder / (file.name + _INDEX)) as aside:
        aside.write_text(json.dumps(index, indent=1) + "\n")
    for old in folder.glob(f"{file.name}.*.[0-9][0-9][0-9]"):
        if old not in pieces:
            old.unlink()
    return pieces


def join(folder: Path, target: Path) -> bool:
    """Put the file ``target`` together from its pieces in ``folder``; whether there were any.

    Raises
    ------
    ValueError
        If a piece is missing or is not the one that was written.
    """
    path = folder / (target.name + _INDEX)
    if not path.exists():
        return False
    index = json.loads(path.read_text())
    content = []
    for piece in index["pieces"]:
        file = folder / piece["name"]
        if not file.exists():
            raise ValueError(
                f"{file} is missing; expected {len(index['pieces'])} pieces of {target.name}: copy them all"
            )
        content.append(file.read_bytes())
        if hashlib.sha256(content[-1]).hexdigest() != piece["sha256"]:
            raise ValueError(f"{file} is damaged: its checksum is not that in {path.name}; copy it again")
    whole = b"".join(content)
    if hashlib.sha256(whole).hexdigest() != index["sha256"]:
        raise ValueError(f"the pieces of {target.name} in {folder} are not in the order in which they were written")
    target.parent.mkdir(parents=True, exist_ok=True)
    with replacing(target) as aside:
        aside.write_bytes(whole)
    return True


def compact(folder: Path, tokens: int, file: Path) -> int:
    """Write the first ``tokens`` of a prepared text, its held-out texts and snippet modules into one compressed file.

    Tokens keep 16 bits each: LZMA makes half a byte a token of them, and a third more of tokens packed to 12 bits,
    whose repetitions begin within bytes.

    Parameters
    ----------
    folder : Path
        What ``make pocket-data`` prepared.
    tokens : int
        Of the training text; more than it has is all of it.
    file : Path

    Returns
    -------
    int
        Bytes of the file.

    Raises
    ------
    FileNotFoundError
        If the text was not prepared.
    ValueError
        If ``tokens`` is below 1.
    """
    if tokens < 1:
        raise ValueError(f"tokens is {tokens}; expected 1 or more")
    if not (folder / "corpus.json").is_file():
        raise FileNotFoundError(f"{folder} holds no prepared corpus; run make pocket-data")
    story = json.loads((folder / "corpus.json").read_text())
    stream = np.load(folder / "stream.npy", mmap_mode="r")[:tokens]
    if len(stream) < story["tokens"]:
        # Another text, to which no checkpoint of the whole one belongs.
        cut = hashlib.sha256(stream.tobytes()).hexdigest()[:16]
        story |= {"tokens": len(stream), "fingerprint": cut, "cut_from": story["fingerprint"]}
    with replacing(file) as aside, zipfile.ZipFile(aside, "w") as archive:
        archive.writestr("corpus.json", json.dumps(story, indent=1) + "\n")
        arrays = {"stream": stream} | {
            f"heldout-{name}": np.load(folder / f"heldout-{name}.npy", mmap_mode="r")
            for name in story["heldout_tokens"]
        }
        for name, array in arrays.items():
            archive.writestr(f"{name}.xz", lzma.compress(np.asarray(array, _TOKENS).tobytes()))
        snippets = gzip.decompress((folder / "snippet_modules.json.gz").read_bytes())
        archive.writestr("snippet_modules.xz", lzma.compress(snippets))
    return file.stat().st_size


def unpack(file: Path, folder: Path) -> Path:
    """Lay out a file of :func:`compact` in ``folder``, as a prepared text, unless it lies there already; the folder.

    Raises
    ------
    ValueError
        If the file is none of :func:`compact`, or the tokens are not those that were written.
    """
    try:
        archive = zipfile.ZipFile(file)
        story = json.loads(archive.read("corpus.json"))
    except (zipfile.BadZipFile, KeyError) as error:
        raise ValueError(f"{file} is no training text; expected a file of pocket-data --compact, or the folder that "
                         "make pocket-data prepared") from error  # fmt: skip
    there = folder / "corpus.json"
    if there.exists() and json.loads(there.read_text())["fingerprint"] == story["fingerprint"]:
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    there.unlink(missing_ok=True)
    with archive:
        for name in ("stream", *(f"heldout-{name}" for name in story["heldout_tokens"])):
            array = np.frombuffer(lzma.decompress(archive.read(f"{name}.xz")), _TOKENS).astype(np.uint16)
            if name == "stream" and hashlib.sha256(array.tobytes()).hexdigest()[:16] != story["fingerprint"]:
                raise ValueError(f"{file} is damaged: its tokens are not those that it was made from; copy it again")
            with replacing(folder / f"{name}.npy") as aside, aside.open("wb") as out:
                np.save(out, array)
        with replacing(folder / "snippet_modules.json.gz") as aside:
            aside.write_bytes(gzip.compress(lzma.decompress(archive.read("snippet_modules.xz")), 3))
    # Last: a folder with it is whole.
    with replacing(there) as aside:
        aside.write_text(json.dumps(story, indent=1) + "\n")
    return folder
