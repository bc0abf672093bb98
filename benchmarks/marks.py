"""How fast SmolLM2's draft model and heads decode over plain decoding, compared with the marks that were set for their training.

``PYTHONPATH=. python benchmarks/marks.py`` writes ``data/results/cpu/marks.csv``, which the page ``book/companions.md`` shows.
Prompts of the reporting half are decoded in turns with plain decoding, on all threads; the prefill does not count. One tree, which
learns, does so from prompt to prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import chdir

import pandas as pd
from tqdm.auto import tqdm

from specdec_lib import generate, load_model, paths, report
from specdec_lib.decoding.results import PARTS
from specdec_lib.drafters.pass_prices import PassPrices
from specdec_lib.experiments import prompts
from specdec_lib.experiments.pass_costs import step_samples
from specdec_lib.experiments.prompt import Prompt
from specdec_lib.experiments.recorded_runs import render
from specdec_lib.experiments.results import rate, ratio
from specdec_lib.experiments.statistics import median
from specdec_lib.experiments.workbench import ModelPair
from specdec_lib.methods import PLAIN

TRAINED, CHAT, CODE = ("SpecDec", "EAGLE", "Medusa", "Hydra"), "conversation", "code completion"
#: What one tree is to lead on mixed work, which is every task of the book.
SINGLE = ("PLD", "PLD+ (h)", "SpecDec", "EAGLE")
TOKENS, WIDTHS = 48, (1, 2, 4, 8, 16, 32)
SPEED, PASS, NODES = ("tokens", "seconds"), ("pass_s", "passes"), ("drafted", "passes")


def rows_of(pair: ModelPair, asked: Sequence[Prompt], names: Sequence[str]) -> pd.DataFrame:
    """A row an output and method: ``tokens`` after the first, ``passes``, ``drafted`` tokens, ``seconds``, and those of the
    target's passes alone (``pass_s``)."""
    drafters, rows = pair.drafters([PLAIN, *names]), []
    for prompt in tqdm(asked, desc=f"{len(drafters)} methods"):
        ids = render(prompt, pair.tokenizer)
        for name, drafter in drafters.items():
            steps = generate(pair.target, ids, drafter, max_new_tokens=TOKENS).steps
            about = {"task": prompt.task, "prompt": prompt.id, "turn": 0, "seed": 0, "method": name}
            counts = {"tokens": sum(len(step.tokens) for step in steps), "passes": len(steps)}
            counts["drafted"] = sum(step.drafted for step in steps)
            seconds = sum(getattr(step, part) for step in steps for part in PARTS)
            pass_s = sum(step.verify_seconds for step in steps)
            rows.append(about | counts | {"seconds": seconds, "pass_s": pass_s})
    return pd.DataFrame(rows)


def measured_prices(pair: ModelPair) -> PassPrices:
    """Prices of passes of the target by width and of a drafted token, in passes over one token."""
    spent = step_samples(pair.target, 256, "eager", WIDTHS, 12)
    milliseconds = {width: median(own).value for width, own in spent.items()}
    token = median(step_samples(pair.draft, 256, "eager", (1,), 12)[1]).value
    one = milliseconds[1]
    return PassPrices({width: own / one for width, own in milliseconds.items()}, drafted_token=token / one)


def main() -> None:
    """Measure everything, and write it at the end."""
    target, tokenizer = load_model("smollm2")
    pair = ModelPair(target, load_model("smollm2-draft")[0], tokenizer)
    pair.prices = measured_prices(pair)
    rows_of(pair, prompts.load("report", [CHAT], 1), [*TRAINED, "One tree"])  # what runs first compiles something
    rows = rows_of(pair, prompts.load("report", [CHAT, CODE], 12), TRAINED)
    mixed = rows_of(pair, prompts.load("report", per_task=2), [*SINGLE, "One tree"])
    speed = {name: ratio(rows, name, PLAIN, SPEED, by="task") for name in TRAINED}
    length = {name: rate(rows[rows.method == name], by="task") for name in ("SpecDec", "EAGLE")}
    best = max(SINGLE, key=lambda name: ratio(mixed, name, PLAIN, SPEED).value)
    counted = {
        "prompts": rows.prompt.nunique(),
        "mixed_prompts": len(mixed) // mixed.method.nunique(),
        "conversation_specdec_tokens_per_pass": length["SpecDec"][CHAT],
        "completion_specdec_tokens_per_pass": length["SpecDec"][CODE],
        "conversation_eagle_tokens_per_pass": length["EAGLE"][CHAT],
        "completion_eagle_tokens_per_pass": length["EAGLE"][CODE],
        "eagle_nodes": rate(rows[rows.method == "EAGLE"], NODES).value,
    }
    timed = {
        "conversation_specdec_over_plain": speed["SpecDec"][CHAT],
        "completion_specdec_over_plain": speed["SpecDec"][CODE],
        "conversation_eagle_over_plain": speed["EAGLE"][CHAT],
        "completion_eagle_over_plain": speed["EAGLE"][CODE],
        "conversation_medusa_over_plain": speed["Medusa"][CHAT],
        "completion_medusa_over_plain": speed["Medusa"][CODE],
        "conversation_hydra_over_plain": speed["Hydra"][CHAT],
        "completion_hydra_over_plain": speed["Hydra"][CODE],
        "specdec_pass_over_one": ratio(rows, "SpecDec", PLAIN, PASS),
        "eagle_pass_over_one": ratio(rows, "EAGLE", PLAIN, PASS),
        "mixed_best": best,
        "mixed_one_tree_over_best": ratio(mixed, "One tree", best, SPEED),
        "mixed_one_tree_over_plain": ratio(mixed, "One tree", PLAIN, SPEED),
    }
    with chdir(paths.DATA / "results" / "cpu"):
        report.save("marks", counted, timed)


if __name__ == "__main__":
    main()
