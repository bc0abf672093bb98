"""``python -m specdec_lib train-acceptance-head``: record data for an acceptance head and train it."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from specdec_lib.commands import exit_status
from specdec_lib.decoding.sampling import Sampling
from specdec_lib.experiments.acceptance_training import TASKS, train_heads
from specdec_lib.experiments.recorded_runs import load_pair
from specdec_lib.heads.acceptance import AcceptanceHead
from specdec_lib.heads.acceptance_data import LABELS, check_mixing
from specdec_lib.heads.training import Training


def _mixing(word: str) -> float | None:
    return None if word == "none" else float(word)


def build_parser() -> argparse.ArgumentParser:
    """The options of the command."""
    parser = argparse.ArgumentParser(
        prog="python -m specdec_lib train-acceptance-head",
        description=__doc__,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--target", default="pocket", help="pocket, a directory or a name on the hub")
    parser.add_argument("--draft", default="pocket-draft", help="the same; the head is for this model")
    parser.add_argument("--out", type=Path, default=Path("_build/head/acceptance.safetensors"), help="the head")
    parser.add_argument("--data", type=Path, default=Path("_build/head"), help="folder of the recorded data")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), help="names that load_task knows")
    parser.add_argument("--prompts", type=int, default=60, help="of each task")
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--temperature", type=float, default=0.0, help="of the responses")
    parser.add_argument("--top-p", type=float, default=1.0)
    parser.add_argument(
        "--labels",
        choices=LABELS,
        default="decoding",
        help="under the decoding distributions, or at temperature 1 as released",
    )
    parser.add_argument(
        "--mixing",
        type=_mixing,
        default=0.15,
        help="r, the share of the target's tokens; none: each token after an unmixed prefix",
    )
    parser.add_argument("--reject-weight", type=float, default=Training.reject_weight, help="w_rej")
    parser.add_argument("--depth", type=int, default=3, help="D, 0 to 4")
    parser.add_argument("--untied", action="store_true", help="blocks with weights of their own")
    parser.add_argument(
        "--sees-confidence",
        action="store_true",
        help="let it read the draft model's probability of the token too, which the paper's does not",
    )
    parser.add_argument("--epochs", type=int, default=Training.epochs)
    parser.add_argument("--rate", type=float, default=Training.rate)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--seeds",
        type=int,
        default=1,
        help="heads to train on the same data, from --seed on; the second is written to acceptance-1.safetensors, and so on",
    )
    return parser


def _run(options: argparse.Namespace) -> None:
    settings = Training(options.reject_weight, options.epochs, rate=options.rate, seed=options.seed)
    sampling = Sampling(options.temperature, options.top_p, seed=options.seed)
    check_mixing(options.mixing)
    AcceptanceHead(1, options.depth)  # refuses a bad depth before anything is recorded
    if options.seeds < 1:
        raise ValueError(f"seeds is {options.seeds}; expected 1 or more")
    target, draft, tokenizer = load_pair(options.target, options.draft, options.device, options.dtype)
    trained = train_heads(
        target,
        draft,
        tokenizer,
        options.data,
        settings,
        sampling,
        tasks=options.tasks,
        per_task=options.prompts,
        max_new_tokens=options.max_new_tokens,
        labels=options.labels,
        mixing=options.mixing,
        depth=options.depth,
        tied=not options.untied,
        sees_confidence=options.sees_confidence,
        seeds=options.seeds,
    )
    options.out.parent.mkdir(parents=True, exist_ok=True)
    for place, (head, tokens, prompts) in enumerate(trained):
        out = options.out.with_stem(f"{options.out.stem}-{place}") if place else options.out
        head.save(out)
        story = head.story
        best = story["curve"][story["epoch_kept"] - 1]
        print(
            f"{tokens:,} tokens of {prompts} prompts, {story['mean_acceptance']:.1%} accepted; epoch "
            f"{story['epoch_kept']} of {options.epochs} kept, held-out loss {best['held_out']:.4f}; "
            f"{story['seconds']:.0f} s"
            f"\nwritten to {out}"
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    options = build_parser().parse_args(argv)
    return exit_status(lambda: _run(options), "interrupted; the same command goes on after the last whole shard")
