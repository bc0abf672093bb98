"""Rows of SmolLM2's recorded answers to the papers' own prompts (``data/rows/papers_prompts.csv.gz``), and comparisons on them.

``scripts/published_rows.py`` makes these rows. A build reads them without a check: the published data sets, which they need, are
not on every machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

import pandas as pd

from specdec_lib.experiments.runs import results, row_files
from specdec_lib.experiments.statistics.intervals import Interval, difference_of_rates

#: The methods without training of PLD+'s tables that have rows, with the names of their rows.
TUNING_FREE = ("PLD", "PLD, partial drafts, 10", "REST", "SpecDec")
#: Sets of PLD+'s five tasks, or their parts, with the book's names of the tasks.
INPUT_GUIDED = {
    "spec-bench/summarization": "summarisation",
    "codeeditorbench": "code editing",
    "xatu": "short text editing",
    "argrewrite": "long text editing",
    "spec-bench/mt_bench": "conversation",
}
#: The parts of Spec-Bench, and all tasks of published prompts that chapters compare methods on.
SPEC_BENCH = {
    "spec-bench/mt_bench": "conversation",
    "spec-bench/translation": "translation",
    "spec-bench/summarization": "summarisation",
    "spec-bench/qa": "question answering",
    "spec-bench/math_reasoning": "mathematics",
    "spec-bench/rag": "answers from texts",
}
TASKS = INPUT_GUIDED | SPEC_BENCH | {"humaneval": "code completion"}


@cache
def all_rows() -> pd.DataFrame:
    """One row per output and method, with its ``set`` and the decoding's ``top_p``, on all sets and at all temperatures."""
    return row_files.read("papers_prompts")[0]


def on_published_prompts(temperature: float = 0, tasks: Mapping[str, str] = TASKS) -> pd.DataFrame:
    """The rows of answers to published prompts, under the book's names of their tasks.

    ``tasks`` has these names by set, such as ``"humaneval"``, or by part of one, such as ``"spec-bench/rag"``.
    """
    rows = all_rows()
    parts = rows.task.where(rows.task.str.contains("/"))
    named = rows["set"].map(tasks).fillna(parts.map(tasks))
    return rows.assign(task=named)[(rows.temperature == temperature) & named.notna()]


def on_pld_plus_prompts(temperature: float = 0) -> pd.DataFrame:
    """:func:`on_published_prompts` of PLD+'s five tasks."""
    return on_published_prompts(temperature, INPUT_GUIDED)


def answers(part: str, temperature: float = 0) -> pd.DataFrame:
    """The rows of a set, such as ``"humaneval"``, of a part of one, ``"spec-bench/mt_bench"``, or of a task of PLD+."""
    rows = all_rows()
    rows = rows[rows.temperature == temperature]
    named = rows["set"].map(INPUT_GUIDED).fillna(rows.task.map(INPUT_GUIDED))
    # The name of a set can be that of a task in another one: HumanEval is asked in two ways.
    return next(rows[names == part] for names in (rows["set"], rows.task, named) if (names == part).any())


def with_draft_model_cost(rows: pd.DataFrame, passes: Mapping[int, float], draft_pass: float) -> pd.DataFrame:
    """Rows with what their passes cost (``cost``), and each token of a draft model a pass of its own, ``draft_pass``."""
    rows = results.with_cost(rows, passes)
    drafted_by_model = rows.drafted.where(rows.method.isin(["SpecDec", "SpecDec++"]), 0)
    return rows.assign(cost=rows.cost + draft_pass * drafted_by_model)


def with_draft_model_step(rows: pd.DataFrame, passes: Mapping[int, float], step: float) -> pd.DataFrame:
    """Rows with what their passes cost (``cost``); each pass of SpecDec costs ``step``, its drafting included."""
    rows = results.with_cost(rows, passes)
    return rows.assign(cost=rows.cost.where(rows.method != "SpecDec", step * rows.passes))


def least_lead(rows: pd.DataFrame, ours: str, rivals: Sequence[str] = TUNING_FREE) -> Interval:
    """A method's speed over that of the rival that it leads least, each on the outputs that both have."""
    return min(results.ratio(rows, ours, rival, results.SPEED) for rival in rivals)


def speed_difference(rows: pd.DataFrame, ours: str, theirs: str) -> Interval:
    """The difference of two speed-ups over plain decoding on the outputs that both methods have."""
    first, second = (rows[rows.method == method] for method in (ours, theirs))
    both = first.merge(second, on=results.OUTPUT, suffixes=("_ours", "_theirs"), validate="1:1")
    counts = ([both[f"{column}_{side}"].tolist() for column in results.SPEED] for side in ("ours", "theirs"))
    return difference_of_rates(*counts, both.prompt.tolist())


def sampled_over_greedy(
    sampled: pd.DataFrame, greedy: pd.DataFrame, method: str, value: tuple[str, str] = results.PER_PASS
) -> Interval:
    """A method's rate on sampled outputs over its rate on greedy outputs to the same prompts."""
    hot = sampled[sampled.method == method].assign(method="sampled")
    cold = greedy[greedy.method == method].drop(columns="seed").assign(method="greedy")
    same = hot[results.OUTPUT].merge(cold, on=["task", "prompt", "turn"])
    return results.ratio(pd.concat([hot, same]), "sampled", "greedy", value)


def greedy_over_sampled(part: str, temperature: float, method: str) -> Interval:
    """Tokens per pass on greedy outputs over those on sampled ones of the same turns, one bootstrap over prompts."""
    greedy, sampled = (rows[rows.method == method] for rows in (answers(part), answers(part, temperature)))
    both = sampled.merge(greedy, on=["task", "prompt", "turn"], suffixes=("_sampled", "_greedy"), validate="m:1")
    columns = [both[f"{column}_{how}"].tolist() for how in ("greedy", "sampled") for column in results.PER_PASS]
    return results.interval_of_sums(lambda a, b, c, d: (a / b) / (c / d), columns, both.prompt.tolist())
