"""``python -m specdec_lib pocket``: train the pocket models again."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from specdec_lib import paths
from specdec_lib.chapters.a1_pocket_models import training
from specdec_lib.commands import exit_status


def build_parser() -> argparse.ArgumentParser:
    """The options of the command."""
    parser = argparse.ArgumentParser(prog="python -m specdec_lib pocket", description=main.__doc__)
    out, qwen_out = (paths.POCKET, paths.POCKET_QWEN) if paths.ROOT else (Path("pocket"), Path("pocket_qwen"))
    for flag, default, what in (
        ("--data", paths.cache() / "pocket", "what make pocket-data prepared, or a file of pocket-data --compact"),
        ("--out", out, "folder that receives target/ and the drafts"),
        ("--qwen-out", qwen_out, "folder that receives the second target"),
        ("--work", Path("_build/pocket"), "checkpoints of a run under way"),
    ):
        parser.add_argument(flag, type=Path, default=default, help=f"{what} (default: %(default)s)")
    parser.add_argument("--part", choices=training.PARTS, default="target")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--steps", type=int, help="of the part; more than a run under way has lengthen it")
    parser.add_argument("--every", type=int, default=100, help="steps between checkpoints (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=training.Recipe.seed)
    parser.add_argument(
        "--seconds",
        type=float,
        default=math.inf,
        help="end after a checkpoint within so many seconds; the same command goes on",
    )
    parser.add_argument(
        "--pieces",
        type=Path,
        metavar="FOLDER",
        help="receives each checkpoint, from which a run goes on elsewhere, and at the end the weights, in pieces of at "
        "most 15 MB",
    )
    parser.add_argument(
        "--start",
        type=Path,
        metavar="FOLDER",
        help="weights to begin with where there is no checkpoint; those that --under-way wrote go on from their step",
    )
    parser.add_argument(
        "--under-way",
        type=Path,
        metavar="FOLDER",
        help="receives the weights in bfloat16 where the run ends before its last step, for --start",
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Train the pair or the second target, or go on with a run that was stopped."""
    options = build_parser().parse_args(argv)
    recipe = replace(training.Recipe(), seed=options.seed)
    return exit_status(
        lambda: training.train_part(
            options.part,
            recipe,
            options.data,
            options.work,
            options.out,
            options.qwen_out,
            options.device,
            options.steps,
            options.every,
            options.pieces,
            options.seconds,
            options.start,
            options.under_way,
        ),
        "interrupted; the same command goes on from the last checkpoint",
    )
