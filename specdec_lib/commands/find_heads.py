"""``python -m specdec_lib find-heads``: identify the induction heads of a hub or local model, for PLD+ (a)."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from specdec_lib.commands import exit_status
from specdec_lib.experiments.input_guided import CALIBRATION, calibration_prompts
from specdec_lib.experiments.recorded_runs import render
from specdec_lib.heads.induction import InductionHeads, identify
from specdec_lib.models.loading import load_model


def describe(heads: InductionHeads, count: int) -> str:
    """The ``count`` best heads, one a line, below how many were credited."""
    ranked = heads.ranked()
    lines = [
        f"{len(ranked)} of {heads.peaks.size} heads peak at the origin of at least one of {heads.copied:,} copied "
        "tokens",
        "block  head  peaks at the origin  attention on it",
    ]
    lines += [f"{b:5}  {h:4}  {heads.peaks[b, h]:19.1%}  {heads.attention[b, h]:15.3f}" for b, h in ranked[:count]]
    return "\n".join(lines)


def build_parser() -> argparse.ArgumentParser:
    """The options of the command."""
    parser = argparse.ArgumentParser(prog="python -m specdec_lib find-heads", description=__doc__)
    parser.add_argument("--target", required=True, help="pocket, a directory or a name on the hub")
    parser.add_argument("--out", type=Path, required=True, help="file to write; read instead where it is there")
    parser.add_argument(
        "--task",
        action="append",
        default=[],
        help=f"a task of the book; may be repeated (default: {', '.join(CALIBRATION)})",
    )
    parser.add_argument("--prompts", type=int, default=8, help="prompts of each task (default: %(default)s)")
    parser.add_argument("--max-new-tokens", type=int, default=96, help="tokens a prompt (default: %(default)s)")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1")
    parser.add_argument("--dtype", default="auto", help="auto, float32, bfloat16, float16")
    parser.add_argument("--show", type=int, default=10, help="heads to print (default: %(default)s)")
    parser.add_argument("--force", action="store_true", help="identify again where the file is there")
    return parser


def _run(options: argparse.Namespace) -> None:
    if not options.out.resolve().parent.is_dir():
        raise FileNotFoundError(f"no folder {options.out.resolve().parent} for {options.out.name}")
    if options.max_new_tokens < 1:
        raise ValueError(f"--max-new-tokens is {options.max_new_tokens}; expected 1 or more")
    if options.prompts < 1:
        raise ValueError(f"--prompts is {options.prompts}; expected 1 or more")
    reads = options.out.exists() and not options.force
    # Prompts first: a model can take minutes to load, a misspelt task is found at once.
    prompts = [] if reads else calibration_prompts(options.task or CALIBRATION, options.prompts)
    model, tokenizer = load_model(options.target, options.device, options.dtype)
    if reads:
        heads = InductionHeads.load(options.out, model)
        print(f"{options.out} holds the heads of this model; --force identifies them again")
    else:
        heads = identify(model, [render(prompt, tokenizer) for prompt in prompts], options.max_new_tokens)
        heads.save(options.out)
        print(f"written to {options.out}")
    print(describe(heads, options.show))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status.

    Parameters
    ----------
    argv : sequence of str, optional
        Words of the command line after ``find-heads``.
    """
    options = build_parser().parse_args(argv)
    return exit_status(lambda: _run(options), "interrupted; nothing was written")
