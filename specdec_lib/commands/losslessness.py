"""``losslessness``: compare many prompts with plain decoding, token for token.

What counts as explained by rounding is said in :mod:`specdec_lib.experiments.checks.losslessness`.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Annotated, Any

import typer

from specdec_lib.commands import options
from specdec_lib.files import write_atomic


def losslessness(
    prompts: Annotated[int, options.whole_number("How many.")] = 1000,
    max_new_tokens: options.NewTokens = 16,
    seeds: Annotated[int, options.whole_number("Sampled runs of a prompt, after the greedy one.", 0)] = 1,
    method: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A method to compare; may be repeated (default: all that claim it)."),
    ] = None,
    target: options.Target = "smollm2",
    draft: Annotated[str, typer.Option(help="The draft model.")] = "smollm2-draft",
    device: options.Device = "auto",
    dtype: options.Dtype = "float32",
    output: Annotated[Path, options.OutputFile] = Path("_build/losslessness.json"),
) -> None:
    """Decode many prompts plainly and with every drafter, greedy and sampled, and compare the outputs token for token.

    Ends with exit status 1 if there is a mismatch that rounding does not explain.
    """
    parameters = {name: value for name, value in locals().items() if name != "output" and value is not None}
    from specdec_lib.decoding.sampling import Sampling
    from specdec_lib.experiments.checks.losslessness import SLACK, choose_prompts, compare_all, lossless_names
    from specdec_lib.experiments.data.prompt import render
    from specdec_lib.experiments.runs.recorded_runs import load_pair
    from specdec_lib.experiments.workbench import ModelPair
    from specdec_lib.report.display import provenance

    names = lossless_names()
    options.one_of("--method", method or [], names)
    model, small, tokenizer = load_pair(target, draft, device, dtype)
    chosen = [(prompt.id, render(prompt, tokenizer)) for prompt in choose_prompts(prompts)]
    samplings = [Sampling(), *(Sampling(temperature=0.7, top_p=0.9, seed=seed) for seed in range(seeds))]
    bench = ModelPair.untuned(model, small, tokenizer)
    compared = compare_all(bench, chosen, samplings, max_new_tokens, names=method or names)
    unexplained = sum(not mismatch["explained"] for mismatch in compared["mismatches"])
    content = {"unexplained": unexplained, **compared, "slack": SLACK, "provenance": provenance.collect(parameters)}
    write_atomic(output, json.dumps(_finite(content), indent=1) + "\n")
    for row in compared["counts"]:
        typer.echo(
            f"{row['method']}, {row['sampling']}: {row['outputs']} outputs, {row['tokens']} tokens, "
            f"{row['mismatches']} differ from plain decoding, {row['explained']} of them by rounding"
        )
    for name, lacks in compared["left_out"].items():
        typer.echo(f"{name}: left out; it needs {lacks}")
    typer.echo(f"written to {output}")
    if unexplained:
        typer.echo(
            f"error: {unexplained} outputs differ from plain decoding and rounding does not explain it", err=True
        )
        raise typer.Exit(1)


def _finite(value: Any) -> Any:
    """The same with numbers that JSON does not have as None."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
