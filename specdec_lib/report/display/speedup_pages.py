"""Tables and recorded values of the chapter on real cost: what its pages show besides the figures."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pandas as pd
from transformers import PreTrainedModel

from specdec_lib import methods
from specdec_lib.chapters.ch06_gpu_benchmarks.hardware import Machine
from specdec_lib.chapters.ch06_gpu_benchmarks.speedups import DEFINITIONS
from specdec_lib.chapters.ch06_gpu_benchmarks.widened_pair import model_bytes
from specdec_lib.experiments.pass_costs import step_seconds
from specdec_lib.experiments.published_numbers import Priced
from specdec_lib.experiments.statistics import Interval
from specdec_lib.experiments.workbench import ModelPair
from specdec_lib.report.display.notices import Notice
from specdec_lib.report.display.record import record
from specdec_lib.report.display.tables import Table

#: What stands for a task in the names of recorded values.
TASKS = {
    "all": "all",
    "summarisation": "summarisation",
    "code editing": "code_editing",
    "short text editing": "short_editing",
    "long text editing": "long_editing",
    "multi-turn": "two_turn",
    "completion": "completion",
}
#: Composed speed-ups further from the measured ones than this were timed on a machine that did something else.
DISTURBED = 0.25

Rows = Sequence[Mapping[str, Any]]


def _models(pair: ModelPair) -> dict[str, tuple[PreTrainedModel, PreTrainedModel]]:
    """Target and draft model, each with the small one that it was widened from."""
    return {"target": (pair.target, pair.small.target), "draft": (pair.draft, pair.small.draft)}


def pair_table(pair: ModelPair) -> Table:
    """The models of a widened pair and their sizes."""
    rows = [
        {
            "model": name,
            "parameters": model.num_parameters() / 1e6,
            "small": small.num_parameters() / 1e6,
            "gb": model_bytes(model) / 1e9,
            "layers": model.config.num_hidden_layers,
            "width": model.config.hidden_size,
        }
        for name, (model, small) in _models(pair).items()
    ]
    columns = {"model": "Model", "parameters": "Parameters, M", "small": "of the small model, M", "gb": "GB"}
    columns |= {"layers": "Layers", "width": "Width"}
    formats = {"parameters": ",.1f", "small": ",.1f", "gb": ".2f"}
    return Table(pd.DataFrame(rows), "tab-wide-pair", "The widened pair.", columns, formats)


def record_pair(pair: ModelPair, machine: Machine) -> None:
    """Record what was widened, and the machine with its own rates."""
    record("shape", pair.shape)
    record("dtype", str(pair.target.dtype).removeprefix("torch."))
    record("device", machine.device)
    record("threads", machine.threads)
    for name, (model, _) in _models(pair).items():
        record(f"{name}_parameters", model.num_parameters())
    record("bandwidth_gb_s", machine.bandwidth.best / 1e9, timed=True)
    record("matrix_tflop_s", machine.matrix_rate.best / 1e12, timed=True)


def record_passes(steps: Rows, mode: str, draft_ms: float, asked: float) -> None:
    """Record the times of passes by runtime and width, and what a pass of the draft model costs.

    Parameters
    ----------
    steps : sequence of mapping
        Of :func:`specdec_lib.chapters.ch06_gpu_benchmarks.widened_study.steps`.
    mode : str
        The runtime that the methods run under.
    draft_ms, asked : float
        Milliseconds of the draft model's pass, and the share of the target's that was asked for.
    """
    by_width = {(row["runtime"], row["width"]): row for row in steps}
    for name in dict.fromkeys(row["runtime"] for row in steps):
        record(f"step_ms_{name}_w1", by_width[name, 1]["ms"], timed=True)
        record(f"step_ms_{name}_w32", by_width[name, 32]["ms"], timed=True)
        record(f"bandwidth_fraction_{name}_w1", by_width[name, 1]["bandwidth_fraction"], timed=True)
    record("wanted_ratio", asked)
    record("draft_ms", draft_ms, timed=True)
    record("draft_share", draft_ms / by_width[mode, 1]["ms"], timed=True)


def record_price_ratios(
    eager: Mapping[tuple[int, int], Interval],
    static: Mapping[tuple[int, int], Interval],
    gpu: Mapping[int, float],
) -> None:
    """Record what wide passes cost over narrow ones: timed in turns here, and published for a GPU.

    Parameters
    ----------
    eager, static : mapping
        By a pair of widths, the ratio of their times.
    gpu : mapping
        Published prices by width.
    """
    for (wide, narrow), ratio in eager.items():
        record(f"pass_w{wide}_over_w{narrow}", ratio, timed=True)
    record("pass_static_w8_over_w1", static[8, 1], timed=True)
    for width in (8, 32):
        record(f"said_pass_w{width}", f"{eager[width, 1]:.2f}", timed=True)
        record(f"pass_gpu_w{width}_over_w1", step_seconds(gpu, width))


def passes_table(steps: Rows) -> Table:
    """Milliseconds of a pass: a row a width, a column a runtime, and the time that the machine allows."""
    rows: dict[int, dict[str, Any]] = {}
    for row in steps:
        ends = (math.nan if row[end] is None else row[end] for end in ("median_low", "median_high"))
        rows.setdefault(row["width"], {"width": row["width"]})[row["runtime"]] = Interval(row["ms"], *ends)
        rows[row["width"]]["bound"] = row["bound_ms"]
    times = ["bound", *dict.fromkeys(row["runtime"] for row in steps)]
    return Table(
        pd.DataFrame(list(rows.values())),
        "tab-wide-steps",
        "Milliseconds of a pass of the target by its width: medians, with 95 % intervals over the repeats. The bound is the "
        "time that bandwidth and matrix rate allow.",
        {"width": "$w$", **{name: name for name in times}},
        dict.fromkeys(times, ".2f"),
    )


def record_measured(rows: Rows) -> None:
    """Record measured speed-ups and rates by method, task and sampling
    (:func:`specdec_lib.chapters.ch06_gpu_benchmarks.speedups.by_sampling`), and how many outputs there were.

    A task whose outputs are one token each has no rate: the prefill alone wrote them."""
    for row in rows:
        key = f"{methods.slug(row['method'])}_{TASKS[row['task']]}_{row['sampling']}"
        for name, value in (("speedup", row[DEFINITIONS[0]]), ("tokens_per_s", row["tokens_per_second"])):
            record(f"{name}_{key}", value if math.isfinite(value) else "not available", timed=True)
    for name in dict.fromkeys(row["sampling"] for row in rows):
        record(f"{name}_outputs", overall(rows, name)[0]["prompts"])


def overall(rows: Rows, sampling: str = "greedy") -> list[Mapping[str, Any]]:
    """The rows over all tasks together, of one kind of sampling."""
    return [row for row in rows if row["task"] == "all" and row["sampling"] == sampling]


def measured_table(rows: Rows, compared: Collection[str]) -> Table:
    """Measured rates over all tasks, with the speed-up by each definition in use."""
    columns = {"sampling": "Outputs", "method": "Method", "tokens_per_second": "tokens/s"}
    columns |= dict(zip(DEFINITIONS, ("pooled", "of mean rates", "mean of ratios"), strict=True))
    columns |= {"tokens_per_forward": "tokens/pass", "equal": "as plain"}
    return Table(
        pd.DataFrame([row | row["intervals"] for row in rows if row["task"] == "all"]),
        "tab-wide-speedups",
        "Measured rates over all tasks, and the speed-up by each definition in use, with 95 % intervals over prompts and "
        "their repeats. *Pooled* leaves out the prefill, the other two keep it. The last column counts the outputs that are "
        "those of plain decoding. "
        f"{methods.how_measured(compared)}",
        columns,
        {"tokens_per_second": ".1f", "tokens_per_forward": ".2f", "equal": "d", **dict.fromkeys(DEFINITIONS, ".2f")},
        # One tree sizes its drafts by the measured prices.
    )


def record_parts(rows: Rows) -> None:
    """Record what drafting takes, of the greedy rows over all tasks."""
    for row in rows:
        name = methods.slug(row["method"])
        record(f"draft_ms_per_step_{name}", row["draft_ms_per_step"], timed=True)
        record(f"draft_ms_per_token_{name}", row["draft_ms_per_token"], timed=True)
        record(f"draft_share_{name}", row["draft_ms"] * row["tokens_per_second"] / 1e3, timed=True)


def parts_table(rows: Rows) -> Table:
    """What a proposal takes, of a step and of a token."""
    columns = {"method": "Method", "draft_ms_per_step": "ms a step", "draft_ms_per_token": "ms a token"}
    columns |= {"verify_ms": "pass, ms a token", "host_ms": "host, ms a token"}
    times = [name for name in columns if name != "method"]
    return Table(
        pd.DataFrame([row for row in rows if row["method"] != methods.PLAIN]),
        "tab-wide-retrieval",
        "Time to propose a draft, greedy: of a step, and of an emitted token as REST counts it.",
        columns,
        dict.fromkeys(times, ".3f"),
    )


def record_peers(rows: Rows) -> None:
    """Record how many times as fast as transformers' own methods ours are."""
    for row in rows:
        name = row["method"].replace(" ", "_")
        record(f"said_peer_ratio_{name}", f"{_peer_ratio(row):.2f}", timed=True)


def _peer_ratio(row: Mapping[str, Any]) -> Interval:
    ends = (math.nan if row[end] is None else row[end] for end in ("ratio_low", "ratio_high"))
    return Interval(row["ratio"], *ends)


def peers_table(rows: Rows) -> Table:
    """Transformers' own methods and ours (:func:`specdec_lib.chapters.ch06_gpu_benchmarks.speedups.peers`)."""
    shown = [{**row, "ratio": _peer_ratio(row)} for row in rows]
    columns = {"method": "transformers", "tokens_per_second": "tokens/s", "ours": "here"}
    columns |= {"ours_tokens_per_second": "tokens/s", "ratio": "here over there", "equal": "same output"}
    times = ["tokens_per_second", "ours_tokens_per_second", "ratio"]
    return Table(
        pd.DataFrame(shown),
        "tab-wide-peers",
        "Tokens per second of transformers' own methods and of ours, greedy, prefill included. The bracket is the 95 % "
        "interval over prompts and their repeats.",
        columns,
        {**dict.fromkeys(times[:2], ".1f"), "ratio": ".2f"},
    )


def record_equal(rows: Rows, through_one_width: Rows, width: int) -> None:
    """Record how many outputs are those of plain decoding, and the largest margin where one first differs.

    Parameters
    ----------
    rows : sequence of mapping
        Of :func:`specdec_lib.chapters.ch06_gpu_benchmarks.speedups.divergences`.
    through_one_width : sequence of mapping
        Of :func:`specdec_lib.chapters.ch06_gpu_benchmarks.widened_study.through_one_width`.
    width : int
        Of its passes.
    """
    drafted = [row for row in rows if row["method"] != methods.PLAIN]
    same = [row for row in through_one_width if row["reference"] == "same width"]
    for name, own in (("bf16", drafted), ("one_width", same)):
        record(f"{name}_outputs", sum(row["outputs"] for row in own))
        record(
            f"{name}_equal", sum(row["equal"] for row in own), timed=True
        )  # one tree's widths follow measured prices
    margins = [row["margin_largest"] for row in drafted if row["margin_largest"] is not None]
    record("margin_largest", f"{max(margins):.1f}" if margins else "none differs", timed=True)
    record("one_width", width)


def record_composed(rows: Rows, unlooped: Rows) -> None:
    """Record composed speed-ups by method and task, the largest of each task, and those without loops over all tasks.

    Parameters
    ----------
    rows, unlooped : sequence of mapping
        Of :func:`specdec_lib.chapters.ch06_gpu_benchmarks.composed_speedups.composed_table`.
    """
    for row in rows:
        record(f"composed_{methods.slug(row['method'])}_{TASKS[row['task']]}", row["speedup"].value, timed=True)
        if row["task"] == "all":
            record(f"said_composed_{methods.slug(row['method'])}", f"{row['speedup']:.2f}", timed=True)
    for row in unlooped:
        if row["task"] == "all":
            record(f"composed_unlooped_{methods.slug(row['method'])}_all", row["speedup"].value, timed=True)
    copying = [row["speedup"] for row in rows if row["task"] == "all" and methods.slug(row["method"]) in _COPYING]
    record("said_copying", f"{max(copying, key=lambda speed: speed.value):.2f}", timed=True)
    for task in dict.fromkeys(row["task"] for row in rows):
        best = max((row for row in rows if row["task"] == task), key=lambda row: row["speedup"].value)
        record(f"winner_{TASKS[task]}", best["method"], timed=True)


#: Slugs of the methods that copy from the prompt and the output.
_COPYING = ("pld", "h", "a")


def composed_table(rows: Rows, unlooped: Rows, compared: Collection[str]) -> Table:
    """Composed speed-ups over all tasks, with and without the outputs that end in a loop."""
    alone = {row["method"]: row["speedup"] for row in unlooped if row["task"] == "all"}
    own = [{**row, "unlooped": alone.get(row["method"])} for row in rows if row["task"] == "all"]
    columns = {"method": "Method", "speedup": "Speed-up", "unlooped": "without loops"}
    columns |= {"tokens_per_forward": "tokens/pass", "width": "mean $w$"}
    return Table(
        pd.DataFrame([row for row in own if row["method"] != methods.PLAIN]),
        "tab-wide-methods",
        "Composed speed-up over all tasks, greedy, with 95 % intervals over prompts; the same without outputs that end in a "
        f"loop; and what it follows from. {methods.how_measured(compared)}",
        columns,
        dict.fromkeys(("speedup", "unlooped", "tokens_per_forward", "width"), ".2f"),
    )


def record_composing(errors: Mapping[str, float]) -> None:
    """Record how far composed speed-ups are from measured ones
    (:func:`specdec_lib.chapters.ch06_gpu_benchmarks.composed_speedups.composing_errors`)."""
    off = pd.Series([abs(value - 1) for value in errors.values()])
    record("composed_error_median", float(off.median()), timed=True)
    record("composed_error_largest", float(off.max()), timed=True)


def disturbed(errors: Mapping[str, float], profile: str) -> Notice | None:
    """The box of a page on which composed and measured speed-ups are too far apart; None where they agree, and in a smoke
    run, whose few steps prove nothing."""
    apart = {name: value for name, value in errors.items() if abs(value - 1) > DISTURBED}
    if not apart or profile == "smoke":
        return None
    return Notice(
        "Disturbed timing",
        "Composed and measured speed-ups differ by more than a quarter. Composed over measured is "
        + ", ".join(f"{value:.2f} for {name}" for name, value in apart.items())
        + ". Something else used this machine while passes or steps were timed. Do not use the times of this page; run the "
        "chapter again on a free machine.",
    )


def variants_table(rows: Rows) -> Table:
    """Tokens per pass, width and speed-up of each variant, at each price of a pass."""
    prices = list(rows[0]["speedups"])
    columns = {"method": "Method", "tokens_per_forward": "tokens/pass", "width": "mean $w$"}
    return Table(
        pd.DataFrame([{**row, **row["speedups"]} for row in rows]),
        "tab-wide-trees",
        "Drafts of other widths, all tasks, greedy: composed speed-up by what a pass costs, with 95 % intervals over prompts.",
        columns | {price: f"Speed-up, {price}" for price in prices},
        dict.fromkeys(("tokens_per_forward", "width", *prices), ".2f"),
    )


def prices_table(curves: Mapping[Priced, Mapping[int, float]]) -> Table:
    """Published prices of a step by the tokens in its pass."""
    rows = [
        {
            "price": f"{priced.device} ({priced.source})",
            "model": priced.model,
            "prices": ", ".join(f"{width}: {price:.2f}" for width, price in curve.items() if width > 1),
        }
        for priced, curve in curves.items()
    ]
    return Table(
        pd.DataFrame(rows),
        "tab-wide-prices",
        "Published prices of a step, in passes over one token, by the tokens in its pass. Where each comes from stands in "
        "data/published/pass_prices.csv; between widths we take straight lines.",
        {"price": "Price", "model": "Model", "prices": "Tokens in the pass: price"},
    )


def published_table(rows: Rows, prices: Sequence[str]) -> Table:
    """Published speed-ups and ours of the nearest task
    (:func:`specdec_lib.chapters.ch06_gpu_benchmarks.published_speedups.summary`) at some prices of a pass."""
    shown = [
        {
            **row,
            **{price: row["ours"].get(price) for price in prices},
        }
        for row in rows
    ]
    columns = {
        "method": "Method",
        "task": "Task here",
        "published_low": "published, lowest",
        "published_high": "highest",
    }
    columns |= {price: price for price in prices} | {"paper": "Paper", "where": "Where", "sampling": "Outputs"}
    return Table(
        pd.DataFrame(shown),
        "tab-wide-published",
        "Published speed-ups, lowest and highest that the paper prints, and ours of the nearest task, composed over all "
        "outputs. The papers' definitions of a speed-up differ, and so do their datastores.",
        columns,
        dict.fromkeys(("published_low", "published_high", *prices), ".2f"),
    )


def gpu_rows(devices: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Recorded runs on GPUs by folder: all tasks, greedy, a row a device, shape and method."""
    return [
        {
            "device": about["machine"]["device"],
            "shape": run["shape"],
            "method": row["method"],
            "tokens_per_second": row["tokens_per_second"],
            "speedup": row[DEFINITIONS[0]],
            "bandwidth": about["machine"]["bandwidth"]["best"] / 1e9,
            "date": about["provenance"]["date"],
        }
        for about in devices.values()
        for run in about["runs"]
        for row in run["speedups"]
        if row["task"] == "all" and row["sampling"] == "greedy"
    ]


def on_gpus(rows: Rows) -> Table | Notice:
    """A table of recorded runs on GPUs, or one sentence that there are none."""
    if not rows:
        return Notice(
            "No GPU result is recorded",
            "On a machine with an NVIDIA GPU, `make gpu` measures shapes of 7B and 13B and a 34B target with a 7B draft, and "
            "leaves the result in `data/results/`; the next run of this chapter shows it here.",
            "note",
        )
    columns = {"device": "Device", "shape": "Shape", "method": "Method", "tokens_per_second": "tokens/s"}
    columns |= {"speedup": "Speed-up", "bandwidth": "GB/s", "date": "Date"}
    return Table(
        pd.DataFrame(rows),
        "tab-wide-gpu",
        "Recorded runs on GPUs: all tasks, greedy.",
        columns,
        {"tokens_per_second": ".1f", "speedup": ".2f", "bandwidth": ",.0f"},
    )
