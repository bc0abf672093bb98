"""``make gpu``: what passes of a large model cost by their width, and how fast a real model decodes, on a GPU or this processor.

Writes ``data/results/<device>/06.csv`` with the keys of chapter 6; those that begin with ``shape`` are of a whole model of random
weights, which costs as much as a trained one. Needs torch, transformers, numpy and numba alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import chdir
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from specdec_lib import load_model, paths, report
from specdec_lib.commands import options
from specdec_lib.drafters.pass_costs import PassCosts
from specdec_lib.experiments.costs import timing
from specdec_lib.experiments.costs.measured_passes import pass_times
from specdec_lib.experiments.data import prompts
from specdec_lib.experiments.statistics.intervals import (
    Counts,
    Interval,
    median_interval,
    pooled_rate,
    ratio_of_means,
    ratio_of_rates,
)
from specdec_lib.experiments.workbench import ModelPair
from specdec_lib.methods import METHODS, PLAIN
from specdec_lib.models.loading import resolve_device, resolve_dtype

WIDTHS = (1, 8, 32, 64)
DEFAULT = ["PLD", "PLD+ (h)", "REST", "SpecDec"]


def speed(rows: Sequence[dict[str, Any]], method: str, over: str = "") -> Interval | None:
    """Tokens per second of the whole call, or that over another method's; None if one of them did not run."""
    counts = [
        Counts(*([row[column] for row in rows if row["method"] == name] for column in timing.CALL))
        for name in (method, over)
        if name
    ]
    if not all(each.above for each in counts):
        return None
    prompts = [(row["task"], row["prompt"]) for row in rows if row["method"] == method]
    return ratio_of_rates(*counts, prompts) if over else pooled_rate(*counts, prompts)


def main(
    shape: Annotated[str, typer.Option(help=f"of {', '.join(timing.SHAPES)}")] = "7b",
    target: options.Target = "smollm2",
    draft: options.Draft = None,
    method: Annotated[
        list[str] | None, options.choice(METHODS, f"may be repeated (default: {', '.join(DEFAULT)})")
    ] = None,
    device: options.Device = "auto",
    dtype: options.Dtype = "bfloat16",
    context: Annotated[int, options.whole_number("tokens before a pass")] = 512,
    repeats: Annotated[int, options.whole_number("timed passes of each width")] = 40,
    tokens: Annotated[int, options.whole_number("of an answer")] = 96,
    per_task: Annotated[int, options.whole_number("of each task", 1, "--prompts")] = 1,
    out: Annotated[Path | None, options.folder("of the table (default: data/results/<device>)")] = None,
) -> None:
    """Measure what passes of a large model cost by their width, and how fast a real model decodes."""
    place = resolve_device(device)
    on_gpu = place.type == "cuda"
    runtime = "graph" if on_gpu else "eager"
    layers = timing.shape_of(shape).layers
    model, tokenizer = load_model(target, device, dtype)
    small = load_model(draft, device, dtype)[0] if draft else None
    whole = timing.pass_ms(shape, resolve_dtype(dtype, place), place, context, repeats, WIDTHS, runtime, few=layers)
    print(f"{shape}: {', '.join(f'{width} tokens {ms:.2f} ms' for width, ms in whole.items())}", flush=True)
    pair = ModelPair(model, small, tokenizer)
    spent = pass_times(model, context, runtime, WIDTHS, repeats)
    one = median_interval(spent[1]).value
    pair.costs = PassCosts({width: median_interval(own).value / one for width, own in spent.items()})
    asked = prompts.load("report", prompts.INPUT_GUIDED, per_task)
    rows = [row for _ in range(2) for row in timing.race(pair, asked, [PLAIN, *(method or DEFAULT)], tokens)[2]]
    name = torch.cuda.get_device_name(place) if on_gpu else place.type
    out = out or paths.root() / "data" / "results" / paths.folder_of(name)
    out.mkdir(parents=True, exist_ok=True)
    drafted = [row for row in rows if row["passes"] > 0 and row["method"] != PLAIN]
    counted = {
        "device": name,
        "dtype": str(model.dtype).removeprefix("torch."),
        "shape": shape,
        "target": target,
        "draft": draft or "none",
        "timed_compared": len(drafted),
        "timed_equal": sum(row["equal"] for row in drafted),
    }
    measured = {
        "shape_pass_ms": whole[1],
        "shape_w8_over_w1": whole[8] / whole[1],
        "shape_w32_over_w1": whole[32] / whole[1],
        "shape_w64_over_w1": whole[64] / whole[1],
        "pass_ms": one,
        "pass_w8_over_w1": ratio_of_means(spent[8], spent[1]),
        "pass_w32_over_w1": ratio_of_means(spent[32], spent[1]),
        "pass_w32_over_w8": ratio_of_means(spent[32], spent[8]),
        "timed_plain_tokens_per_s": speed(rows, PLAIN),
        "timed_pld_over_plain": speed(rows, "PLD", PLAIN),
        "timed_h_over_plain": speed(rows, "PLD+ (h)", PLAIN),
        "timed_a_over_plain": speed(rows, "PLD+ (a)", PLAIN),
        "timed_rest_over_plain": speed(rows, "REST", PLAIN),
        "timed_dresd_over_plain": speed(rows, "DReSD", PLAIN),
        "timed_specdec_over_plain": speed(rows, "SpecDec", PLAIN),
        "peer_generate": speed(rows, "transformers", PLAIN),
        "peer_lookup_over_pld": speed(rows, "transformers, prompt lookup", "PLD"),
        "peer_assisted_over_specdec": speed(rows, "transformers, assisted", "SpecDec"),
    }
    with chdir(out):
        report.save("06", counted, measured)
    print(f"written to {out / '06.csv'}")


if __name__ == "__main__":
    typer.run(main)
