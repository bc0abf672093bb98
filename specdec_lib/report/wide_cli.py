"""``python -m specdec_lib gpu``: measure pairs of wide models and leave the results for the book.

Needs torch, transformers, numpy and numba alone; FAISS and pydivsufsort are used where they are there. On a machine
without a GPU it runs on the CPU, with the shapes and sizes that are asked for.
"""

from __future__ import annotations

import argparse
import csv
import gc
import io
import json
import re
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers

from specdec_lib import paths
from specdec_lib.evaluation.machine import measure_machine
from specdec_lib.evaluation.wide import METHODS, build_pair
from specdec_lib.evaluation.wide_study import Plan, study
from specdec_lib.models.shapes import preset
from specdec_lib.models.loading import resolve_device, resolve_dtype
from specdec_lib.report import provenance
from specdec_lib.report.files import write_atomic

#: What one card of 140 GB does in 20 minutes. A pair names the draft's shape too, and compares SpecDec++ alone.
SHAPES, PAIRS = ("7b", "13b"), ("34b/7b",)
RESULTS = "wide.json"


def folder_of(device: str) -> str:
    """Name of the folder of a device's results: letters, digits and hyphens.

    Examples
    --------
    >>> folder_of("NVIDIA H200")
    'nvidia-h200'
    """
    return re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-")


def as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as a CSV file, columns in order of first appearance."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def write(folder: Path, found: dict[str, Any]) -> None:
    """Write the results whole, and their two tables as CSV files."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("steps", "speedups"):
        rows = [{"shape": run["shape"], **row} for run in found["runs"] for row in run[name]]
        write_atomic(folder / f"wide_{name}.csv", as_csv(rows))
    write_atomic(folder / RESULTS, json.dumps(found, indent=1) + "\n")


def results(folder: Path | None = None) -> dict[str, dict[str, Any]]:
    """Recorded results of wide models by device folder, ``data/results`` by default; without those of a CPU.

    Parameters
    ----------
    folder : Path, optional
    """
    folder = folder or paths.DATA / "results"
    found = {path.parent.name: json.loads(path.read_text()) for path in sorted(folder.glob(f"*/{RESULTS}"))}
    return {name: about for name, about in found.items() if about["machine"]["device"] != "cpu"}


def main(argv: list[str] | None = None) -> int:
    """Measure the asked pairs; what is done is written after each."""
    parser = argparse.ArgumentParser(prog="python -m specdec_lib gpu", description=main.__doc__)
    parser.add_argument("--shapes", nargs="*", default=list(SHAPES), metavar="7b", help="targets, all methods each")
    parser.add_argument(
        "--pairs", nargs="*", default=list(PAIRS), metavar="34b/7b", help="target/draft shapes, draft models alone"
    )
    parser.add_argument("--target", default="pocket", help="small model that is widened; with --shapes own: as it is")
    parser.add_argument("--draft", default="pocket-draft")
    parser.add_argument("--ratio", type=float, default=0.1, help="wanted t_draft / t_target where no shape is named")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--runtime", default="auto", help="eager, static, compiled or graph (auto: graph on a GPU)")
    parser.add_argument("--per-task", type=int, default=4)
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--out", type=Path, help="folder (default: data/results/<device>)")
    args = parser.parse_args(argv)
    wanted = [(shape, "") for shape in args.shapes] + [tuple(pair.split("/", 1)) for pair in args.pairs]
    for name in {name for pair in wanted for name in pair} - {"", "own"}:
        preset(name)
    transformers.logging.set_verbosity_error()
    device = resolve_device(args.device)
    on_gpu = device.type == "cuda"
    runtime = ("graph" if on_gpu else "eager") if args.runtime == "auto" else args.runtime
    plan = Plan(
        per_task=args.per_task,
        max_new_tokens=args.max_new_tokens,
        repeats=args.repeats,
        context=args.context,
        runtimes=tuple(dict.fromkeys(["eager", "graph" if on_gpu else "static", runtime])),
        runtime=runtime,
    )
    began = time.perf_counter()
    dtype = resolve_dtype(args.dtype, device)
    machine = measure_machine(str(device), dtype)
    print(
        f"{machine.device}: reads {machine.bandwidth.best / 1e9:,.0f} GB/s, "
        f"multiplies {machine.matrix_rate.best / 1e12:,.2f} TFLOP/s ({machine.dtype})",
        flush=True,
    )
    out = args.out or (paths.ROOT or Path.cwd()) / "data" / "results" / folder_of(machine.device)
    found: dict[str, Any] = {"machine": machine.as_dict(), "runs": [], "provenance": provenance.collect()}
    for shape, draft_shape in wanted:

        def say(text: str, shape: str = shape) -> None:
            print(f"[{time.perf_counter() - began:6.0f} s] {shape}: {text}", flush=True)

        say("building")
        pair = build_pair(
            args.target,
            args.draft,
            "" if shape == "own" else shape,
            args.ratio,
            str(device),
            args.dtype,
            draft_named=draft_shape,
        )
        methods = ("plain", "SpecDec", "SpecDec++") if draft_shape else METHODS
        found["runs"].append(study(pair, Plan(**{**vars(plan), "methods": methods}), machine, say))
        write(out, found)
        del pair
        gc.collect()
        if on_gpu:
            torch.cuda.empty_cache()
    print(f"written to {out} after {time.perf_counter() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
