"""``python -m specdec_lib head``: record data for an acceptance head and train it."""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import transformers
from transformers import PreTrainedTokenizerBase

from specdec_lib import paths
from specdec_lib.commands import exit_status
from specdec_lib.decoding.sampling import Sampling
from specdec_lib.drafters import PromptLookup
from specdec_lib.heads.acceptance import AcceptanceHead
from specdec_lib.heads.acceptance_data import LABELS, Response, check_mixing, examples, generate_data
from specdec_lib.heads.training import Training, train
from specdec_lib.models.fingerprint import fingerprint
from specdec_lib.experiments.recorded_runs import load_pair, render
from specdec_lib.experiments.tasks import load_task

#: Tasks that the shipped head is trained on; of two-turn the first turn alone, which is a rename.
TASKS = ("rename", "remove-docstring", "quote-lines", "outline", "complete", "two-turn")


def training_prompts(
    tokenizer: PreTrainedTokenizerBase, tasks: Sequence[str], per_task: int, seed: int = 0, longest: int = 700
) -> list[list[int]]:
    """First turns of prompts of at most ``longest`` tokens to train on, the tasks in turn; of mechanical tasks those
    from modules that are not held out."""
    from specdec_lib.experiments import made_tasks

    found = []
    for task in tasks:
        own = {"split": "train", "seed": seed} if task in made_tasks.TASKS else {"seed": seed}
        found.append([render(p, tokenizer) for p in load_task(task, limit=per_task, **own)])
    turns = [group[i] for i in range(per_task) for group in found if i < len(group)]
    return [ids for ids in turns if len(ids) <= longest]


def parted(responses: Sequence[Response], share: float = 0.1) -> tuple[list[Response], list[Response]]:
    """Responses to train on, and those held out to choose the epoch by.

    At least one is held out, by a fixed permutation, because every n-th one misses some of the tasks that
    :func:`training_prompts` takes in turn.
    """
    drawn = np.random.default_rng(0).permutation(len(responses))
    held_out = set(drawn[: max(1, round(share * len(responses)))].tolist())
    return (
        [r for i, r in enumerate(responses) if i not in held_out],
        [r for i, r in enumerate(responses) if i in held_out],
    )


def _mixing(word: str) -> float | None:
    return None if word == "none" else float(word)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m specdec_lib head",
        description=__doc__,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--target", default="pocket", help="pocket, a directory or a name on the hub")
    parser.add_argument("--draft", default="pocket-draft", help="the same; the head is for this model")
    parser.add_argument(
        "--out",
        type=Path,
        default=paths.POCKET / "head" / "acceptance.safetensors" if paths.ROOT else Path("acceptance.safetensors"),
        help="the head",
    )
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
        help="r, the share of the target's tokens; none: each token behind an unmixed prefix",
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
    return parser


def _run(args: argparse.Namespace) -> None:
    settings = Training(args.reject_weight, args.epochs, rate=args.rate, seed=args.seed)
    sampling = Sampling(args.temperature, args.top_p, seed=args.seed)
    check_mixing(args.mixing)
    AcceptanceHead(1, args.depth)  # refuses a bad depth before anything is recorded
    target, draft, tokenizer = load_pair(args.target, args.draft, args.device, args.dtype)
    prompts = training_prompts(tokenizer, args.tasks, args.prompts, args.seed)
    responses = generate_data(
        target, draft, prompts, args.data, sampling, args.labels, args.max_new_tokens, PromptLookup()
    )
    began = time.perf_counter()
    fit, chosen_by = (examples(draft, part, args.mixing, args.seed) for part in parted(responses))
    head = train(
        fit,
        chosen_by,
        settings,
        args.depth,
        not args.untied,
        draft=fingerprint(draft),
        sees_confidence=args.sees_confidence,
    )
    head.story |= {
        "data": json.loads((args.data / "about.json").read_text()),
        "tasks": args.tasks,
        "prompts_per_task": args.prompts,
        "mixing": args.mixing,
        "mean_acceptance": float(fit.acceptance.mean()),
        "seconds": time.perf_counter() - began,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "device": draft.device.type,
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    head.save(args.out)
    best = head.story["curve"][head.story["epoch_kept"] - 1]
    print(
        f"{len(fit):,} tokens of {len(prompts)} prompts, {fit.acceptance.mean():.1%} accepted; epoch "
        f"{head.story['epoch_kept']} of {args.epochs} kept, held-out loss {best['held_out']:.4f}; "
        f"{head.story['seconds']:.0f} s"
        f"\nwritten to {args.out}"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status.

    Parameters
    ----------
    argv : sequence of str, optional
        Words of the command line behind ``head``.
    """
    args = _parser().parse_args(argv)
    return exit_status(lambda: _run(args), "interrupted; the same command goes on after the last whole shard")
