"""``python -m specdec_lib fit-tree``: fit the probabilities of one tree's nodes on a model's own answers."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from specdec_lib import methods
from specdec_lib.chapters.ch08_one_tree.fitting import fit
from specdec_lib.commands import exit_status
from specdec_lib.datastores import SuffixIndex, TokenStore
from specdec_lib.decoding.contract import Capture
from specdec_lib.decoding.sampling import Sampling
from specdec_lib.experiments import made_tasks
from specdec_lib.experiments.input_guided import calibration_prompts
from specdec_lib.experiments.recorded_runs import load_pair, record_prompts
from specdec_lib.experiments.workbench import ModelPair
from specdec_lib.models.loading import load_model

#: All that can be made from the training side: tasks that copy much, little and not at all.
TASKS = tuple(made_tasks.TASKS)
#: How the answers are decoded that the weights are fitted on: half of them greedily, half by drawing.
SAMPLED = Sampling(temperature=0.7, top_p=0.95, seed=1)


def add_sources(parser: argparse.ArgumentParser) -> None:
    """The option that names what one tree drafts from."""
    parser.add_argument(
        "--source",
        action="extend",
        nargs="+",
        default=[],
        metavar="NAME",
        help=f"methods of the book that one tree drafts from (default: {', '.join(methods.TREE_SOURCES)})",
    )


def build_parser() -> argparse.ArgumentParser:
    """The options of the command."""
    parser = argparse.ArgumentParser(prog="python -m specdec_lib fit-tree", description=__doc__)
    parser.add_argument("--target", required=True, help="pocket, a directory or a name on the hub")
    parser.add_argument("--draft", help="a draft model of the same vocabulary, for sources that draft with one")
    parser.add_argument("--out", type=Path, required=True, help="safetensors file to write")
    parser.add_argument(
        "--task",
        action="append",
        default=[],
        help=f"a task of the book; may be repeated (default: the {len(TASKS)} that the library makes)",
    )
    add_sources(parser)
    parser.add_argument(
        "--store", type=Path, help="a datastore of this tokenizer for REST (default: text of Python's library)"
    )
    parser.add_argument("--heads", type=Path, help="folder of train-heads, for sources that draft with heads")
    parser.add_argument("--prompts", type=int, default=6, help="prompts of each task (default: %(default)s)")
    parser.add_argument("--max-new-tokens", type=int, default=96, help="tokens a prompt (default: %(default)s)")
    parser.add_argument(
        "--store-tokens", type=int, default=1_000_000, help="of REST's datastore without --store (default: %(default)s)"
    )
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1")
    parser.add_argument("--dtype", default="auto", help="auto, float32, bfloat16, float16")
    return parser


def _run(options: argparse.Namespace) -> None:
    out = options.out
    if not out.resolve().parent.is_dir():
        raise FileNotFoundError(f"no folder {out.resolve().parent} for {out.name}")
    for name in ("prompts", "max_new_tokens", "store_tokens"):
        if getattr(options, name) < 1:
            raise ValueError(f"--{name.replace('_', '-')} is {getattr(options, name)}; expected 1 or more")
    tasks = options.task or list(TASKS)
    # Prompts first: a model can take minutes to load, a misspelt task is found at once.
    prompts = calibration_prompts(tasks, options.prompts, split="train")
    names = tuple(dict.fromkeys(options.source)) or methods.TREE_SOURCES
    methods.check_sources(names)
    for name in names:
        if methods.METHODS[name].drafter.replays == "never":
            raise ValueError(f"{name} cannot be fitted: its drafts depend on outputs that no recorded answer has")
    if options.draft is None:
        (target, tokenizer), draft = load_model(options.target, options.device, options.dtype), None
    else:
        target, draft, tokenizer = load_pair(options.target, options.draft, options.device, options.dtype)
    pair = ModelPair(target, draft, tokenizer, store_tokens=options.store_tokens, heads_folder=options.heads)
    if options.store is not None:
        pair.sparse = SuffixIndex.open(TokenStore.open(options.store, tokenizer))
    sources = methods.tree_sources(pair, names)
    if options.source and len(sources) < len(names):
        _, missing = methods.build(pair, [name for name in names if name not in sources])
        raise ValueError("; ".join(f"the source {name} needs {what}" for name, what in missing.items()))
    capture = Capture()
    for source in sources.values():
        capture |= source.capture
    traces = [
        recording.trace
        for sampling in (None, SAMPLED)
        for recording in record_prompts(target, tokenizer, prompts, sampling, options.max_new_tokens, capture)
    ]
    fitted_on = f"{len(traces)} answers of {options.target}, greedy and sampled, to prompts of {', '.join(tasks)}"
    weights = fit(traces, sources, fitted_on)
    weights.save(out)
    print(f"sources: {', '.join(weights.sources)}")
    print(f"fitted on {fitted_on}; written to {out}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status.

    Parameters
    ----------
    argv : sequence of str, optional
        Words of the command line after ``fit-tree``.
    """
    argv = sys.argv[2:] if argv is None else argv
    options = build_parser().parse_args(argv)
    return exit_status(lambda: _run(options), "interrupted; nothing was written")
