"""``python -m specdec_lib calibrate``: measure what passes of a model cost by their width, and drafting, for one tree."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from specdec_lib import methods
from specdec_lib.commands import exit_status
from specdec_lib.commands.fit_tree import add_sources
from specdec_lib.decoding.runtime import WIDTHS
from specdec_lib.decoding.served_models import vocabulary_size
from specdec_lib.drafters.pass_prices import PassPrices
from specdec_lib.experiments.draft_costs import long_text
from specdec_lib.experiments.drafting_prices import drafting_prices
from specdec_lib.experiments.pass_costs import RUNTIMES, step_times
from specdec_lib.experiments.recorded_runs import load_pair
from specdec_lib.experiments.workbench import ModelPair
from specdec_lib.models.loading import load_model

#: Timed whatever one tree drafts from: ``diagnose`` predicts these.
ALONE = ("PLD", "REST", "SuffixDecoding")


def build_parser() -> argparse.ArgumentParser:
    """The options of the command."""
    parser = argparse.ArgumentParser(prog="python -m specdec_lib calibrate", description=__doc__)
    parser.add_argument("--target", required=True, help="pocket, a directory or a name on the hub")
    parser.add_argument("--draft", help="a draft model, whose pass over one token is timed as well")
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    add_sources(parser)
    parser.add_argument("--context", type=int, default=512, help="tokens before the pass (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=20, help="timed passes of each width (default: %(default)s)")
    parser.add_argument("--runtime", default="eager", choices=RUNTIMES, help="how passes run (default: %(default)s)")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1")
    parser.add_argument("--dtype", default="auto", help="auto, float32, bfloat16, float16")
    return parser


def _run(options: argparse.Namespace) -> None:
    if not options.out.resolve().parent.is_dir():
        raise FileNotFoundError(f"no folder {options.out.resolve().parent} for {options.out.name}")
    for name in ("context", "repeats"):
        if getattr(options, name) < 1:
            raise ValueError(f"--{name} is {getattr(options, name)}; expected 1 or more")
    names = tuple(dict.fromkeys(options.source)) or methods.TREE_SOURCES
    methods.check_sources(names)
    if options.draft:
        model, small, tokenizer = load_pair(options.target, options.draft, options.device, options.dtype)
    else:
        (model, tokenizer), small = load_model(options.target, options.device, options.dtype), None
    rows = step_times(model, options.context, options.runtime, WIDTHS, options.repeats)
    spent = {row["width"]: row["ms"] for row in rows}
    one = spent[1]
    widths = {width: ms / one for width, ms in spent.items()}
    drafted = 0.0
    if small is not None:
        drafted = step_times(small, options.context, options.runtime, (1,), options.repeats)[0]["ms"] / one
    name = f"{options.target} on {model.device.type}, {options.runtime}, {options.context} tokens before it"
    pair = ModelPair.untuned(model, small, tokenizer)
    alone, _ = methods.build(pair, ALONE)
    prompt = long_text(tokenizer, vocabulary_size(model), options.context)[: options.context]
    sources = methods.tree_sources(pair, names)
    step, drafting = drafting_prices(model, alone, sources, prompt, 6 * options.repeats + 2, spent)
    PassPrices(widths, step, drafted, name, drafting).save(options.out)
    print(f"a pass over one token takes {one:.2f} ms; by width, in units of it:")
    print("  ".join(f"{width}: {price:.2f}" for width, price in widths.items()))
    if small is not None:
        print(f"a drafted token: {drafted:.2f}")
    print(
        f"a step's own work: {step:.3f}; a draft of "
        + ", ".join(f"{name}: {price:.3f}" for name, price in drafting.items())
    )
    print(f"written to {options.out}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status.

    Parameters
    ----------
    argv : sequence of str, optional
        Words of the command line after ``calibrate``.
    """
    options = build_parser().parse_args(argv)
    return exit_status(lambda: _run(options), "interrupted; nothing was written")
