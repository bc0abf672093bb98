"""What the page "How fast is the library itself?" shows: the file that ``python -m specdec_lib bench`` wrote."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specdec_lib import paths
from specdec_lib.report.display import figures, tables

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Sections = Mapping[str, Mapping[str, Any]]


def sections(path: Path | None = None) -> Sections:
    """Read the file; an error that names the command where it is missing."""
    path = path or paths.BENCH
    if not path.is_file():
        raise FileNotFoundError(f"{path} is not there: measure it with python -m specdec_lib bench")
    return json.loads(path.read_text(encoding="utf-8"))["sections"]


def _rows(content: Sections) -> list[Mapping[str, Any]]:
    return [row for section in content.values() for row in section["rows"]]


def times_as_fast(row: Mapping[str, Any]) -> tuple[float, float, float]:
    """How many times as fast as its peer a row is: the median of the paired ratios, their 10th and 90th percentile."""
    ratios = (row["ratio"], *row["ratio_spread"])
    if row["higher_is_better"]:
        return ratios
    median, low, high = (1 / ratio for ratio in ratios)
    return median, high, low


def figure(content: Sections) -> Figure:
    """Draw how many times as fast as its peer each row is, on a logarithmic axis."""
    rows = [row for row in _rows(content) if row["peer"]]
    drawn, ax = figures.new(figures.WIDEST, 0.9 + 0.38 * len(rows))
    for place, row in enumerate(rows):
        median, low, high = times_as_fast(row)
        ax.barh(place, median - 1, left=1, color=figures.PALETTE[0], height=0.6)
        # A single measurement can end on the wrong side of zero, which has no place on this axis.
        if 0 < low <= high:
            ax.plot([low, high], [place, place], color="#444444", linewidth=1)
        ax.text(max(median, high, 1), place, f" {median:.2g}", va="center")
    ax.set_xscale("log")
    ax.axvline(1, color="#444444", linestyle="--", linewidth=1)
    ax.set_yticks(range(len(rows)), [row["work"] for row in rows])
    ax.invert_yaxis()
    ax.margins(x=0.1)
    ax.grid(axis="y", visible=False)
    ax.set_xlabel("times as fast as the peer")
    return drawn


def _amount(value: float, unit: str) -> str:
    number = f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
    return f"{number} {unit}".replace("tokens/s", "tokens per second").replace("bytes/token", "bytes per token")


def _answer(content: Sections) -> str:
    by = {row["name"]: row for row in _rows(content)}
    loop, lookup, rest = by["loop_overhead_ms"], by["pld_draft_us_32k"], by["rest_draft_us_20m"]
    return (
        f"One step of our loop takes {_amount(loop['value'], 'ms')} beyond the model's forward pass; transformers' "
        f"assisted decoding takes {_amount(loop['peer_value'], 'ms')}. A PLD draft at 32,000 tokens of context takes "
        f"{_amount(lookup['value'], 'µs')} instead of {_amount(lookup['peer_value'], 'µs')}, and a REST draft from 20 "
        f"million tokens takes {_amount(rest['value'], 'µs')}."
    )


def _table(content: Sections) -> list[str]:
    lines = ["| Work | Here | 99th percentile | Peer in the same run | Elsewhere |", "|:--|--:|--:|:--|:--|"]
    for row in _rows(content):
        # A percentile of one number would repeat it.
        extreme = _amount(row["p99"], row["unit"]) if row["samples"] > 1 else "–"
        peer = f"{_amount(row['peer_value'], row['unit'])}: {row['peer']}" if row["peer"] else "–"
        cells = (row["work"], _amount(row["value"], row["unit"]), extreme, peer, row["elsewhere"] or "–")
        lines.append(f"| {' | '.join(map(tables.markdown_cell, cells))} |")
    return lines


def _origin(content: Sections) -> list[str]:
    lines = ["| Section | Commit | Date | Seconds | Load | Machine |", "|:--|:--|:--|--:|--:|:--|"]
    for name, section in content.items():
        facts = section["provenance"]
        machine, versions = facts["machine"], facts["versions"]
        cells = (
            name,
            facts["commit"][:12],
            facts["date"],
            f"{facts['seconds']:.0f}",
            str(facts["load"]),
            f"{machine['processor']}, {machine['cores']} cores; torch {versions['torch']}, "
            f"transformers {versions['transformers']}",
        )
        lines.append(f"| {' | '.join(map(tables.markdown_cell, cells))} |")
    return lines


def text(content: Sections) -> str:
    """Return the page after its title: the answer, the figure, the table and where they come from."""
    same = min(row["same_output"] for row in _rows(content) if "same_output" in row)
    return "\n".join(
        [
            _answer(content),
            "",
            "::::{figure} pictures/speed.svg",
            ":name: fig-speed",
            ":alt: One bar for each piece of work, on a logarithmic axis. A bar that ends right of one is faster than its peer.",
            "",
            "How many times as fast as its peer the library does each piece of work. Both do the same work in the same run, "
            "taking turns. The thin lines are the 10th and the 90th percentile of the paired ratios.",
            "::::",
            "",
            "The peer of decoding, of the loop and of PLD is transformers. The peer of the search is REST's own rule in the "
            "same suffix array, and that of dense search is FAISS alone, without the reduction of the state and the way back "
            f"to the text. In {same:.0%} of the runs of the decoding rows both gave the same tokens.",
            "",
            *_table(content),
            "",
            "The 99th percentile of a rate is the rate that 99 % of the samples exceed. The last column names what other "
            "programs took for the same work when we tried them on two cores, before this library was written.",
            "",
            ":::{dropdown} How this page was made",
            "",
            *_origin(content),
            "",
            "Where the load is not far below the number of cores, other programs took part of the time.",
            ":::",
            "",
        ]
    )
