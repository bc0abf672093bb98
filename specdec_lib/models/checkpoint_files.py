"""Files of a checkpoint that are not what their names say: pointers of Git LFS, pages of an error, weights that were cut off."""

from __future__ import annotations

import json
from pathlib import Path

#: What tokenizers and configurations are read from, and weights: of the latter those that come first.
_TEXTS = (
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
    "added_tokens.json", "vocab.json", "merges.txt", "vocab.txt", "chat_template.jinja",
)  # fmt: skip
_WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")


def check_files(folder: str | Path, weights: bool = True) -> None:
    """Look at the files of a local checkpoint before a library reads them.

    Files that are not read, such as weights in another format, may be pointers.

    Parameters
    ----------
    folder : path
        What is no folder is not looked at.
    weights : bool
        Whether to look at weights too.

    Raises
    ------
    ValueError
        Names the first file that is not what its name says.

    Examples
    --------
    >>> from specdec_lib.models.checkpoint_files import check_files
    >>> from specdec_lib.models.loading import model_location
    >>> check_files(model_location("pocket"))
    """
    folder = Path(folder)
    if not folder.is_dir():
        return
    read = [folder / name for name in _TEXTS if (folder / name).is_file()]
    if not (folder / "tokenizer.json").is_file():
        read += folder.glob("*.model")
    first = next((folder / name for name in _WEIGHTS if (folder / name).is_file()), None)
    for path in [*read, *([first] if weights and first else [])]:
        check_file(path)
    if weights and first and first.name.endswith(".index.json"):
        try:
            parts = sorted(set(json.loads(first.read_text(encoding="utf-8"))["weight_map"].values()))
            if not all(Path(name).name == name for name in parts):
                raise TypeError("a file of weights that lies elsewhere")
        except (KeyError, TypeError, AttributeError):
            raise ValueError(f"{first} lists no weights; fetch the checkpoint again") from None
        missing = [name for name in parts if not (folder / name).is_file()]
        if missing:
            raise ValueError(
                f"{folder} lacks {missing[0]}, {len(missing)} of {len(parts)} files of weights; fetch it again"
            )
        for name in parts:
            check_file(folder / name)


def check_file(path: Path) -> None:
    """Look at one file of a checkpoint.

    Parameters
    ----------
    path : Path

    Raises
    ------
    ValueError
        If it is a pointer, a page, empty, no JSON where its name says so, or weights without their end.

    Examples
    --------
    >>> from specdec_lib.models.checkpoint_files import check_file
    >>> page = folder / "config.json"
    >>> size = page.write_text("<!doctype html><title>Not found</title>")
    >>> check_file(page)
    Traceback (most recent call last):
        ...
    ValueError: ...config.json is a page of HTML, an error of the server say, not the file itself: fetch it again
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        begins = file.read(64)
        if begins.startswith(b"version https://git-lfs.github.com/"):
            raise ValueError(
                f"{path} is a pointer of Git LFS, not the file itself: run 'git lfs pull' in its repository"
            )
        if begins.lstrip().lower().startswith((b"<!doctype html", b"<html")):
            raise ValueError(
                f"{path} is a page of HTML, an error of the server say, not the file itself: fetch it again"
            )
        if not size and path.suffix != ".txt":
            raise ValueError(f"{path} is empty; fetch it again")
        if path.suffix == ".safetensors":
            _check_safetensors(path, file, size)
        elif path.suffix == ".json":
            file.seek(0)
            try:
                json.loads(file.read())
            except (ValueError, RecursionError) as error:
                raise ValueError(f"{path} is no JSON ({error}); fetch it again") from None


def _check_safetensors(path: Path, file, size: int) -> None:
    """The header of 8 bytes and JSON says where each tensor ends: the file ends with the last one."""
    file.seek(0)
    length = int.from_bytes(file.read(8), "little")
    if size < 8 or length > size - 8:
        raise ValueError(f"{path} was cut off within its header, or holds no weights in safetensors; fetch it again")
    try:
        tensors = [about for name, about in json.loads(file.read(length)).items() if name != "__metadata__"]
        end = 8 + length + max((about["data_offsets"][1] for about in tensors), default=0)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise ValueError(f"{path} has a damaged header ({error}); fetch it again") from None
    if end != size:
        what = "was cut off" if size < end else "is damaged"
        raise ValueError(f"{path} {what}: it has {size:,} bytes, its header describes {end:,}; fetch it again")
