"""``python -m specdec_lib losslessness``: compare many prompts with plain decoding, token for token.

What counts as explained by rounding is said in :mod:`specdec_lib.experiments.losslessness`.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from specdec_lib import paths
from specdec_lib.decoding.sampling import Sampling
from specdec_lib.experiments.losslessness import SLACK, choose_prompts, compare_all, lossless_names
from specdec_lib.experiments.recorded_runs import load_pair, render
from specdec_lib.experiments.workbench import ModelPair
from specdec_lib.files import write_atomic
from specdec_lib.report.display import provenance


def build_parser() -> argparse.ArgumentParser:
    """The options of the command."""
    parser = argparse.ArgumentParser(
        prog="python -m specdec_lib losslessness",
        description=(
            "Decode many prompts plainly and with every drafter, greedy and sampled (temperature 0.7, top-p "
            "0.9), and compare the outputs token for token. Ends with exit status 1 if there is a mismatch "
            "that rounding does not explain."
        ),
    )
    parser.add_argument("--prompts", type=int, default=1000, help="how many (default: %(default)s)")
    parser.add_argument("--max-new-tokens", type=int, default=16, help="length of an output (default: %(default)s)")
    parser.add_argument(
        "--seeds", type=int, default=1, help="sampled runs of a prompt, besides the greedy one (default: %(default)s)"
    )
    parser.add_argument(
        "--method",
        action="append",
        metavar="NAME",
        help="a method or variant to compare, such as 'PLD+ (h)'; may be repeated (default: all that claim to be lossless)",
    )
    parser.add_argument("--target", default="pocket", help="name or folder of the target (default: %(default)s)")
    parser.add_argument("--draft", default="pocket-draft", help="of the draft model (default: %(default)s)")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda (default: %(default)s)")
    parser.add_argument("--dtype", default="float32", help="type of the weights (default: %(default)s)")
    parser.add_argument(
        "--output", type=Path, help="file to write (default: losslessness.json in data/results/<device>)"
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Returns
    -------
    int
        0 if every output equals plain decoding or differs only where rounding decides; 1 if not; 2 for bad
        options.
    """
    options = build_parser().parse_args(argv)
    for name, least in (("prompts", 1), ("max_new_tokens", 1), ("seeds", 0)):
        if getattr(options, name) < least:
            print(
                f"error: --{name.replace('_', '-')} is {getattr(options, name)}; expected {least} or more",
                file=sys.stderr,
            )
            return 2
    if options.method and options.output is None:
        print(
            "error: --method compares some methods alone; name a file with --output, so that the counts of all stay",
            file=sys.stderr,
        )
        return 2
    options.method = options.method or lossless_names()
    unknown = [name for name in options.method if name not in lossless_names()]
    if unknown:
        print(f"error: --method is {unknown[0]!r}; expected one of {', '.join(lossless_names())}", file=sys.stderr)
        return 2
    try:
        target, draft, tokenizer = load_pair(options.target, options.draft, options.device, options.dtype)
        prompts = [(p.id, render(p, tokenizer)) for p in choose_prompts(options.prompts)]
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    samplings = [Sampling(), *(Sampling(temperature=0.7, top_p=0.9, seed=seed) for seed in range(options.seeds))]
    bench = ModelPair.untuned(target, draft, tokenizer)
    compared = compare_all(bench, prompts, samplings, options.max_new_tokens, names=options.method)
    unexplained = sum(not m["explained"] for m in compared["mismatches"])
    device = torch.cuda.get_device_name(target.device) if target.device.type == "cuda" else target.device.type
    results = (paths.DATA if paths.ROOT else Path("_build")) / "results"
    place = options.output or results / paths.folder_of(device) / "losslessness.json"
    parameters = {name: value for name, value in vars(options).items() if name != "output"}
    content = {"unexplained": unexplained, **compared, "slack": SLACK, "provenance": provenance.collect(parameters)}
    write_atomic(place, json.dumps(_finite(content), indent=1) + "\n")
    for row in compared["counts"]:
        print(
            f"{row['method']}, {row['sampling']}: {row['outputs']} outputs, {row['tokens']} tokens, "
            f"{row['mismatches']} differ from plain decoding, {row['explained']} of them by rounding"
        )
    for name, lacks in compared["left_out"].items():
        print(f"{name}: left out; it needs {lacks}")
    print(f"written to {place}")
    if unexplained:
        print(
            f"error: {unexplained} outputs differ from plain decoding and rounding does not explain it",
            file=sys.stderr,
        )
    return 1 if unexplained else 0


def _finite(value: Any) -> Any:
    """The same with numbers that JSON does not have as None."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
