"""``python -m specdec_lib scale``: how the cost of a datastore grows with its size, for the page "Beyond one machine"."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from specdec_lib import paths
from specdec_lib.commands import exit_status
from specdec_lib.experiments import scale, stores
from specdec_lib.experiments.package_files import package_files
from specdec_lib.files import write_atomic
from specdec_lib.report.display import provenance


def build_parser() -> argparse.ArgumentParser:
    """The options of the command."""
    parser = argparse.ArgumentParser(prog="python -m specdec_lib scale", description=__doc__)
    parser.add_argument(
        "--tokens",
        type=int,
        nargs="+",
        default=[1_000_000, 10_000_000, 50_000_000, 200_000_000],
        metavar="N",
        help="tokens of the single stores (default: %(default)s; 200 million take 3 GB of memory and 3 GB of disk). The "
        "largest is built of shards too, and that one stays in the cache",
    )
    parser.add_argument(
        "--packages",
        type=Path,
        nargs="+",
        default=[],
        metavar="FOLDER",
        help="folders of wheels, such as 'pip download' or 'make pocket-data' fill: their Python files are taken as well "
        "as those of the installed packages, which have about 90 million tokens",
    )
    parser.add_argument(
        "--shard-tokens", type=int, default=stores.SHARD_TOKENS, help="tokens of one shard (default: %(default)s)"
    )
    parser.add_argument(
        "--worker-tokens", type=int, default=8_000_000, help="tokens of the store of shards (default: %(default)s)"
    )
    parser.add_argument(
        "--actors", type=int, nargs="*", default=[1, 2, 4], help="numbers of actors; none needs no Ray (default: 1 2 4)"
    )
    parser.add_argument(
        "--address",
        help="of a cluster that runs, auto for this machine's, whose actors are asked; without it one is started",
    )
    parser.add_argument(
        "--jobs", type=int, default=1, help="processes that build the largest store (default: %(default)s)"
    )
    parser.add_argument(
        "--wait",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="wait so long in all, at most, until other programs leave the machine to this one before search times are "
        "taken; the load is written down with each (default: %(default)s)",
    )
    parser.add_argument("--folder", type=Path, help="where stores are built (default: in the cache)")
    parser.add_argument("--out", type=Path, help=f"default: {paths.SCALE.name} in data/results/cpu of a checkout")
    return parser


def _run(options: argparse.Namespace, words: Sequence[str]) -> None:
    out = options.out or (paths.SCALE if paths.ROOT else Path("scale.json"))
    for name, values in (
        ("--tokens", options.tokens),
        ("--worker-tokens", [options.worker_tokens]),
        ("--shard-tokens", [options.shard_tokens]),
    ):
        if min(values) < 1000:
            raise ValueError(f"{name} is {min(values)}; expected 1,000 or more")
    if any(not 1 <= count <= scale.SHARDS for count in options.actors):
        raise ValueError(
            f"--actors is {options.actors}; expected numbers from 1 to {scale.SHARDS}, the number of shards"
        )
    torch.set_num_threads(1)
    begin, before = time.perf_counter(), scale.load_average()
    plan = scale.Plan(
        tuple(sorted(set(options.tokens))),
        options.shard_tokens,
        options.worker_tokens,
        tuple(options.actors),
        options.address,
    )
    texts = package_files(options.packages)
    folder = options.folder or paths.cache() / "scale"
    for measured in scale.measure(folder, texts, plan, jobs=options.jobs, wait=options.wait):
        facts = provenance.collect() | {
            "command": " ".join(["python -m specdec_lib scale", *words]),
            "seconds": time.perf_counter() - begin,
            "load before": before,
            "load after": scale.load_average(),
        }
        write_atomic(out, json.dumps({"measured": measured, "provenance": facts}, indent=1) + "\n")
        print(f"written to {out}: up to {measured['builds'][-1]['tokens']:,} tokens")


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and write the file that the page is made from, again after each larger store."""
    argv = sys.argv[1:] if argv is None else argv
    options = build_parser().parse_args(argv)
    return exit_status(lambda: _run(options, argv), "interrupted; the same command goes on, and what was written stays")
