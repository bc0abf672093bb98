"""What is to be run: notebooks, their parameters, and the key that tells whether anything changed."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import nbformat

from specdec_lib import files, paths
from specdec_lib.models import smollm2
from specdec_lib.report import params
from specdec_lib.report.display import provenance
from specdec_lib.report.params import UsageError

#: Key of a copy's metadata: where it comes from.
METADATA = "specdec"
NAME = re.compile(r"(?P<id>\d\d)_[a-z0-9_]+")


@dataclass(frozen=True)
class Job:
    """One notebook with the parameters of the command line; the rest are the notebook's own, those of the published run.

    ``target`` names the model that it decodes, None without such a parameter; ``overrides`` are the words of the command line
    that belong to it, for the command that repeats the run.
    """

    path: Path
    given: Mapping[str, Any]
    target: Any
    overrides: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The file's name without suffix."""
        return self.path.stem

    @property
    def id(self) -> str:
        """The first part of the name: a number."""
        return self.name.split("_", 1)[0]

    @cached_property
    def source(self) -> nbformat.NotebookNode:
        """The source notebook."""
        return nbformat.read(str(self.path), as_version=4)

    @property
    def command(self) -> str:
        """The command that repeats this run alone."""
        words = [f"python -m specdec_lib run --only {self.id}"]
        return " ".join([*words, *(f"-p {shlex.quote(f'{self.id}.{text}')}" for text in self.overrides)])

    def key(self, surroundings: str) -> str:
        """Return the checksum of everything that can change an output of this run; ``surroundings`` are those of all notebooks."""
        code = [cell.source for cell in self.source.cells if cell.cell_type == "code"]
        text = json.dumps([code, dict(self.given), surroundings], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


def surroundings() -> str:
    """Return the checksum of the library, the project's data, the versions, the device and the data sets.

    The data sets count by name and size: reading them whole would take longer than a small notebook.
    """
    datasets = paths.datasets_root()
    listing = (
        sorted((str(path.relative_to(datasets)), path.stat().st_size) for path in datasets.rglob("*") if path.is_file())
        if datasets
        else None
    )
    facts = [
        files.tree_digest(paths.PACKAGE),
        files.tree_digest(paths.DATA),
        provenance.versions(),
        provenance.device_class(),
        listing,
    ]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def find_notebooks(folder: Path, only: Sequence[str] = ()) -> list[Path]:
    """Return the notebooks of a folder in order, or those that ``only`` names by number or by name."""
    notebooks = sorted(folder.glob("*.ipynb"))
    if not notebooks:
        raise UsageError(f"there is no notebook in {folder}")
    names = {key: path for path in notebooks for key in (path.stem.split("_", 1)[0], path.stem, path.name)}
    for wanted in only:
        if wanted not in names:
            raise UsageError(f"no notebook {wanted!r}: {', '.join(path.stem for path in notebooks)}")
    return [path for path in notebooks if path in {names[wanted] for wanted in only}] if only else notebooks


def parse_overrides(words: Sequence[str], notebooks: Sequence[Path]) -> dict[str, dict[str, str]]:
    """Split ``01.name=value`` of the command line; returns the texts by name of notebook and parameter."""
    names = {key: path.stem for path in notebooks for key in (path.stem.split("_", 1)[0], path.stem)}
    texts: dict[str, dict[str, str]] = {}
    for word in words:
        match = re.fullmatch(r"(?P<notebook>\w+)\.(?P<name>\w+)=(?P<value>.*)", word, re.DOTALL)
        if not match:
            raise UsageError(f"-p {word!r}: '01.name=value' is expected")
        if match["notebook"] not in names:
            raise UsageError(f"-p {word!r}: no notebook {match['notebook']!r} in this run: {', '.join(sorted(names))}")
        texts.setdefault(names[match["notebook"]], {})[match["name"]] = match["value"]
    return texts


def make_plan(only: Sequence[str] = (), overrides: Sequence[str] = (), notebooks: Path | None = None) -> list[Job]:
    """Return the jobs of a run with all parameters checked, before anything is executed.

    ``only`` names notebooks by number or name (all when empty), ``overrides`` read ``01.name=value``. UsageError names what does
    not fit.
    """
    folder = notebooks or paths.root() / "notebooks"
    chosen = find_notebooks(folder, only)
    texts = parse_overrides(overrides, chosen)
    jobs = []
    for path in chosen:
        declared = params.declared_parameters(path)
        given: dict[str, Any] = {}
        asked = {params.current_name(name, declared): text for name, text in texts.get(path.stem, {}).items()}
        for name, text in asked.items():
            if name not in declared:
                raise UsageError(params.unknown_message(name, declared, path.stem))
            given[name] = params.parse_value(text, declared[name])
        words = tuple(f"{name}={text}" for name, text in asked.items())
        given = params.validate(given, declared, path.stem)
        for name in _MODELS & asked.keys():
            given[name] = _absolute(given[name])
        target = given.get("target", declared["target"].default if "target" in declared else None)
        jobs.append(Job(path, given, target, words))
    return jobs


#: Parameters that name a model, which may be a folder or a file.
_MODELS = {"target", "draft"}


def _absolute(model: str) -> str:
    """A model's name; a folder or file of the working directory, which is not the kernel's, as an absolute path."""
    from specdec_lib.models import loading  # seconds, which most runs do not need

    if model == smollm2.NAME or model in loading.SHIPPED:
        return model
    path = files.named(model)
    place = os.path.abspath(path) if path.exists() else model
    loading.model_location(place)  # a path that is not there is rejected before anything is run
    return place


def strip_ansi(text: str) -> str:
    """The text without the escape sequences of a terminal."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
