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
import signal
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers

from specdec_lib import paths
from specdec_lib.chapters.ch06_gpu_benchmarks.hardware import folder_of, measure_machine
from specdec_lib.chapters.ch06_gpu_benchmarks.shapes import preset
from specdec_lib.chapters.ch06_gpu_benchmarks.widened_pair import build_pair
from specdec_lib.chapters.ch06_gpu_benchmarks.widened_study import PARTS, Plan, study
from specdec_lib.commands import exit_status
from specdec_lib.files import write_atomic
from specdec_lib.methods import METHODS, PLAIN
from specdec_lib.models.loading import resolve_device, resolve_dtype
from specdec_lib.report.display import provenance

#: Tokens and repeats by kind of device. They are chosen so that the 7b shape should fit a call of ten minutes; no run on a card
#: is recorded yet.
TOKENS = {"cuda": 48, "cpu": 64}
REPEATS = {"cuda": 2, "cpu": 3}
STEP_REPEATS = {"cuda": 100, "cpu": 20}
#: Shapes by kind of device. A pair names the draft's shape too, and compares draft models alone.
SHAPES = {"cuda": ("7b", "13b"), "cpu": ("0.35b",)}
PAIRS = {"cuda": ("34b/7b",), "cpu": ()}
RESULTS = "wide.json"


def as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as a CSV file, columns in order of first appearance."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def write(folder: Path, report: dict[str, Any]) -> None:
    """Write the report whole, and its two tables as CSV files."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("steps", "speedups"):
        rows = [{"shape": run["shape"], **row} for run in report["runs"] for row in run[name]]
        write_atomic(folder / f"wide_{name}.csv", as_csv(rows))
    write_atomic(folder / RESULTS, json.dumps(report, indent=1) + "\n")


def results(folder: Path | None = None) -> dict[str, dict[str, Any]]:
    """Recorded results of wide models by device folder, ``data/results`` by default; without those of a CPU.

    Parameters
    ----------
    folder : Path, optional
    """
    folder = folder or paths.DATA / "results"
    by_folder = {path.parent.name: json.loads(path.read_text()) for path in sorted(folder.glob(f"*/{RESULTS}"))}
    return {name: about for name, about in by_folder.items() if about["machine"]["device"] != "cpu"}


def build_parser() -> argparse.ArgumentParser:
    """The options of the command."""
    parser = argparse.ArgumentParser(prog="python -m specdec_lib gpu", description=main.__doc__)
    parser.add_argument(
        "--shapes", nargs="*", metavar="7b", help="targets, all methods each (default: 7b 13b on a GPU, else 0.35b)"
    )
    parser.add_argument(
        "--pairs",
        nargs="*",
        metavar="34b/7b",
        help="target/draft shapes, draft models alone (default: on a GPU 34b/7b)",
    )
    parser.add_argument("--target", default="pocket", help="small model that is widened; with --shapes own: as it is")
    parser.add_argument("--draft", default="pocket-draft")
    parser.add_argument("--ratio", type=float, default=0.1, help="wanted t_draft / t_target where no shape is named")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument(
        "--runtime",
        default="auto",
        choices=("auto", "eager", "static", "graph"),
        help="auto: graph on one GPU, else eager",
    )
    parser.add_argument("--per-task", type=int, default=2)
    parser.add_argument("--max-new-tokens", type=int, help="(default: 48 on a GPU, else 64)")
    parser.add_argument("--repeats", type=int, help="(default: 2 on a GPU, else 3)")
    parser.add_argument(
        "--only",
        metavar="PART,PART",
        default=",".join(PARTS),
        help=f"parts of each pair, of {', '.join(PARTS)} (default: all)",
    )
    parser.add_argument("--seconds", type=float, default=float("inf"), help="no part begins after so many seconds")
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--out", type=Path, help="folder (default: data/results/<device>)")
    return parser


def main(argv: list[str] | None = None) -> int:
    """Measure the asked pairs; what is done is written after each of their parts.

    Results of other shapes that the folder holds from the same device stay.
    """
    args = build_parser().parse_args(argv)

    def interrupt(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    # What ends a job at its time limit ends it as a key does; a shell lets its background jobs ignore that key.
    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        return exit_status(lambda: _run(args), "interrupted; what was finished before is written")
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _shapes(run: Mapping[str, Any]) -> tuple[str, str]:
    return run["shape"], run.get("draft_shape", "")


def _earlier(out: Path, device: str) -> list[dict[str, Any]]:
    """Runs that a folder holds of the same device."""
    try:
        written = json.loads((out / RESULTS).read_text())
    except OSError:
        return []
    return written["runs"] if written["machine"]["device"] == device else []


def _run(args: argparse.Namespace) -> int:
    device = resolve_device(args.device)
    if device.type not in SHAPES:
        raise ValueError(f"device is {args.device!r}; expected 'auto', 'cpu', 'cuda' or one such as 'cuda:1'")
    shapes = SHAPES[device.type] if args.shapes is None else args.shapes
    pairs = PAIRS[device.type] if args.pairs is None else args.pairs
    odd = [pair for pair in pairs if pair.count("/") != 1]
    if odd:
        raise ValueError(f"--pairs has {odd[0]!r}; expected target/draft, such as 34b/7b")
    wanted = [(shape, "") for shape in shapes] + [tuple(pair.split("/")) for pair in pairs]
    for name in {name for pair in wanted for name in pair} - {"", "own"}:
        preset(name)
    only = args.only.split(",")
    unknown = [part for part in only if part not in PARTS]
    if unknown:
        raise ValueError(f"--only has {unknown[0]!r}; expected some of {', '.join(PARTS)}, with commas between them")
    transformers.logging.set_verbosity_error()
    on_gpu = device.type == "cuda"
    runtime = ("graph" if on_gpu else "eager") if args.runtime == "auto" else args.runtime
    plan = Plan(
        per_task=args.per_task,
        max_new_tokens=args.max_new_tokens or TOKENS[device.type],
        repeats=args.repeats or REPEATS[device.type],
        context=args.context,
        step_repeats=STEP_REPEATS[device.type],
        runtimes=tuple(dict.fromkeys(["eager", "graph" if on_gpu else "static", runtime])),
        runtime=runtime,
    )
    began = time.perf_counter()
    dtype = resolve_dtype(args.dtype, device)
    machine = measure_machine(str(device), dtype)
    print(
        f"{machine.device}: moves {machine.bandwidth.best / 1e9:,.0f} GB/s ({machine.bandwidth.what}), "
        f"multiplies {machine.matrix_rate.best / 1e12:,.2f} TFLOP/s ({machine.dtype})",
        flush=True,
    )
    out = args.out or (paths.ROOT or Path.cwd()) / "data" / "results" / folder_of(machine.device)
    report: dict[str, Any] = {
        "machine": machine.as_dict(), "runs": _earlier(out, machine.device), "left_out": [],
        "provenance": provenance.collect(),
    }  # fmt: skip
    failed, measured = False, set()
    for shape, draft_shape in wanted:

        def say(text: str, shape: str = shape) -> None:
            print(f"[{time.perf_counter() - began:6.0f} s] {shape}: {text}", flush=True)

        if time.perf_counter() - began >= args.seconds:
            report["left_out"].append({"shape": shape, "draft_shape": draft_shape, "why": "out of time"})
            write(out, report)
            continue
        say("building")
        pair, run = None, {"draft_shape": draft_shape}
        try:
            pair = build_pair(
                args.target,
                args.draft,
                "" if shape == "own" else shape,
                args.ratio,
                str(device),
                args.dtype,
                draft_named=draft_shape,
            )
            methods = plan.methods
            if draft_shape:  # draft models alone
                methods = tuple(name for name in methods if name == PLAIN or METHODS[name].price == "token")
            chosen = Plan(**{**vars(plan), "methods": methods})

            def keep(run: dict[str, Any] = run) -> None:
                # In place of an earlier one of the same shapes, as soon as a part of it is measured.
                others = [each for each in report["runs"] if _shapes(each) != _shapes(run)]
                report["runs"] = [*others, run]
                measured.add(_shapes(run))
                write(out, report)

            study(
                pair, chosen, machine, say, only, run, keep, lambda: time.perf_counter() - began < args.seconds
            )  # fmt: skip
        except Exception as error:
            # The other shapes are worth having, and so is what was measured of this one; what ended it is written down.
            why = (str(error).splitlines() or [""])[0] or type(error).__name__
            report["left_out"].append({"shape": shape, "draft_shape": draft_shape, "why": why})
            say(f"left out: {why}")
            if not isinstance(error, (MemoryError, torch.OutOfMemoryError)):
                failed = True
                traceback.print_exc()
        write(out, report)
        del pair
        gc.collect()
        if on_gpu:
            torch.cuda.empty_cache()
    print(f"written to {out} after {time.perf_counter() - began:.0f} s")
    return 0 if measured and not failed else 1


if __name__ == "__main__":
    sys.exit(main())
