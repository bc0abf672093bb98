"""How fast SmolLM2's draft model and heads decode over plain decoding, compared with the marks that were set for their training.

``PYTHONPATH=. python benchmarks/marks.py`` writes ``data/results/cpu/marks.csv``, which the page ``book/companions.md`` shows.
Prompts of the reporting half are decoded in turns with plain decoding, on all threads, first with bfloat16 and then with
float32; the prefill does not count. One tree, which learns, does so from prompt to prompt. Heads draft their published trees,
and grown ones of the size that was fastest on prompts of the choosing half. The table also has the cost of a pass by its width,
and the share of outputs that have the tokens of plain decoding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import chdir
from dataclasses import replace
from typing import Any

import pandas as pd

from specdec_lib import load_model, paths, report
from specdec_lib.drafters.pass_costs import PassCosts
from specdec_lib.experiments.costs.measured_passes import pass_times
from specdec_lib.experiments.costs.timing import AFTER_PREFILL, race
from specdec_lib.experiments.data import prompts
from specdec_lib.experiments.data.prompt import Prompt
from specdec_lib.experiments.runs.results import rate, ratio
from specdec_lib.experiments.statistics.intervals import median_interval
from specdec_lib.experiments.workbench import ModelPair
from specdec_lib.methods import METHODS, PLAIN

TRAINED, CHAT, CODE = ("SpecDec", "EAGLE", "Medusa", "Hydra"), "conversation", "code completion"
TASKS = {CHAT: "conversation", CODE: "completion"}
DTYPES = ("bfloat16", "float32")
CHOOSING, PROMPTS = 6, 32  # prompts of a task
SIZES = (4, 8, 16, 32)  # tokens of a pass with grown trees
#: What one tree is to lead on mixed work, which is every task of the book.
SINGLE = ("PLD", "PLD+ (h)", "SpecDec", "EAGLE")
TOKENS, WIDTHS = 48, (1, 2, 4, 8, 16, 32)
PASS, NODES = ("verify_seconds", "passes"), ("drafted", "passes")


class Pair(ModelPair):
    """Has heads with grown trees too: ``"EAGLE, 8"`` makes passes over eight tokens."""

    def drafters(self, names: Sequence[str], lengths: Mapping[str, int] | None = None, runtime: Any = None) -> dict:
        """The drafters by name."""
        sized = [name for name in names if ", " in name]
        made = {name: METHODS[name.partition(", ")[0]].sized(self, int(name.partition(", ")[2])) for name in sized}
        return super().drafters([name for name in names if name not in sized], lengths, runtime) | made


def fastest(pair: Pair, kind: str) -> str:
    """The grown tree of heads of a kind that was fastest on prompts of the choosing half."""
    tried = [f"{kind}, {size}" for size in SIZES]
    rows = rows_of(pair, prompts.load("choose", [*TASKS], CHOOSING), tried)
    return max(tried, key=lambda name: ratio(rows, name, PLAIN, AFTER_PREFILL).value)


def rows_of(pair: ModelPair, asked: Sequence[Prompt], names: Sequence[str]) -> pd.DataFrame:
    """A row per output and method, of first turns."""
    print(f"{len(asked)} prompts, each decoded by plain, {', '.join(names)}", flush=True)
    first_turns = [replace(prompt, turns=prompt.turns[:1]) for prompt in asked]
    return pd.DataFrame(race(pair, first_turns, [PLAIN, *names], TOKENS, peers=())[2])


def measured_costs(pair: ModelPair) -> PassCosts:
    """Costs of passes of the target by width and of a drafted token, in passes over one token."""
    spent = pass_times(pair.target, 256, "eager", WIDTHS, 12)
    milliseconds = {width: median_interval(own).value for width, own in spent.items()}
    token = median_interval(pass_times(pair.draft, 256, "eager", (1,), 12)[1]).value
    one = milliseconds[1]
    return PassCosts({width: own / one for width, own in milliseconds.items()}, drafted_token=token / one)


def measured(dtype: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """What was counted and what rests on seconds, by key, with the models in floating-point numbers of one type."""
    target, tokenizer = load_model("smollm2", dtype=dtype)
    pair = Pair(target, load_model("smollm2-draft", dtype=dtype)[0], tokenizer)
    pair.costs = measured_costs(pair)
    grown = {kind: fastest(pair, kind) for kind in TRAINED[1:]}
    rows = rows_of(pair, prompts.load("report", [*TASKS], PROMPTS), [*TRAINED, *grown.values()])
    mixed = rows_of(pair, prompts.load("report", per_task=2), [*SINGLE, "One tree"])
    drafted = rows[rows.method != PLAIN].assign(outputs=1)
    best = max(SINGLE, key=lambda name: ratio(mixed, name, PLAIN, AFTER_PREFILL).value)
    counted = {
        "prompts": rows.prompt.nunique(),
        "mixed_prompts": len(mixed) // mixed.method.nunique(),
        "eagle_nodes": rate(rows[rows.method == "EAGLE"], NODES).value,
    }
    # What sizes that seconds chose decide rests on seconds too.
    of_time: dict[str, Any] = {
        "equal_outputs": rate(drafted, ("equal", "outputs")),
        **{f"pass_{width}_over_one": pair.costs.widths[width] for width in WIDTHS[1:]},
        "specdec_pass_over_one": ratio(rows, "SpecDec", PLAIN, PASS),
        "eagle_pass_over_one": ratio(rows, "EAGLE", PLAIN, PASS),
        "mixed_best": best,
        "mixed_one_tree_over_best": ratio(mixed, "One tree", best, AFTER_PREFILL),
        "mixed_one_tree_over_plain": ratio(mixed, "One tree", PLAIN, AFTER_PREFILL),
    }
    for name in (*TRAINED, *grown.values()):
        kind, _, size = name.partition(", ")
        key = f"grown_{kind.lower()}" if size else kind.lower()
        tokens = rate(rows[rows.method == name], by="task")
        of_plain = ratio(rows, name, PLAIN, AFTER_PREFILL, by="task")
        (of_time if size else counted).update(
            {f"{short}_{key}_tokens_per_pass": tokens[task] for task, short in TASKS.items()}
        )
        of_time |= {f"{short}_{key}_over_plain": of_plain[task] for task, short in TASKS.items()}
        if size:
            of_released = ratio(rows, name, kind, AFTER_PREFILL, by="task")
            of_time |= {f"{key}_pass": int(size)}
            of_time |= {f"{short}_{key}_over_released": of_released[task] for task, short in TASKS.items()}
    return counted, of_time


def main() -> None:
    """Measure everything, and write it at the end."""
    counted, of_time = {"tokens": TOKENS, "choosing_prompts": CHOOSING * len(TASKS)}, {}
    for dtype in DTYPES:
        for found, own in zip((counted, of_time), measured(dtype), strict=True):
            found |= {f"{dtype}_{key}": value for key, value in own.items()}
            print(own, flush=True)
    with chdir(paths.DATA / "results" / "cpu"):
        report.save("marks", counted, of_time)


if __name__ == "__main__":
    main()
