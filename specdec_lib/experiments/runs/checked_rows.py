"""The committed rows of ``data/rows``, of which every build makes a sample again and compares it.

evidence = report.evidence("01", target=model, draft=small)
runs = evidence.rows("greedy", make, prompts)     # make(prompts) gives a frame, as results.table does
evidence.outcomes                                 # how many rows were made again, and how many of them were equal

Counts do not depend on the machine, up to rounding, so that rows are made once, by ``python -m specdec_lib rows``.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import random
import secrets
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from transformers import PreTrainedModel

from specdec_lib import files, paths
from specdec_lib.datastores.dense import DenseIndex
from specdec_lib.experiments.data.prompt import Prompt
from specdec_lib.experiments.runs import recordings, row_files
from specdec_lib.models.fingerprint import fingerprint

#: Names the rows that a run makes and writes, with spaces between: those of a chapter, ``01``, or one file of it, ``01/greedy``.
MAKE = "SPECDEC_ROWS"
#: Seconds of an experiment, beyond which no further prompt is made again.
SECONDS = 1.0
#: Prompts that are made before what is finished is written down.
PIECE = 8
#: A relative change of each weight and score, of the size of float32's rounding, and how often another one is tried.
ROUNDING, DRAWS = 2.0**-22, 3
#: Further neighbours of a state, one of which comes nearer where a score rounds otherwise.
FURTHER = 8

Make = Callable[..., pd.DataFrame]
Stores = Mapping[str, tuple[str | None, Collection[Any] | None]]


@dataclass
class Outcome:
    """What was made again of one file of rows: of ``prompts``, those ``here`` could be; ``again`` were, of which ``rounding``
    explains ``rounded``. ``unchecked`` has by reason the parts of the rows that cannot be made again here."""

    name: str
    rows: int
    prompts: int
    here: int
    again: int = 0
    made: int = 0
    rounded: int = 0
    unchecked: Mapping[str, Collection[Any]] = field(default_factory=dict)


@dataclass
class CheckedRows:
    """The rows of a chapter for the models of this run.

    A model that is None is not at hand: its rows are read, and none is made again.
    ``own`` names the parameters that make this a reader's own run, of whose rows nothing is committed: they are made live, for
    ``own_prompts`` prompts of each task. ``origin`` is written with rows that are made. ``seed`` draws the sample; a number of its
    own for each run.
    """

    chapter: str
    models: Mapping[str, PreTrainedModel | None]
    own: Collection[str] = ()
    own_prompts: int = 2
    origin: Mapping[str, str] = field(default_factory=dict)
    seed: int = field(default_factory=lambda: int(os.environ.get("SPECDEC_SAMPLE") or secrets.randbits(24)))
    folder: Path | None = None
    outcomes: list[Outcome] = field(default_factory=list)
    #: What this run decoded for its sample, which several experiments share.
    decoded: tempfile.TemporaryDirectory[str] = field(default_factory=tempfile.TemporaryDirectory)
    #: The longest that a prompt took one of them.
    seconds: dict[tuple[str, str], float] = field(default_factory=dict)

    @property
    def published(self) -> bool:
        """Whether the rows of this run are those that are committed."""
        return not self.own

    def reads(self, name: str) -> bool:
        """Whether the rows of an experiment are those that are committed, not made by this run."""
        return self.published and not self._makes(name)

    def _makes(self, name: str) -> bool:
        return not {self.chapter, f"{self.chapter}/{name}"}.isdisjoint(os.environ.get(MAKE, "").split())

    def rows(
        self,
        name: str,
        make: Make,
        prompts: Sequence[Prompt],
        stores: Stores | None = None,
        key: Sequence[str] = (),
        models: Collection[str] | None = None,
        parts: Mapping[Any, Any] | None = None,
        by: str | list[str] = "method",
    ) -> pd.DataFrame:
        """The rows of an experiment: those that are committed, after a sample was made again, or those of a reader's own run.

        ``make`` gives the rows of some of ``prompts``, each of which depends on its own prompt alone. A build may lack prompts
        whose data set is not on its machine. ``by`` is the column that tells parts of the rows apart, of which ``stores`` and
        ``parts`` have values, or several columns, of which they have tuples. ``stores`` has by name the checksum of a datastore,
        None where it takes too long to make, and the parts that search it, None for all of them. ``key`` names columns that tell
        the rows of one output and method apart, ``models`` the models that the rows depend on (all); a reader's own run reads the
        committed rows where they depend on none. ``make`` gets ``parts`` too, such as the drafters by their names: where all of
        them take long, a check makes the rows of one that it draws, more often one with few tokens. Raises RowsError if a row
        cannot be made again and rounding does not explain why.
        """
        if models is not None:
            own = {part: model for part, model in self.models.items() if part in models}
            mine = replace(self, models=own, own=self.own if own else ())
            return mine.rows(name, make, prompts, stores, key, parts=parts, by=by)
        full, stores = f"{self.chapter}/{name}", stores or {}
        absent = [part for part, model in self.models.items() if model is None]
        if absent and (self.own or self._makes(name)):
            raise row_files.RowsError(
                f"the rows {full} are of a {absent[0]} model, which is not at hand; fetch it first"
            )
        make_all = make if parts is None else lambda some: make(some, parts)
        if self._makes(name):
            return self._made(full, make_all, prompts, stores, key)
        if self.own:
            return make_all(first_of_each(prompts, self.own_prompts))
        frame, about = row_files.read(full, self.folder)
        if absent:
            asked = len(frame[["task", "prompt"]].drop_duplicates())
            left_out = {f"the {absent[0]} model is not at hand": ["all"]}
            self.outcomes.append(Outcome(full, len(frame), asked, 0, unchecked=left_out))
            return frame
        for part, model in self.models.items():
            if about["models"].get(part) != fingerprint(model):
                raise row_files.RowsError(
                    f"{(self.folder or row_files.FOLDER) / full}.csv.gz holds rows of another {part} model than the one that was "
                    f"loaded; make them again: python -m specdec_lib rows {full}"
                )
        unchecked = {
            f"{store} {'would take too long here' if checksum is None else 'is another text here'}": sorted(
                set(_values(frame, by)) if own is None else own
            )
            for store, (checksum, own) in stores.items()
            if checksum is None or about["stores"].get(store) != checksum
        }
        left_out = {part for each in unchecked.values() for part in each}
        others: set[Any] = set()
        if parts is not None and (here := sorted(parts.keys() - left_out)):
            groups, draw = frame.groupby(by), random.Random(f"{self.seed} {full}")
            tokens = groups.tokens.sum() if "tokens" in frame else groups.size()
            one = min(here, key=lambda part: tokens.get(part, math.inf) ** 2 * draw.random())
            make_all, others = (lambda some: make(some, {one: parts[one]})), parts.keys() - {one}
        self._check(full, frame, about, make_all, prompts, by, unchecked, left_out | others)
        return frame

    def _check(
        self,
        name: str,
        frame: pd.DataFrame,
        about: Mapping[str, Any],
        make: Make,
        prompts: Sequence[Prompt],
        by: str | list[str],
        unchecked: Mapping[str, Collection[Any]],
        without: set[Any],
    ) -> None:
        """Make rows of prompts again that are drawn anew, but not of the parts ``without``: their outputs are decoded by this
        run, or committed ones that it verifies; none is taken from an earlier run. ``unchecked`` goes into the outcome.

        The experiments of a chapter draw in one order, so that prompts that several of them have are decoded once. Short prompts
        with short outputs are drawn more often than long ones, so that more of them are made again in the time.
        """

        def again(prompt: Prompt) -> pd.DataFrame:
            made = make([prompt])
            return made[~_values(made, by).isin(without)]

        compared = {"columns": about["columns"], "key": [*row_files.KEY, *about.get("key", ())]}
        known = set(zip(frame.task, frame.prompt, strict=True))
        checked = frame[~_values(frame, by).isin(without)]
        written = checked.groupby(["task", "prompt"])
        written = (written.tokens.sum() if "tokens" in checked else written.size()).to_dict()
        drawn = [prompt for prompt in prompts if (prompt.task, prompt.id) in written]
        outcome = Outcome(name, len(frame), len(known), len(drawn), unchecked=unchecked)
        self.outcomes.append(outcome)
        read = sum(len(one.text) for one in drawn) / max(1, sum(written.values()))  # characters for each token of a row

        def work(one: Prompt) -> float:
            return len(one.text) + read * written[one.task, one.id]

        drawn.sort(key=lambda one: work(one) ** 2 * random.Random(f"{self.seed} {one.task} {one.id}").random())
        spent = 0.0
        for i, prompt in enumerate(drawn):
            if i and spent * (i + 1) / i > SECONDS:
                break
            began, one = time.perf_counter(), (prompt.task, prompt.id)
            with recordings_in(self.decoded.name, verify=True):
                made = again(prompt)
            # The next prompt takes as long as this one did where it was new.
            self.seconds[one] = max(self.seconds.get(one, 0.0), time.perf_counter() - began)
            spent += self.seconds[one]
            kept = checked[(checked.task == prompt.task) & (checked.prompt == prompt.id)]
            outcome.again += 1
            outcome.made += len(made)
            if told := row_files.differences(kept, made, **compared):
                if not self._rounding_explains(partial(again, prompt), made, told, compared):
                    raise row_files.RowsError(
                        f"data/rows/{name}.csv.gz: {next(iter(told.values()))}; rounding does not explain it. "
                        f"Seed {self.seed} drew it (SPECDEC_SAMPLE={self.seed} draws it again). If the change is wanted, "
                        f"make the rows again: python -m specdec_lib rows {name}"
                    )
                outcome.rounded += len(told)

    def _rounding_explains(
        self,
        make: Callable[[], pd.DataFrame],
        made: pd.DataFrame,
        told: Collection,
        compared: Mapping[str, Sequence[str]],
    ) -> bool:
        """Whether weights and scores of stored states that differ by as much as float32 rounds change one of the rows ``told``."""

        def changes() -> bool:
            return not row_files.differences(made, make(), **compared).keys().isdisjoint(told)

        # Scores alone first: with the weights as they are nothing is decoded.
        with perturbed_scores(0), recordings_in(self.decoded.name, verify=True):
            if changes():
                return True
        for draw in range(DRAWS):
            with (
                perturbed_weights(self.models.values(), draw),
                perturbed_scores(draw),
                tempfile.TemporaryDirectory() as empty,
                recordings_in(empty),
            ):
                if changes():
                    return True
        return False

    def _made(
        self,
        name: str,
        make: Make,
        prompts: Sequence[Prompt],
        stores: Stores,
        key: Sequence[str],
    ) -> pd.DataFrame:
        """Make all rows and write them, piece by piece: an interrupted run goes on where it was."""
        about = {
            "models": {part: fingerprint(model) for part, model in self.models.items()},
            "stores": {store: checksum for store, (checksum, _) in stores.items()},
            "key": list(key),
            **self.origin,
            "command": f"python -m specdec_lib rows {name}",
            "date": str(date.today()),
        }
        if not prompts:
            raise row_files.RowsError(
                f"the rows {name} need published data sets that are not on this machine (book/datasets.md, SPECDEC_DATASETS)"
            )
        code = files.tree_digest(paths.PACKAGE)
        pieces = paths.cache() / "rows" / name
        frames, seconds = [], 0.0
        for start in range(0, len(prompts), PIECE):
            part = prompts[start : start + PIECE]
            asked = json.dumps(
                [about["models"], about["stores"], code, [(one.task, one.id, one.turns) for one in part]]
            )
            piece = hashlib.sha256(asked.encode()).hexdigest()[:16]
            if not (pieces / f"{piece}.csv.gz").is_file():
                began = time.perf_counter()
                made = make(part)
                row_files.write(piece, made, about | {"seconds": time.perf_counter() - began}, pieces)
            frame, found = row_files.read(piece, pieces)
            frames.append(frame)
            seconds += found["seconds"]
            with (paths.cache() / "rows" / "progress.log").open("a") as log:
                log.write(f"{name}: {min(start + PIECE, len(prompts))} of {len(prompts)} prompts, {seconds:.0f} s\n")
        frame = pd.concat(frames, ignore_index=True)
        row_files.write(name, frame, about | {"seconds": round(seconds)}, self.folder)
        return frame


def _values(frame: pd.DataFrame, by: str | list[str]) -> pd.Series:
    """A column, or the tuples of several."""
    if isinstance(by, str):
        return frame[by]
    return pd.Series(list(zip(*(frame[column] for column in by), strict=True)), frame.index, object)


def first_of_each(prompts: Sequence[Prompt], count: int) -> list[Prompt]:
    """The first prompts of each task."""
    seen: Counter[str] = Counter()
    chosen = []
    for prompt in prompts:
        seen[prompt.task] += 1
        if seen[prompt.task] <= count:
            chosen.append(prompt)
    return chosen


@contextmanager
def recordings_in(folder: str, verify: bool = False) -> Iterator[None]:
    """Let recorded tokens be read from this folder alone, and keep there what is decoded meanwhile; with ``verify`` also committed
    ones, each after a pass over it (:data:`specdec_lib.experiments.runs.recordings.VERIFY`)."""
    before = {name: os.environ.get(name, "") for name in (recordings.FRESH, recordings.VERIFY)}
    # A fresh run decodes everything.
    variables = {recordings.FRESH: folder, recordings.VERIFY: "1" if verify and not before[recordings.FRESH] else ""}
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.update(before)


@contextmanager
@torch.no_grad()
def perturbed_weights(models: Iterable[PreTrainedModel], seed: int) -> Iterator[None]:
    """Change each weight by about as much as float32 rounds, and put the weights back."""
    weights = [parameter.data for model in models for parameter in model.parameters()]
    before = [weight.clone() for weight in weights]
    try:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            for weight in weights:
                weight.mul_(1 + ROUNDING * torch.randn_like(weight))
        yield
    finally:
        for weight, values in zip(weights, before, strict=True):
            weight.copy_(values)


@contextmanager
def perturbed_scores(seed: int) -> Iterator[None]:
    """Change each score of a search in dense stores by about as much as float32 rounds.

    Equal texts have equal states, up to rounding. Which of them is nearer depends on the processor that made the store, and no
    change of the state that is looked up shows it.
    """
    search, draw = DenseIndex.search, np.random.default_rng(seed)

    def perturbed(index: DenseIndex, states: np.ndarray | torch.Tensor, k: int) -> tuple[np.ndarray, np.ndarray]:
        scores, positions = search(index, states, k + FURTHER)
        scores = scores * (1 + ROUNDING * draw.standard_normal(scores.shape, np.float32))
        nearest = np.argsort(-scores, axis=1)[:, :k]
        return np.take_along_axis(scores, nearest, 1), np.take_along_axis(positions, nearest, 1)

    DenseIndex.search = perturbed
    try:
        yield
    finally:
        DenseIndex.search = search
