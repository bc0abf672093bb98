"""What the page "Beyond one machine" shows: the file that ``python -m specdec_lib scale`` wrote, and what follows from it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specdec_lib import paths
from specdec_lib.experiments.scale import SHARDS, Projection, project, search_law
from specdec_lib.report.display import tables

#: Sizes that are computed: a billion tokens, and a million times a million.
COMPUTED = (10**9, 10**12)


def content(path: Path | None = None) -> Mapping[str, Any]:
    """Read the file; an error that names the command where it is missing."""
    path = path or paths.SCALE
    if not path.is_file():
        raise FileNotFoundError(f"{path} is not there: measure it with python -m specdec_lib scale")
    return json.loads(path.read_text(encoding="utf-8"))


def _table(headings: list[str], rows: list[list[str]]) -> list[str]:
    lines = [f"| {' | '.join(headings)} |", f"|:--|{'--:|' * (len(headings) - 1)}"]
    return [*lines, *(f"| {' | '.join(map(tables.markdown_cell, row))} |" for row in rows), ""]


def _bytes(value: float) -> str:
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.0f} bytes"


def _seconds(value: float) -> str:
    return f"{value:.3g} s" if value >= 1 else f"{1e3 * value:.3g} ms"


def _builds(measured: Mapping[str, Any]) -> list[str]:
    rows = [
        [
            f"{row['tokens']:,}",
            f"{row['tokens'] / row['tokenize_seconds']:,.0f}",
            f"{row['tokens'] / row['sort_seconds']:,.0f}",
            f"{row['bytes'] / row['tokens']:.1f}",
            # The most memory that a process had tells nothing of work that needed less than its start did.
            f"{more / row['tokens']:.1f}" if (more := row["memory_peak"] - row["memory_before"]) > 0 else "–",
            f"{search['search']['median']:.1f} ({search['search']['p95']:.1f})",
            f"{search['draft']['median']:.0f} ({search['draft']['p95']:.0f})",
        ]
        for row, search in zip(measured["builds"], measured["searches"], strict=True)
    ]
    headings = [
        "Tokens",
        "Tokenized per second",
        "Sorted per second",
        "Bytes a token on disk",
        "Bytes of memory a token, at most",
        "Search, µs (95th percentile)",
        "Draft of REST, µs (95th percentile)",
    ]
    return _table(headings, rows)


def _workers(measured: Mapping[str, Any]) -> list[str]:
    one = next(row for row in measured["workers"] if row["workers"] == "1 process")
    rows = [
        [
            row["workers"],
            f"{row['tokens']:,}",
            f"{row['seconds']:.0f}",
            f"{row['tokens_per_second']:,.0f}",
            f"{row['tokens_per_second'] / one['tokens_per_second']:.2f}",
        ]
        for row in measured["workers"]
    ]
    return _table(["Workers", "Tokens", "Seconds", "Tokens per second", "Speed relative to one process"], rows)


def _actors(measured: Mapping[str, Any]) -> list[str]:
    rows = []
    for row in measured["actors"]:
        trip = row.get("round_trip")
        rows.append(
            [
                f"actors: {row['actors']}" if row["actors"] else "none: searched in this process",
                f"{row['median']:,.0f} ({row['p95']:,.0f})",
                f"{trip['median']:,.0f} ({trip['p95']:,.0f})" if trip else "–",
                f"{row['late']:.1%}" if trip else "–",
            ]
        )
    headings = [
        "Where the shards are",
        "Draft, µs (95th percentile)",
        "Call alone, µs (95th percentile)",
        "Later than 5 ms",
    ]
    return _table(headings, rows)


def _projections(rows: list[Projection]) -> list[str]:
    cells = [
        [
            f"{row.tokens:,}",
            f"{row.shards:,}",
            _bytes(row.bytes),
            f"{row.core_hours:,.1f}",
            _bytes(row.dense_bytes),
            f"{row.dense_hours:,.0f}",
            _seconds(row.local_seconds) if row.local_seconds is not None else f"fits no host; {row.hosts} hosts",
            _seconds(row.remote_seconds),
            _seconds(row.least_pass_seconds),
        ]
        for row in rows
    ]
    headings = [
        "Tokens",
        "Shards",
        "Bytes",
        "Core-hours",
        "Bytes, dense",
        "Core-hours, dense",
        "Draft, one host",
        "Draft, remote",
        "Pays above a pass of",
    ]
    return _table(headings, cells)


def text(file: Mapping[str, Any]) -> str:
    """Return the page after its introduction."""
    measured, facts = file["measured"], file["provenance"]
    largest = measured["builds"][-1]
    a, b = search_law(measured["searches"])
    billion, trillion = computed = [project(measured, tokens) for tokens in COMPUTED]
    here = measured["actors"][0]
    one = next(row for row in measured["actors"] if row["actors"])
    load = ", ".join(f"{value}" for value in facts["load before"])
    cores = int(facts["machine"]["cores"])
    busy = max(facts["load before"][0], facts["load after"][0]) > cores
    notice = [
        ":::{warning}",
        f"Other programs took a large part of this machine while these numbers were measured: {load} programs waited for "
        f"{cores} cores. Rates are therefore too low and times too high. `python -m specdec_lib scale` measures them again.",
        ":::",
        "",
    ]
    return "\n".join(
        [
            *(notice if busy else []),
            f"The largest store measured here has {largest['tokens']:,} tokens. A billion tokens would take "
            f"{_bytes(billion.bytes)} and {billion.core_hours:,.1f} core-hours, 10¹² tokens {_bytes(trillion.bytes)} and "
            f"{trillion.core_hours:,.0f}. A remote lookup in 10¹² tokens takes {_seconds(trillion.remote_seconds)} and pays "
            f"where a pass of the target takes longer than {_seconds(trillion.least_pass_seconds)}. A pass of the pocket "
            f"target takes {_seconds(measured['pass_seconds'])} here.",
            "",
            "## What was measured",
            "",
            "The text is that of the packages installed with this Python. Contexts are taken from modules that no store "
            "holds. Every store is built in a process of its own, on one thread.",
            "",
            *_builds(measured),
            f"The median time of a draft follows {a:.1f} + {b:.2f} log₂(tokens) µs (least squares over the rows).",
            "",
            "Shards are independent, so workers build them at the same time. This is one build of "
            f"{SHARDS} shards; the start of the processes counts.",
            "",
            *_workers(measured),
            f"The same shards, {here['tokens']:,} tokens, searched in this process and by actors on the same machine. The call "
            "alone is a question that needs no search: it is what Ray adds before any network.",
            "",
            *_actors(measured),
            f"A draft from one actor takes {one['median'] / here['median']:.1f} times as long as a draft here.",
            "",
            "## What follows for larger stores",
            "",
            *_projections(computed),
            "The table is computed by `specdec_lib.experiments.scale.project`, with these assumptions:",
            "",
            "- Bytes and core-hours grow in proportion to tokens, at the rates of the largest store above. The tokenizer is the "
            "pocket models'; one with more token ids needs 4 bytes a token instead of 2, and makes fewer tokens of a text.",
            "- A shard has 10⁹ tokens, a host 256 GB for shards. All of them are in memory.",
            "- A search in a shard follows the law above, beyond the sizes that were measured too.",
            "- One host searches its shards one after another. Hosts search at the same time. Asking them takes as much longer "
            "as the fastest draft from actors above took than the draft here, and 0.5 ms of network; many hosts cost no more "
            "than few.",
            f"- The dense index holds every position; {measured['dense']['states']:,} states of the pocket target were embedded "
            "for it. Another target's passes cost in proportion to its own.",
            "- A draft makes 1.5 tokens of a pass instead of one. The lookup then pays where half a pass takes longer than the "
            "lookup. With more tokens a pass it pays earlier.",
            "",
            ":::{dropdown} How this page was made",
            "",
            f"`{facts['command']}`, {facts['date']}, commit {facts['commit'][:12]}, {facts['seconds']:.0f} s; load "
            f"{facts['load before']} before and {facts['load after']} after; {facts['machine']['processor']}, {cores} cores.",
            ":::",
            "",
        ]
    )
