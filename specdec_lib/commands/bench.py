"""``python -m specdec_lib bench``: how fast the library itself is, compared with programs that do the same work."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import torch
import transformers

from specdec_lib import paths
from specdec_lib.files import write_atomic
from specdec_lib.report import benchmarks


def build_parser() -> argparse.ArgumentParser:
    """The options of the command."""
    parser = argparse.ArgumentParser(prog="python -m specdec_lib bench", description=main.__doc__)
    parser.add_argument(
        "--out", type=Path, help="default: data/results/cpu/bench.json in a checkout, else ./bench.json"
    )
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="NAME",
        choices=benchmarks.SECTIONS,
        help=f"one of {', '.join(benchmarks.SECTIONS)}; may be repeated; the file's other sections stay",
    )
    parser.add_argument("--quick", action="store_true", help="few samples, to see that it runs; needs --out")
    return parser


def main(argv: list[str] | None = None) -> int:
    """Measure how fast the library is, and write the file of the page "How fast is the library itself?"."""
    argv = sys.argv[1:] if argv is None else argv
    parser = build_parser()
    args = parser.parse_args(argv)
    if args.quick and args.out is None:
        parser.error("--quick measures nothing worth keeping: name another file with --out")
    out = args.out or (paths.BENCH if paths.ROOT else Path("bench.json"))
    earlier = json.loads(out.read_text(encoding="utf-8"))["sections"] if args.only and out.is_file() else {}
    transformers.logging.set_verbosity_error()
    # Forwards this small gain little from a second thread and lose much when another program takes its core.
    torch.set_num_threads(1)
    command = " ".join(["python -m specdec_lib bench", *argv])
    measured = earlier | benchmarks.measure(args.only or list(benchmarks.SECTIONS), args.quick, command)
    sections = {name: measured[name] for name in benchmarks.SECTIONS if name in measured}
    write_atomic(out, json.dumps({"sections": sections}, indent=1, ensure_ascii=False) + "\n")
    for one in (one for section in sections.values() for one in section["rows"]):
        peer = f"   {one['peer']} {one['peer_value']:.3f}, ratio {one['ratio']:.3f}" if one["peer"] else ""
        print(f"{one['work']:52} {one['value']:10.3f} {one['unit']}{peer}")
    return 0
