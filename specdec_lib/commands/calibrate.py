"""``python -m specdec_lib calibrate``: measure what passes of a model cost by their width, for one tree."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from specdec_lib.commands import exit_status
from specdec_lib.decoding.runtime import WIDTHS
from specdec_lib.drafters.pass_prices import PassPrices
from specdec_lib.experiments.pass_costs import RUNTIMES, step_times
from specdec_lib.models.loading import load_model


def build_parser() -> argparse.ArgumentParser:
    """The options of the command."""
    parser = argparse.ArgumentParser(prog="python -m specdec_lib calibrate", description=__doc__)
    parser.add_argument("--target", required=True, help="pocket, a directory or a name on the hub")
    parser.add_argument("--draft", help="a draft model, whose pass over one token is timed as well")
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
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
    model, _ = load_model(options.target, options.device, options.dtype)
    rows = step_times(model, options.context, options.runtime, WIDTHS, options.repeats)
    one = rows[0]["ms"]
    widths = {row["width"]: row["ms"] / one for row in rows}
    drafted = 0.0
    if options.draft:
        small, _ = load_model(options.draft, options.device, options.dtype)
        drafted = step_times(small, options.context, options.runtime, (1,), options.repeats)[0]["ms"] / one
    name = f"{options.target} on {model.device.type}, {options.runtime}, {options.context} tokens before it"
    PassPrices(widths, drafted_token=drafted, name=name).save(options.out)
    print(f"a pass over one token takes {one:.2f} ms; by width, in units of it:")
    print("  ".join(f"{width}: {price:.2f}" for width, price in widths.items()))
    if options.draft:
        print(f"a drafted token: {drafted:.2f}")
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
