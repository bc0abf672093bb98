"""Options that several commands have, and how paths are read: expanded, and tried before any work is done."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from specdec_lib import files
from specdec_lib.decoding import checks


def expanded_path(text: str | Path) -> Path:
    """A path whose ``~`` is written out."""
    try:
        return files.named(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def output_file(text: str | Path) -> Path:
    """The path of a file to write, in whose folder, made if it is not there, a file can be made."""
    path = expanded_path(text)
    why = files.cannot_write(path)
    if why:
        raise typer.BadParameter(f"no file can be written at {path} ({why}); name another one")
    return path


def output_folder(text: str | Path) -> Path:
    """The path of a folder to write to, in which, made if it is not there, a file can be made."""
    path = expanded_path(text)
    why = files.cannot_write(path / "file")
    if why:
        raise typer.BadParameter(f"no file can be written in {path} ({why}); name another folder")
    return path


def existing_path(text: str | Path) -> Path:
    """The path of a file or folder that is there."""
    path = expanded_path(text)
    if not path.exists():
        raise typer.BadParameter(f"there is no {path}")
    return path


def whole_number(help: str, least: int = 1, *flags: str) -> Any:
    """An option that is a whole number of ``least`` or more."""

    def read(text: str | int) -> int:
        try:
            number = int(text)
        except ValueError:
            raise typer.BadParameter(f"{text!r} is no whole number") from None
        if number < least:
            raise typer.BadParameter(f"{number}; expected {least} or more")
        return number

    return typer.Option(*flags, parser=read, metavar="N", help=help)


def choice(known: Collection[str], help: str, *flags: str, kind: Any = typer.Option) -> Any:
    """An option, or another kind of parameter, that is one of the known names."""

    def read(text: str) -> str:
        if text not in known:
            raise typer.BadParameter(f"{text!r}; expected one of {', '.join(known)}")
        return text

    return kind(*flags, parser=read, metavar="NAME", help=f"of {', '.join(known)}; {help}")


def folder(help: str) -> Any:
    """An option that is a folder to write to."""
    return typer.Option(parser=output_folder, metavar="FOLDER", help=help)


def one_of(option: str, names: Iterable[str], known: Collection[str]) -> None:
    """Reject a name that is not known."""
    for name in names:
        checks.one_of(option, name, known)


def check_length(option: str, length: int, limit: int) -> None:
    """Reject a length that a model's context has no room for."""
    if length > limit:
        raise ValueError(f"{option} is {length}, the model's context {limit}; expected no more than fits")


OutputFile = typer.Option(parser=output_file, metavar="FILE")
Target = Annotated[str, typer.Option(help="The model: smollm2, pocket, a folder, a GGUF file or a name on the hub.")]
Draft = Annotated[str | None, typer.Option(help="A draft model of the same vocabulary.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, or map: over all GPUs.")]
Dtype = Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")]
Task = Annotated[list[str] | None, typer.Option(help="A task of the book; may be repeated.")]
Source = Annotated[
    list[str] | None, typer.Option(metavar="NAME", help="A method that one tree drafts from; may be repeated.")
]
Store = Annotated[
    Path | None, typer.Option(parser=existing_path, metavar="FOLDER", help="A datastore of this tokenizer.")
]
Prompts = Annotated[int, whole_number("Prompts of each task.")]
NewTokens = Annotated[int, whole_number("Longest answer, in tokens.")]


def hidden_size_and_context(name_or_path: str | Path) -> tuple[int, int]:
    """Two sizes of a model by which options are checked before its weights are read."""
    from specdec_lib.models.loading import load_config

    config = load_config(name_or_path).get_text_config(decoder=True)
    return config.hidden_size, getattr(config, "max_position_embeddings", None) or sys.maxsize
