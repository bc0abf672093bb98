"""What the page "Beyond one machine" shows: the file that ``python -m specdec_lib scale`` wrote, and what follows from it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specdec_lib import paths
from specdec_lib.experiments.scale import QUIET, SHARDS, Projection, project, search_law
from specdec_lib.report.display import figures, tables

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
            f"{row['tokens'] / row['sort_seconds']:,.0f}",
            f"{row['bytes'] / row['tokens']:.1f}",
            # The most memory that a process had tells nothing of work that needed less than its start did.
            f"{more / row['tokens']:.1f}" if (more := row["memory_peak"] - row["memory_before"]) > 0 else "–",
            f"{search['search']['median']:.1f} ({search['search']['p95']:.1f})",
            f"{search['draft']['median']:.0f} ({search['draft']['p95']:.0f})",
            f"{search['load']:.1f}",
        ]
        for row, search in zip(measured["builds"], measured["searches"], strict=True)
    ]
    headings = [
        "Tokens",
        "Sorted per core-second",
        "Bytes a token on disk",
        "Bytes of memory a token, at most",
        "Search, µs (95th percentile)",
        "Draft of REST, µs (95th percentile)",
        "Load",
    ]
    return _table(headings, rows)


def _shards(measured: Mapping[str, Any]) -> list[str]:
    rows = [
        [f"{row['shards']:,}", f"{row['tokens']:,}", f"{row['median']:.0f} ({row['p95']:.0f})", f"{row['load']:.1f}"]
        for row in measured["sharded"]
    ]
    return _table(["Shards", "Tokens", "Draft of REST, µs (95th percentile)", "Load"], rows)


def _large_build(built: Sequence[Mapping[str, Any]]) -> str:
    tokens, seconds = (sum(row[name] for row in built) for name in ("tokens", "processor_seconds"))
    loads = sorted(row["load"] for row in built)
    return (
        f"The build of {len(built)} shards with {tokens:,} tokens took {seconds / 60:.0f} core-minutes, that is "
        f"{tokens / seconds:,.0f} tokens per core-second, at loads of {loads[0]:.1f} to {loads[-1]:.1f}."
    )


def _workers(measured: Mapping[str, Any]) -> list[str]:
    one = next(row for row in measured["workers"] if row["workers"] == "1 process")
    rows = [
        [
            row["workers"],
            f"{row['tokens']:,}",
            f"{row['seconds']:.0f}",
            f"{row['tokens_per_second']:,.0f}",
            f"{row['tokens_per_second'] / one['tokens_per_second']:.2f}",
            f"{row['processor_seconds']:.0f}",
            f"{row['load']:.1f}",
        ]
        for row in measured["workers"]
    ]
    headings = [
        "Workers",
        "Tokens",
        "Seconds",
        "Tokens per second",
        "Speed relative to one process",
        "Core-seconds",
        "Load",
    ]
    return _table(headings, rows)


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
                f"{row['load']:.1f}",
            ]
        )
    headings = [
        "Where the shards are",
        "Draft, µs (95th percentile)",
        "Call alone, µs (95th percentile)",
        "Late in a second run with a deadline of 5 ms, per question to an actor",
        "Load",
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


def figure(file: Mapping[str, Any]) -> Figure:
    """Draw the time of a draft against the tokens stored: in one store, and in shards that are searched in turn."""
    measured = file["measured"]
    drawn, ax = figures.new()
    single = [(row["tokens"], row["draft"]) for row in measured["searches"]]
    shards = [(row["tokens"], row) for row in measured["sharded"]]
    for i, (rows, label) in enumerate(((single, "one store"), (shards, "shards, searched in turn"))):
        sizes, medians = [tokens for tokens, _ in rows], [spread["median"] for _, spread in rows]
        above = [spread["p95"] for _, spread in rows]
        ax.plot(sizes, medians, color=figures.PALETTE[i], marker="os"[i], label=label)
        ax.fill_between(sizes, medians, above, color=figures.PALETTE[i], alpha=0.2, linewidth=0)
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlabel("tokens stored")
    ax.set_ylabel("time of a draft, µs")
    ax.legend()
    return drawn


def _busy(measured: Mapping[str, Any], cores: int) -> bool:
    """Whether other programs ran while most of the times were taken."""
    rows = [*measured["searches"], *measured["sharded"], *measured["actors"]]
    loads = sorted(row["load"] for row in rows)
    return loads[len(loads) // 2] > QUIET * cores


def answer(file: Mapping[str, Any]) -> str:
    """Return the beginning of the page: what was found, and the figure."""
    measured, facts = file["measured"], file["provenance"]
    searches, sharded = measured["searches"], measured["sharded"]
    billion, trillion = (project(measured, tokens) for tokens in COMPUTED)
    cores = int(facts["machine"]["cores"])
    notice = [
        ":::{warning}",
        f"Other programs used this machine of {cores} cores while most of these times were taken, so times are too high. The "
        "tables give the load with each. Rates count the seconds of the processor, which other programs change less.",
        ":::",
        "",
    ]
    return "\n".join(
        [
            f"A draft from one store of {searches[-1]['tokens']:,} tokens takes {searches[-1]['draft']['median']:.0f} µs, and "
            f"{searches[0]['draft']['median']:.0f} µs from {searches[0]['tokens']:,} tokens. Cut into "
            f"{sharded[-1]['shards']} shards that one process searches in turn, {sharded[-1]['tokens']:,} tokens take "
            f"{sharded[-1]['median']:.0f} µs. A pass of the pocket target takes {_seconds(measured['pass_seconds'])}.",
            "",
            f"A billion tokens would take {_bytes(billion.bytes)} and {billion.core_hours:,.1f} core-hours, 10¹² tokens "
            f"{_bytes(trillion.bytes)} and {trillion.core_hours:,.0f} core-hours. A remote lookup in 10¹² tokens would take "
            f"{_seconds(trillion.remote_seconds)}. It pays where a pass of the target takes longer than "
            f"{_seconds(trillion.least_pass_seconds)}.",
            "",
            *(notice if _busy(measured, cores) else []),
            "::::{figure} pictures/scale.svg",
            ":name: fig-scale",
            ":alt: Two lines, the time of a draft against the number of stored tokens, on logarithmic axes.",
            "",
            "The median time of a draft of REST against the size of its store, with the range up to the 95th percentile.",
            "::::",
            "",
        ]
    )


def text(file: Mapping[str, Any]) -> str:
    """Return the page after its introduction."""
    measured, facts = file["measured"], file["provenance"]
    about, tokenizing, built = measured["text"], measured["tokenizing"], measured["shards"]["built"]
    computed = [project(measured, tokens) for tokens in COMPUTED]
    a, b = search_law(measured["searches"])
    here = measured["actors"][0]
    one = next(row for row in measured["actors"] if row["actors"])
    return "\n".join(
        [
            "## What was measured",
            "",
            f"The text is {about['files']:,} Python files, {about['bytes'] / 1e6:,.0f} MB: those of the packages installed with "
            f"this Python and of {about['archives']} downloaded archives, each content once. Files that share text with "
            "modules that are held out are left out, and the contexts are taken from those modules. A process that reads, "
            f"compares and tokenizes {tokenizing['tokens']:,} tokens makes "
            f"{tokenizing['tokens'] / tokenizing['processor_seconds']:,.0f} tokens in a second of the processor; preparing the "
            "comparison counts, so a larger part goes faster.",
            "",
            "Each row is one store, which a process of its own sorted. The load is the number of programs that waited for a "
            "core in the minute before the searches were timed, ours included.",
            "",
            *_builds(measured),
            f"The median time of a draft follows {a:.1f} + {b:.2f} log₂(tokens) µs (least squares over the rows).",
            "",
            "The same text in shards, searched by one process, one shard after another:",
            "",
            *_shards(measured),
            *([_large_build(built), ""] if built else []),
            "Shards are independent, so workers build them at the same time. The next table is one build of "
            f"{SHARDS} shards; the start of the processes counts.",
            "",
            *_workers(measured),
            f"The next table searches these shards, {here['tokens']:,} tokens, in this process and by actors on the same "
            "machine. The call alone is a question that needs no search: it is what Ray adds before any network.",
            "",
            *_actors(measured),
            f"A draft from one actor takes {one['median'] / here['median']:.1f} times as long as a draft here.",
            "",
            "## What follows for larger stores",
            "",
            *_projections(computed),
            "`specdec_lib.experiments.scale.project` computes this table. It assumes:",
            "",
            "- Bytes and core-hours grow in proportion to tokens. Core-hours are those of the build of shards where it was timed, "
            "else those of tokenizing and of sorting the largest store.",
            "- The tokenizer is the pocket models'. A tokenizer with more than 65,535 token ids needs 4 bytes a token instead of "
            "2, but makes fewer tokens of a text.",
            "- A shard has 10⁹ tokens, and a host has 256 GB for shards. All of them are in memory.",
            "- A search in a shard follows the law above, also beyond the sizes that were measured.",
            "- One host searches its shards one after another. Hosts search at the same time. A question to them takes as much "
            "longer as the fastest draft from actors took than the draft here, and 0.5 ms of network. Many hosts cost no more "
            "than few.",
            f"- The dense index holds every position. We embedded {measured['dense']['states']:,} states of the pocket target "
            "for it. Another target's passes cost in proportion to its own.",
            "- With a draft, a pass emits 1.5 tokens instead of one. The lookup then pays where half a pass takes longer than "
            "the lookup. With more tokens per pass it pays earlier.",
            "",
            ":::{dropdown} How this page was made",
            "",
            f"`{facts['command']}`, {facts['date']}, commit {facts['commit'][:12]}, {facts['seconds']:.0f} s; load "
            f"{facts['load before']} before and {facts['load after']} after; {facts['machine']['processor']}, "
            f"{facts['machine']['cores']} cores.",
            ":::",
            "",
        ]
    )
