"""``python -m specdec_lib one-tree``: judge one tree by the marks of chapter 8 on many prompts.

Writes every ratio that the marks ask about, with where it comes from, and in a second file what one tree loses against hindsight
and why (``one_tree_losses.csv``). Took 21 minutes on one core, next to other work.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from specdec_lib.chapters.ch08_one_tree import losses, marks
from specdec_lib.commands import exit_status
from specdec_lib.experiments.recorded_runs import load_pair
from specdec_lib.experiments.workbench import ModelPair
from specdec_lib.report.display import provenance


def build_parser() -> argparse.ArgumentParser:
    """The options of the command."""
    parser = argparse.ArgumentParser(
        prog="python -m specdec_lib one-tree",
        description=__doc__,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--prompts", type=int, default=marks.Plan.prompts, help="of each task")
    parser.add_argument("--max-new-tokens", type=int, default=marks.Plan.max_new_tokens, help="of each answer")
    parser.add_argument("--out", type=Path, default=marks.RESULTS, help="the CSV file")
    return parser


def _run(options: argparse.Namespace) -> None:
    for name in ("prompts", "max_new_tokens"):
        if getattr(options, name) < 1:
            raise ValueError(f"--{name.replace('_', '-')} is {getattr(options, name)}; expected 1 or more")
    plan = marks.Plan(prompts=options.prompts, max_new_tokens=options.max_new_tokens)
    about = provenance.of_command(f"one-tree --prompts {plan.prompts} --max-new-tokens {plan.max_new_tokens}")
    target, draft, tokenizer = load_pair("pocket", "pocket-draft", "cpu", "float32")
    pair = ModelPair(target, draft, tokenizer, store_tokens=plan.store_tokens)
    about |= {"prompts": str(plan.prompts)} | marks.identity(target)
    ladders = marks.ladders(pair, plan)
    found = marks.rows(ladders, marks.PRICES, plan.tasks)
    marks.write(options.out, found, about)
    lost = options.out.with_name(f"{options.out.stem}_losses.csv")
    marks.write(lost, losses.rows(ladders, pair, marks.PRICES), about)
    for row in marks.judged(found):
        print(
            f"{row['answers']:8} {row['prices']:7} {row['mark']:42} {row['ratio']:.3f} {row['compared']:18} {row['verdict']}"
        )
    print(f"written to {options.out} and {lost}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    options = build_parser().parse_args(argv)
    return exit_status(lambda: _run(options), "interrupted; nothing was written")
