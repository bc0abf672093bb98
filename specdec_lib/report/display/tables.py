"""Tables that are numbered, captioned, referable and downloadable in the book, and plain HTML in Jupyter."""

from __future__ import annotations

import html
import math
import numbers
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from specdec_lib.experiments.statistics.intervals import Interval
from specdec_lib.report import run_context

if TYPE_CHECKING:
    import pandas as pd

MISSING = "–"
"""What stands for a missing number."""

Format = str | Callable[[Any], str]


class Markup(str):
    """Text of a cell that is MyST on purpose, a formula or a role; as a format, of a whole column of such texts."""


# What Markdown, MyST and its extensions give a meaning inside a line; a full stop only where it could be that of an
# address, which would become a link.
_ACTIVE = re.compile(r"[\\`*_{}\[\]<>&$#~^@!:]|\.(?=[A-Za-z])")
_LINE_ENDS = re.compile(r"[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]+")


def format_cell(value: Any, spec: Format | None = None) -> str:
    """Return the text of one cell; a missing value is a dash whatever the format.

    ``spec`` is a format specification (``".2f"``, ``",d"``, ``".1%"``) or a function from value to text. Without one,
    integers get thousands separators and other numbers three significant digits. An interval is formatted number by
    number: ``1.23 (1.10–1.36)``.
    """
    if value is None or (isinstance(value, numbers.Real) and math.isnan(value)):
        return MISSING
    if callable(spec):
        return spec(value)
    if isinstance(value, Interval):
        return format(value, spec or ".3g")
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return str(value)
    if spec:
        return format(int(value) if spec.endswith("d") else value, spec)
    return f"{int(value):,d}" if isinstance(value, numbers.Integral) else f"{float(value):.3g}"


class Table:
    """A data frame on its way to a page; its index is not shown.

    ``name``, which starts with ``tab-``, is the label by which pages refer to it (``{numref}`tab-speed```) and that of its CSV
    file; ``caption`` one sentence. ``columns`` are headings by column, in the order wanted; columns that are not named are left
    out. MyST is allowed in both. Cells are shown as they are, whatever is in them, unless :class:`Markup` is their format
    (:func:`format_cell`).
    """

    def __init__(
        self,
        frame: pd.DataFrame,
        name: str,
        caption: str,
        columns: Mapping[str, str] | None = None,
        formats: Mapping[str, Format] | None = None,
    ):
        if not re.fullmatch(r"tab-[a-z0-9-]+", name):
            raise ValueError(f"table name {name!r}: 'tab-' and small letters, digits and hyphens are expected")
        for column in [*(columns or {}), *(formats or {})]:
            if column not in frame.columns:
                raise ValueError(f"table {name!r} has no column {column!r}: {', '.join(map(str, frame.columns))}")
        self.name, self.caption, self.formats = name, caption, dict(formats or {})
        self.headings = (
            {column: Markup(heading) for column, heading in columns.items()}
            if columns
            else {column: str(column) for column in frame.columns}
        )
        self.frame = frame[list(self.headings)]

    def _numeric(self, column: str) -> bool:
        values = [value for value in self.frame[column] if value is not None]
        return bool(values) and all(isinstance(v, (numbers.Real, Interval)) and not isinstance(v, bool) for v in values)

    def _rows(self) -> list[list[str]]:
        return [
            [format_cell(value, self.formats.get(column)) for column, value in zip(self.headings, row, strict=True)]
            for row in self.frame.itertuples(index=False, name=None)
        ]

    def _shown(self) -> pd.DataFrame:
        import pandas as pd

        return pd.DataFrame(self._rows(), columns=list(self.headings.values()))

    def to_csv(self) -> str:
        """Return the unformatted values as CSV; the ends of intervals have columns of their own, ``_low`` and ``_high``."""
        import pandas as pd

        columns = {}
        for column in self.headings:
            values = self.frame[column]
            if any(isinstance(value, Interval) for value in values):
                rows = [value[:3] if isinstance(value, Interval) else (value, None, None) for value in values]
                names = (column, f"{column}_low", f"{column}_high")
                columns |= dict(zip(names, zip(*rows, strict=True), strict=True))
            else:
                columns[column] = values
        return pd.DataFrame(columns).to_csv(index=False, lineterminator="\n")

    def to_html(self) -> str:
        """Return the table as HTML, for Jupyter."""
        return f"<p>{html.escape(self.caption)}</p>{self._shown().to_html(index=False, border=0)}"

    def to_myst(self, download: str | None = None) -> str:
        """Return the table as a numbered MyST table, with a link to its CSV file at ``download``, relative to the page."""

        def line(texts: list[str]) -> str:
            cells = (markdown_cell(text) if isinstance(text, Markup) else literal_cell(text) for text in texts)
            return "| " + " | ".join(cells) + " |"

        rule = "|" + "|".join("--:" if self._numeric(column) else ":--" for column in self.headings) + "|"
        lines = [line(list(self.headings.values())), rule, *map(line, self._rows())]
        text = "\n".join(
            [f":::{{table}} {self.caption}", f":name: {self.name}", ":align: center", "", *lines, ":::", ""]
        )
        if download:
            text += f"\n:::{{div}} table-download\n{{download}}`CSV <{download}>`\n:::\n"
        return text

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        run = run_context.current()
        download = None
        if run is not None:
            (run.folder / f"{self.name}.csv").write_text(self.to_csv(), encoding="utf-8")
            download = f"files/{run.notebook}/{self.name}.csv"
        return {
            "text/plain": self._shown().to_string(index=False),
            "text/html": self.to_html(),
            "text/markdown": self.to_myst(download),
        }


def markdown_cell(text: str) -> str:
    """Return MyST for a cell without what would end the cell or the line; a role or a formula stays."""
    return _LINE_ENDS.sub(" ", text).replace("|", "\\|")


def code_cell(text: str) -> str:
    """Return MyST for a cell that shows a text as code: between more backticks than it has in a row, none of which ends it."""
    ticks = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    room = " " if "`" in text or not text.strip() else ""
    return f"{ticks}{room}{markdown_cell(text)}{room}{ticks}"


def literal_cell(text: str) -> str:
    """Return MyST that shows a text as it is: no HTML, role, link, formula or emphasis of its comes to life."""
    return markdown_cell(_ACTIVE.sub(r"\\\g<0>", text))
