"""``make gpu``: what passes of a large model cost by their width, and how fast a real model decodes, on a GPU or this processor.

Writes ``data/results/<device>/06.csv`` with the keys of chapter 6; those that begin with ``shape`` are of a whole model of random
weights, which costs as much as a trained one. Needs torch, transformers, numpy and numba alone.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import chdir
from pathlib import Path
from typing import Any

import torch

from specdec_lib import load_model, paths, report
from specdec_lib.chapters import ch06_gpu_benchmarks as speeds
from specdec_lib.drafters.pass_prices import PassPrices
from specdec_lib.experiments import prompts
from specdec_lib.experiments.pass_costs import step_samples
from specdec_lib.experiments.statistics import Counts, Interval, median, pooled_rate, ratio_of_means, ratio_of_rates
from specdec_lib.experiments.workbench import ModelPair
from specdec_lib.methods import METHODS, PLAIN
from specdec_lib.models.loading import resolve_device, resolve_dtype

WIDTHS = (1, 8, 32, 64)


def speed(rows: Sequence[dict[str, Any]], method: str, over: str = "") -> Interval | None:
    """Tokens per second of the whole call, or that over another method's; None if one of them did not run."""
    counts = [
        Counts(*([row[column] for row in rows if row["method"] == name] for column in speeds.CALL))
        for name in (method, over)
        if name
    ]
    if not all(each.above for each in counts):
        return None
    prompts = [(row["task"], row["prompt"]) for row in rows if row["method"] == method]
    return ratio_of_rates(*counts, prompts) if over else pooled_rate(*counts, prompts)


def main(words: Sequence[str]) -> None:
    """Measure what is asked for, and write it at the end."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--shape", default="7b", help=f"of {', '.join(speeds.SHAPES)} (default: %(default)s)")
    parser.add_argument("--target", default="smollm2", help="the real model (default: %(default)s)")
    parser.add_argument("--draft", default="", help="its draft model (default: none)")
    parser.add_argument("--methods", nargs="*", default=["PLD", "PLD+ (h)", "REST", "SpecDec"], choices=METHODS)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--context", type=int, default=512, help="tokens before a pass (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=40, help="timed passes of each width (default: %(default)s)")
    parser.add_argument("--tokens", type=int, default=96, help="of an answer (default: %(default)s)")
    parser.add_argument("--prompts", type=int, default=1, help="of each task (default: %(default)s)")
    parser.add_argument("--out", type=Path, help="folder (default: data/results/<device>)")
    options = parser.parse_args(words)
    device = resolve_device(options.device)
    dtype, on_gpu = resolve_dtype(options.dtype, device), device.type == "cuda"
    runtime = "graph" if on_gpu else "eager"
    shape = speeds.shape_of(options.shape)
    target, tokenizer = load_model(options.target, options.device, options.dtype)
    draft = load_model(options.draft, options.device, options.dtype)[0] if options.draft else None
    whole = speeds.pass_ms(
        options.shape, dtype, device, options.context, options.repeats, WIDTHS, runtime, few=shape.layers
    )
    print(f"{options.shape}: {', '.join(f'{width} tokens {ms:.2f} ms' for width, ms in whole.items())}", flush=True)
    pair = ModelPair(target, draft, tokenizer)
    spent = step_samples(target, options.context, runtime, WIDTHS, options.repeats)
    one = median(spent[1]).value
    pair.prices = PassPrices({width: median(own).value / one for width, own in spent.items()})
    asked = prompts.load("report", prompts.INPUT_GUIDED, options.prompts)
    rows = [row for _ in range(2) for row in speeds.timed(pair, asked, [PLAIN, *options.methods], options.tokens)[2]]
    name = torch.cuda.get_device_name(device) if on_gpu else device.type
    out = options.out or paths.root() / "data" / "results" / paths.folder_of(name)
    out.mkdir(parents=True, exist_ok=True)
    counted = {
        "device": name,
        "dtype": str(target.dtype).removeprefix("torch."),
        "shape": options.shape,
        "target": options.target,
        "draft": options.draft or "none",
        "timed_compared": sum(row["passes"] > 0 for row in rows),
        "timed_equal": sum(row["passes"] > 0 and row["equal"] for row in rows),
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
    main(sys.argv[1:])
