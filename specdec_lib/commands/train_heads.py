"""``python -m specdec_lib train-heads``: train heads that draft (Medusa, Hydra, EAGLE) on a target's own answers."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import torch

from specdec_lib import paths
from specdec_lib.commands import exit_status
from specdec_lib.experiments.acceptance_training import TASKS
from specdec_lib.experiments.head_training import compare_losses, train_kinds
from specdec_lib.experiments.recorded_runs import ONE_THREAD
from specdec_lib.files import write_atomic
from specdec_lib.heads.draft_training import HeadTraining, Loss
from specdec_lib.heads.drafting import KINDS
from specdec_lib.models.loading import load_model
from specdec_lib.report.display import provenance


def build_parser() -> argparse.ArgumentParser:
    """The options of the command."""
    parser = argparse.ArgumentParser(
        prog="python -m specdec_lib train-heads",
        description=__doc__,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--target", default="pocket", help="pocket, a directory or a name on the hub")
    parser.add_argument("--kind", nargs="+", choices=list(KINDS), default=list(KINDS), help="what to train")
    parser.add_argument(
        "--out",
        type=Path,
        default=paths.POCKET / "heads" if paths.ROOT else Path("heads"),
        help="folder of the heads",
    )
    parser.add_argument("--data", type=Path, default=Path("_build/heads"), help="folder of answers and checkpoints")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), help="names that load_task knows")
    parser.add_argument("--prompts", type=int, default=80, help="of each task")
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--loss", choices=get_args(Loss), default=HeadTraining.loss, help="the published one, or")
    parser.add_argument(
        "--compare-losses",
        type=Path,
        metavar="FILE",
        help="train each loss on the same answers and write how good the heads of the first kind are, and no heads",
    )
    parser.add_argument("--epochs", type=int, default=HeadTraining.epochs)
    parser.add_argument("--batch", type=int, default=HeadTraining.batch, help="answers of a step")
    parser.add_argument("--rate", type=float, help="peak rate; the kind's own without it")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--own-vocabulary", action="store_true", help="Medusa, Hydra: an output layer for each depth")
    parser.add_argument("--layers", type=int, default=1, help="Medusa, Hydra: blocks of a depth; 4 in Hydra++")
    parser.add_argument(
        "--prefix", action=argparse.BooleanOptionalAction, default=True, help="Hydra: Hydra++'s prefix layer"
    )
    parser.add_argument("--mlp", type=int, default=0, help="EAGLE: inner width of its layer; 0 for the target's own")
    return parser


def _run(options: argparse.Namespace) -> None:
    settings = HeadTraining(options.epochs, options.batch, options.rate, options.loss, options.seed)
    shared = {"own_vocabulary": options.own_vocabulary, "layers": options.layers}
    own = {"medusa": shared, "hydra": shared | {"prefix": options.prefix}, "eagle": {"mlp": options.mlp}}
    target, tokenizer = load_model(options.target, options.device, options.dtype)
    if target.device.type == "cpu" and target.num_parameters() < ONE_THREAD:
        torch.set_num_threads(1)
    answered = {"tasks": options.tasks, "per_task": options.prompts, "max_new_tokens": options.max_new_tokens}
    if options.compare_losses is not None:
        kind = options.kind[0]
        found = compare_losses(target, tokenizer, options.data, kind, settings, **answered, options=own[kind])
        given = {
            name: str(value) if isinstance(value, Path) else value
            for name, value in vars(options).items()
            if value is not None
        }
        given |= {"data": options.data.name, "out": options.out.name, "compare_losses": options.compare_losses.name}
        options.compare_losses.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(
            options.compare_losses, json.dumps(found | {"provenance": provenance.collect(given)}, indent=1) + "\n"
        )
        for loss, row in found["losses"].items():
            first = ", ".join(f"{share:.1%}" for share in row["top1"])
            print(f"{kind}, {loss} loss: first choice right by depth {first}")
        print(f"written to {options.compare_losses}")
        return
    made = train_kinds(
        target,
        tokenizer,
        options.data,
        options.out,
        options.kind,
        settings,
        **answered,
        options=own,
    )
    for kind, head in made.items():
        first = ", ".join(f"{row[0]:.1%}" for row in head.accuracies)
        print(
            f"{kind}: {head.story['predictions']:,} tokens of {head.story['answers']} answers, epoch "
            f"{head.story['epoch_kept']} of {options.epochs} kept, first choice right by depth {first}; "
            f"{head.story['seconds']:.0f} s\nwritten to {options.out / f'{kind}.safetensors'}"
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    options = build_parser().parse_args(argv)
    return exit_status(lambda: _run(options), "interrupted; the same command goes on after the last epoch")
