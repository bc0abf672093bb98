"""Rows of counts, one per output and method: committed, read by every build, and a sample of them made again each time.

evidence = report.evidence("01", target=model, draft=small)
runs = evidence.rows("greedy", make, prompts)     # make(prompts) gives a frame, as results.table does
evidence.outcomes                                 # how many rows were made again, and how many of them were equal

Counts do not depend on the machine, up to rounding, so that rows are made once, by ``python -m specdec_lib rows``.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import random
import secrets
import tempfile
import time
import zlib
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
from specdec_lib.experiments.runs import recordings
from specdec_lib.files import replacing
from specdec_lib.models.fingerprint import fingerprint

#: Where the rows of the published run lie, in a folder per chapter.
FOLDER = paths.DATA / "rows"
#: What tells one row from another, and further columns that a file may name.
KEY = ["task", "prompt", "turn", "seed", "temperature", "method"]
#: Names the rows that a run makes and writes, with spaces between: those of a chapter, ``01``, or one file of it, ``01/greedy``.
MAKE = "SPECDEC_ROWS"
#: Seconds after which no further prompt of an experiment is made again.
SECONDS = 2.0
#: Places of an array that is written, at most: widths and depths of drafts.
PLACES = 2**20
#: Prompts that are made before what is finished is written down.
PIECE = 8
#: A relative change of each weight and score, of the size of float32's rounding, and how often another one is tried.
ROUNDING, DRAWS = 2.0**-22, 3
#: Further neighbours of a state, one of which comes nearer where a score rounds otherwise.
FURTHER = 8

Make = Callable[..., pd.DataFrame]
Stores = Mapping[str, tuple[str, Collection[str] | None]]


class EvidenceError(ValueError):
    """Rows that cannot be read or written, or that cannot be made again."""


def read(name: str, folder: Path | None = None) -> tuple[pd.DataFrame, dict[str, Any]]:
    """The rows of a file and what it says of their origin: ``models``, ``command``, ``commit``, ``date``, ``seconds``.

    Raises EvidenceError, which names the file and what to do, if it is missing, damaged or lacks a column.
    """
    path = (folder or FOLDER) / f"{name}.csv.gz"
    remedy = f"get it again, or make it with: python -m specdec_lib rows {name}"
    try:
        head, _, rows = files.unpack_gzip(path).decode().partition("\n")
        if not head.startswith("# {"):
            raise EvidenceError(f"{path} does not begin with the origin of its rows; {remedy}")
        about = json.loads(head[2:])
        if not (isinstance(about["models"], dict) and isinstance(about["stores"], dict)):
            raise ValueError("it does not say which models and datastores its rows are of")
        texts = dict.fromkeys(("prompt", "task", "method", *about["arrays"]), str)
        frame = pd.read_csv(io.StringIO(rows), dtype=texts, keep_default_na=False, na_values=[""])
        key = [*KEY, *about.get("key", ())]
        missing = [column for column in (*key, *about["columns"]) if column not in frame]
        if missing or len(frame) != about["rows"]:
            lack = f"has no column {missing[0]!r}" if missing else f"has {len(frame)} rows of {about['rows']}"
            raise EvidenceError(f"{path} {lack}; {remedy}")
        if frame.duplicated(key).any():
            raise EvidenceError(f"{path} has two rows of one output and method; {remedy}")
        return frame.assign(**{name: frame[name].fillna("").map(_unpacked) for name in about["arrays"]}), about
    except FileNotFoundError:
        raise EvidenceError(f"there is no {path}; {remedy}") from None
    except EvidenceError:
        raise
    except (
        OSError, EOFError, zlib.error, ValueError, LookupError, TypeError, AttributeError, OverflowError, MemoryError,
        RecursionError,
    ) as error:  # fmt: skip
        raise EvidenceError(f"{path} cannot be read ({type(error).__name__}: {error}); {remedy}") from None


def write(name: str, frame: pd.DataFrame, about: Mapping[str, Any], folder: Path | None = None) -> Path:
    """Write rows, without what was timed, and their origin."""
    path = (folder or FOLDER) / f"{name}.csv.gz"
    key = [*KEY, *about.get("key", ())]
    if frame.duplicated(key).any():
        twice = frame[frame.duplicated(key)].iloc[0][key].to_dict()
        raise EvidenceError(f"{name} has two rows of {twice}; expected one per output and method")
    counted = frame.drop(columns=[column for column in frame if column.endswith(("_s", "_ms"))])
    arrays = [name for name in counted if len(counted) and isinstance(counted[name].iloc[0], np.ndarray)]
    about = {**about, "rows": len(counted), "columns": list(counted), "arrays": arrays}
    counted = counted.assign(**{name: counted[name].map(_packed) for name in arrays})
    text = f"# {json.dumps(about)}\n" + counted.to_csv(index=False, lineterminator="\n", float_format="%.6g")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as aside:
            aside.write_bytes(gzip.compress(text.encode(), mtime=0))
    except OSError as error:
        raise EvidenceError(f"{path} cannot be written ({error}); rows go into the folder of the project") from None
    return path


def _packed(counts: np.ndarray) -> str:
    return " ".join(f"{place}:{counts[place]:.10g}" for place in np.flatnonzero(counts))


def _unpacked(text: str) -> np.ndarray:
    pairs = [part.split(":") for part in text.split()]
    shared = any("." in count for _, count in pairs)  # counts that are shared out between neighbouring places
    pairs = [(int(place), float(count) if shared else int(count)) for place, count in pairs]
    if not all(0 <= place < PLACES and 0 <= count < np.inf for place, count in pairs):
        raise ValueError(f"{text!r:.40} holds no counts by place")
    counts = np.zeros(1 + max((place for place, _ in pairs), default=0), float if shared else np.int64)
    for place, count in pairs:
        counts[place] = count
    return counts


def differences(kept: pd.DataFrame, made: pd.DataFrame, columns: Sequence[str], key: Sequence[str] = KEY) -> list[str]:
    """What two frames of the same outputs differ in, one sentence per row."""
    one, other = (frame.set_index(list(key)) for frame in (kept, made))
    told = [f"{where} has no row" for where in one.index.difference(other.index)]
    told += [f"{where} is new" for where in other.index.difference(one.index)]
    for where in one.index.intersection(other.index):
        before, now = one.loc[where], other.loc[where]
        for column in columns:
            if column not in key and not _alike(before[column], now[column]):
                told.append(f"{where}: {column} was {_shown(before[column])} and is {_shown(now[column])}")
                break
    return told


def _alike(before: Any, now: Any) -> bool:
    if isinstance(before, np.ndarray):
        return _packed(before) == _packed(np.asarray(now))
    if isinstance(before, float) or isinstance(now, float):
        return bool(np.isclose(before, now, rtol=1e-3, equal_nan=True))
    if isinstance(before, str) or isinstance(now, str):
        return str(before) == str(now)  # a file has texts where a column has numbers and words
    return before == now


def _shown(value: Any) -> Any:
    return _packed(value) if isinstance(value, np.ndarray) else value


@dataclass
class Outcome:
    """What was made again of one file of rows: of ``prompts``, those ``here`` could be; ``again`` were, of which ``rounding``
    explains ``rounded``. ``unchecked`` methods search a store that is another one here."""

    name: str
    rows: int
    prompts: int
    here: int
    again: int = 0
    made: int = 0
    rounded: int = 0
    unchecked: tuple[str, ...] = ()


@dataclass
class Evidence:
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
        drafters: Mapping[str, Any] | None = None,
    ) -> pd.DataFrame:
        """The rows of an experiment: those that are committed, after a sample was made again, or those of a reader's own run.

        ``make`` gives the rows of some of ``prompts``, each of which depends on its own prompt alone. A build may lack prompts
        whose data set is not on its machine. ``stores`` has by name the checksum of a datastore and the methods that search it,
        None for all of them. ``key`` names columns that tell the rows of one output and method apart, ``models`` the parts that
        the rows depend on (all); a reader's own run reads the committed rows where they depend on none. ``make`` gets
        ``drafters``, by the names of methods, too: where real runs take long, a check makes the rows of one method that it draws.
        Raises EvidenceError if a row cannot be made again and rounding does not explain why.
        """
        if models is not None:
            parts = {part: model for part, model in self.models.items() if part in models}
            mine = replace(self, models=parts, own=self.own if parts else ())
            return mine.rows(name, make, prompts, stores, key, drafters=drafters)
        full, stores = f"{self.chapter}/{name}", stores or {}
        absent = [part for part, model in self.models.items() if model is None]
        if absent and (self.own or self._makes(name)):
            raise EvidenceError(f"the rows {full} are of a {absent[0]} model, which is not at hand; fetch it first")
        make_all = make if drafters is None else partial(make, drafters=drafters)
        if self._makes(name):
            return self._made(full, make_all, prompts, stores, key)
        if self.own:
            return make_all(first_of_each(prompts, self.own_prompts))
        frame, about = read(full, self.folder)
        if absent:
            asked = len(frame[["task", "prompt"]].drop_duplicates())
            left_out = f"all, since the {absent[0]} model is not at hand"
            self.outcomes.append(Outcome(full, len(frame), asked, 0, unchecked=(left_out,)))
            return frame
        for part, model in self.models.items():
            if about["models"].get(part) != fingerprint(model):
                raise EvidenceError(
                    f"{(self.folder or FOLDER) / full}.csv.gz holds rows of another {part} model than the one that was loaded; "
                    f"make them again: python -m specdec_lib rows {full}"
                )
        unchecked = {
            method
            for store, (checksum, own) in stores.items()
            if about["stores"].get(store) != checksum
            for method in (frame.method if own is None else own)
        }
        others: set[str] = set()
        if drafters is not None and (here := sorted(drafters.keys() - unchecked)):
            one = random.Random(f"{self.seed} {full}").choice(here)
            make_all, others = partial(make, drafters={one: drafters[one]}), drafters.keys() - {one}
        self._check(full, frame, about, make_all, prompts, unchecked, others)
        return frame

    def _check(
        self,
        name: str,
        frame: pd.DataFrame,
        about: Mapping[str, Any],
        make: Make,
        prompts: Sequence[Prompt],
        unchecked: set[str],
        others: set[str],
    ) -> None:
        """Make rows of prompts again that are drawn anew, but not of the methods ``unchecked`` and ``others``: their outputs are
        decoded by this run, not taken from an earlier one.

        The experiments of a chapter draw in one order, so that prompts that several of them have are decoded once. Short prompts
        are drawn more often than long ones, so that more of them are made again in the time.
        """
        compared = {"columns": about["columns"], "key": [*KEY, *about.get("key", ())]}
        known = set(zip(frame.task, frame.prompt, strict=True))
        drawn = [prompt for prompt in prompts if (prompt.task, prompt.id) in known]
        if unchecked >= set(frame.method):
            drawn = []
        outcome = Outcome(name, len(frame), len(known), len(drawn), unchecked=tuple(sorted(unchecked)))
        self.outcomes.append(outcome)
        drawn.sort(key=lambda one: len(one.text) * random.Random(f"{self.seed} {one.task} {one.id}").random())
        began = time.perf_counter()
        for i, prompt in enumerate(drawn):
            if i and time.perf_counter() - began > SECONDS:
                break
            with recordings_in(self.decoded.name):
                made = make([prompt])
            kept = frame[(frame.task == prompt.task) & (frame.prompt == prompt.id)]
            kept, made = (rows[~rows.method.isin(unchecked | others)] for rows in (kept, made))
            outcome.again += 1
            outcome.made += len(made)
            if told := differences(kept, made, **compared):
                if not self._rounding_explains(make, prompt, made, compared):
                    raise EvidenceError(
                        f"data/rows/{name}.csv.gz: {told[0]}; rounding does not explain it. Seed {self.seed} drew it "
                        f"(SPECDEC_SAMPLE={self.seed} draws it again). If the change is wanted, make the rows again: "
                        f"python -m specdec_lib rows {name}"
                    )
                outcome.rounded += len(told)

    def _rounding_explains(
        self, make: Make, prompt: Prompt, made: pd.DataFrame, compared: Mapping[str, Sequence[str]]
    ) -> bool:
        """Whether weights and scores of stored states that differ by as much as float32 rounds give other rows too."""
        for draw in range(DRAWS):
            with (
                perturbed_weights(self.models.values(), draw),
                perturbed_scores(draw),
                tempfile.TemporaryDirectory() as empty,
                recordings_in(empty),
            ):
                if differences(made, make([prompt])[lambda rows: rows.method.isin(made.method)], **compared):
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
                write(piece, made, about | {"seconds": time.perf_counter() - began}, pieces)
            frame, found = read(piece, pieces)
            frames.append(frame)
            seconds += found["seconds"]
            with (paths.cache() / "rows" / "progress.log").open("a") as log:
                log.write(f"{name}: {min(start + PIECE, len(prompts))} of {len(prompts)} prompts, {seconds:.0f} s\n")
        frame = pd.concat(frames, ignore_index=True)
        write(name, frame, about | {"seconds": round(seconds)}, self.folder)
        return frame


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
def recordings_in(folder: str) -> Iterator[None]:
    """Let recorded tokens be read from this folder alone, and keep there what is decoded meanwhile."""
    before = os.environ.get(recordings.FRESH)
    os.environ[recordings.FRESH] = folder
    try:
        yield
    finally:
        del os.environ[recordings.FRESH]
        if before is not None:
            os.environ[recordings.FRESH] = before


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
