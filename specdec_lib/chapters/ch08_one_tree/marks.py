"""The marks that one tree is to reach, judged on a run's own prompts or on many that were measured once and kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from transformers import PreTrainedModel

from specdec_lib import paths
from specdec_lib.chapters.ch08_one_tree import study
from specdec_lib.chapters.ch08_one_tree.study import ARCTIC, SAM, SINGLES, TREE, Ladder
from specdec_lib.decoding.contract import Capture
from specdec_lib.decoding.sampling import Sampling
from specdec_lib.drafters.pass_prices import CURVES, PassPrices
from specdec_lib.experiments import result_files
from specdec_lib.experiments.recordings import record_once
from specdec_lib.experiments.statistics import Interval
from specdec_lib.experiments.tasks import load_task
from specdec_lib.experiments.workbench import ModelPair
from specdec_lib.files import sha256
from specdec_lib.models.fingerprint import fingerprint

# What :func:`rows` found for the pocket pair; without a colon, because the page of the library would show the folder.
RESULTS = paths.DATA / "results" / "cpu" / "one_tree.csv"
#: Lower ends that the intervals of each mark are to lie above.
MARKS = {
    "no worse than the best single source": 0.98,
    "ahead of every single source, all mixed": 1.10,
    "ahead of the selection rules, all mixed": 1.0,
    "75 % of the hindsight bound, all mixed": 0.75,
}
NO_WORSE, AHEAD, RULES, REACHED = MARKS

#: Drafting is free in the marks, as in the notebook: no source is a draft model.
PRICES = tuple(replace(curve, drafted_token=0.0) for curve in CURVES.values())
#: One ratio that a mark asks about: ``answers``, ``prices``, ``mark``, what is ``compared``, and the ``ratio``.
Row = dict[str, Any]


@dataclass(frozen=True)
class Plan:
    """What is measured: the values of the notebook, with more prompts of each task."""

    prompts: int = 100
    tasks: tuple[str, ...] = (
        "rename",
        "replace-word",
        "add-parameter",
        "wrap-try",
        "type-hints",
        "write-docstring",
        "code-completion",
    )
    max_new_tokens: int = 96
    sampling: Sampling = Sampling(temperature=0.7, top_p=0.95, seed=0)
    sizes: tuple[int, ...] = (3, 8, 16, 32, 64)
    layer_prompts: int = 8
    store_tokens: int = 200_000


class Kept(NamedTuple):
    """Rows of a file and what it says of their origin."""

    rows: list[Row]
    about: dict[str, str]


def rows(ladders: Mapping[str, Ladder], prices: Sequence[PassPrices], tasks: Sequence[str]) -> list[Row]:
    """Every ratio that the marks ask about, by kind of answers and prices."""
    found = []
    for answers, ladder in ladders.items():
        for each in prices:
            asked = [(NO_WORSE, task, ladder.best_single(each, task), task) for task in tasks]
            asked += [(AHEAD, name, name, None) for name in SINGLES]
            asked += [(RULES, name, name, None) for name in (SAM, ARCTIC)]
            ratios = [(mark, label, ladder.ratio(TREE, other, each, task)) for mark, label, other, task in asked]
            for mark, label, ratio in (*ratios, (REACHED, "the bound", ladder.share(TREE, each))):
                found.append({"answers": answers, "prices": each.name, "mark": mark, "compared": label, "ratio": ratio})
    return found


def verdict(ratios: Sequence[Interval], mark: float) -> str:
    """``met`` where every interval lies above the mark, ``missed`` where one lies below it, else ``not resolved``."""
    if any(ratio.known and ratio.high < mark for ratio in ratios):
        return "missed"
    return "met" if all(ratio.known and ratio.low > mark for ratio in ratios) else "not resolved"


def judged(found: Sequence[Row]) -> list[Row]:
    """One row a kind of answers, prices and mark: its verdict, and the ratio that decides.

    That is the one whose interval ends lowest where the mark is missed, else the one whose interval begins lowest.
    """
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in found:
        groups.setdefault((row["answers"], row["prices"], row["mark"]), []).append(row)
    decided = []
    for (_, _, mark), group in groups.items():
        said = verdict([row["ratio"] for row in group], MARKS[mark])
        end = 2 if said == "missed" else 1
        known = [row for row in group if row["ratio"].known] or group
        decided.append(min(known, key=lambda row, end=end: row["ratio"][end]) | {"verdict": said})
    return decided


def ladders(pair: ModelPair, plan: Plan = Plan()) -> dict[str, Ladder]:
    """By kind of answers the rungs that the marks ask about, on the prompts of a plan, whose answers are decoded if they were
    not before.

    ``pair`` has a datastore of the plan's size.
    """
    prompts = [prompt for task in plan.tasks for prompt in load_task(task, limit=plan.prompts, seed=0)]
    study.choose_layer(pair, prompts, plan.layer_prompts)
    drafters = study.rungs(pair, PRICES, plan.sizes, pair.tree_probabilities)
    sources = list(study.without_draft_model(pair).values())
    found = {}
    for answers, sampling in (("greedy", None), ("sampled", plan.sampling)):
        recordings = record_once(
            pair.target, pair.tokenizer, prompts, sampling, plan.max_new_tokens, Capture((pair.layer,))
        )
        found[answers] = study.measure(recordings, drafters, sources)
    return found


def identity(target: PreTrainedModel) -> dict[str, str]:
    """What the rows of the pocket pair depend on: the target's weights, and those that came with it for one tree."""
    return {"target": fingerprint(target), "tree": sha256(paths.POCKET / "one_tree.safetensors")}


def write(path: Path, found: Sequence[Row], about: Mapping[str, str]) -> None:
    """Write rows with where they come from (:mod:`specdec_lib.experiments.result_files`)."""
    flat = [{name: row[name] for name in row if name != "ratio"} | row["ratio"]._asdict() for row in found]
    result_files.write(path, flat, about)


def origin(rows: Kept | None) -> str:
    """Where kept rows come from, to end a caption with; nothing where there are none."""
    if rows is None:
        return ""
    about = rows.about
    return f" Kept rows: `{about['command']}`, commit {about['commit'][:12]}, {about['date']}, {about['machine']}."


def read(path: Path | None = None) -> Kept:
    """Rows of a file, whatever weights they were measured with."""
    about, flat = result_files.read(path or RESULTS)
    ends = Interval._fields
    found = [
        {name: row[name] for name in row if name not in ends} | {"ratio": Interval(*(row[end] for end in ends))}
        for row in flat
    ]
    return Kept(found, about)


def kept(target: PreTrainedModel, path: Path | None = None) -> Kept | None:
    """Rows of a file that were measured with these weights; None where there are none, as for a model of the reader's."""
    path = path or RESULTS
    if not path.is_file():
        return None
    found = read(path)
    return None if any(found.about.get(name) != value for name, value in identity(target).items()) else found
