"""``make readme``: the README's numbers and figure, from the committed tables.

``<!--04/h10_over_pld10:.2f-->1.31 (1.28–1.35)<!---->`` is a number with its key and format before it; what stands between the
two comments is renewed. Keys of the chapter ``claims`` are numbers of verdicts, such as ``claims/holds_in_part``.
"""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Mapping
from pathlib import Path

import matplotlib.pyplot as plt

from specdec_lib import files, paths
from specdec_lib.report import numbers, plots
from specdec_lib.report.claims import pictures, rules

_NUMBER = re.compile(r"<!--(?P<key>[\w-]+/\w+)(?P<spec>:[^>]*)?-->.*?<!---->")


def renewed(text: str, tables: Mapping[str, Mapping[str, numbers.Number]]) -> str:
    """The text with every marked number as the tables have it; NumberError if one is not there."""

    def one(found: re.Match[str]) -> str:
        key, spec = found["key"], found["spec"] or ""
        return f"<!--{key}{spec}-->{format(numbers.look_up(key, tables), spec[1:])}<!---->"

    return _NUMBER.sub(one, text)


def renew(root: Path) -> list[Path]:
    """Write the README's numbers and its figure; returns the files that changed."""
    tables = numbers.tables()
    claims = rules.load_claims()
    judged = rules.judge(claims, tables)
    readme, drawing = root / "README.md", numbers.COMMITTED / "what-reproduces.svg"
    plots.use_style()
    plt.rcParams["svg.fonttype"] = "none"  # letters, not outlines of letters: a fifth of the size
    figure = pictures.reproduces(rules.headlines(judged, tables), rules.turned(claims, numbers.both_runs()).id)
    written = {readme: renewed(readme.read_text(encoding="utf-8"), {**tables, "claims": rules.counts(judged)})}
    drawn = io.StringIO()
    figure.savefig(drawn, format="svg", metadata={"Date": None})
    written[drawing] = drawn.getvalue()
    changed = [path for path, text in written.items() if not path.is_file() or path.read_text(encoding="utf-8") != text]
    for path in changed:
        files.write_atomic(path, written[path])
    return changed


if __name__ == "__main__":
    print("renewed: " + (", ".join(path.name for path in renew(paths.root())) or "nothing"), file=sys.stderr)
