"""Numbers with their intervals as a forest plot in SVG, drawn once for a wide page and once for a phone.

The text stays text and the colours are variables of CSS, so that a page in dark mode changes ink and ground and leaves
every mark its meaning. A mark is told by its shape; its colour repeats that.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape

COLORS = {
    "ink": ("#1f2328", "#e6e6e6"),
    "quiet": ("#57606a", "#a8b0b8"),
    "ground": ("#ffffff", "#15191e"),
    "grid": ("#d9d9d9", "#3a4048"),
    "worse": ("#f3f3f3", "#1f242b"),
    "published": ("#9a9a9a", "#8b929a"),
    "blue": ("#0072b2", "#56b4e9"),
    "orange": ("#d55e00", "#e69f00"),
    "green": ("#00785a", "#20c997"),
    "pink": ("#b0558a", "#dd98c2"),
}
"""Colours on a light and on a dark page; those of the marks are Okabe and Ito's, darker or lighter for contrast."""

_SHAPES = {
    "square": "M-4.2-4.2h8.4v8.4h-8.4z",
    "circle": "M-4.6 0a4.6 4.6 0 1 0 9.2 0a4.6 4.6 0 1 0-9.2 0z",
    "up": "M0-5.4L5.2 4.2H-5.2z",
    "down": "M0 5.4L5.2-4.2H-5.2z",
    "diamond": "M0-5.6L5.6 0L0 5.6L-5.6 0z",
    "cross": "M-1.7-5h3.4v3.3h3.3v3.4h-3.3v3.3h-3.4v-3.3h-3.3v-3.4h3.3z",
}


@dataclass(frozen=True)
class Kind:
    """How a kind of mark looks and what the legend says of it."""

    words: str
    shape: str
    color: str
    filled: bool = True


@dataclass(frozen=True)
class Mark:
    """A number with its ends; ``kind`` is a key of the kinds that are drawn."""

    value: float
    low: float
    high: float
    kind: str
    words: str = ""

    def __str__(self) -> str:
        return f"{self.value:.2f}" + (f" ({self.low:.2f}–{self.high:.2f})" if self.low != self.high else "")


@dataclass(frozen=True)
class Row:
    """A line of the figure: label, published range, our marks, the verdict and what a click on the label leads to."""

    label: str
    marks: tuple[Mark, ...]
    published: tuple[float, float] | None = None
    verdict: str = ""
    href: str = ""


@dataclass(frozen=True)
class Scale:
    """The logarithmic axis: its ends, its ticks, and what lies on either side of 1."""

    low: float
    high: float
    ticks: tuple[float, ...]
    left: str
    right: str

    def at(self, value: float, start: float, width: float) -> float:
        """Where a value lies; one off the axis lies at its end."""
        inside = min(max(value, self.low), self.high)
        return start + width * math.log(inside / self.low) / math.log(self.high / self.low)


@dataclass(frozen=True)
class Layout:
    """Places in pixels; on a phone the label stands above its strip. ``numbers`` is None where none are written."""

    width: float
    strip: float
    strip_width: float
    numbers: float | None
    verdict: float
    font: float
    letters: int
    above: bool


WIDE = Layout(800, 262, 270, 540, 664, 12.5, 38, above=False)
PHONE = Layout(360, 8, 232, 252, 352, 11.5, 34, above=True)
WIDE_WITHOUT_NUMBERS = Layout(800, 262, 390, None, 664, 12.5, 38, above=False)
PHONE_WITHOUT_NUMBERS = Layout(360, 8, 344, None, 352, 11.5, 34, above=True)


def variables() -> str:
    """The colours of a drawing that stands alone, by the reader's choice of light or dark."""

    def rules(place: int) -> str:
        return "".join(f"--chart-{name}:{both[place]};" for name, both in COLORS.items())

    return f"<style>svg{{{rules(0)}}}@media (prefers-color-scheme:dark){{svg{{{rules(1)}}}}}</style>"


def _var(name: str) -> str:
    return f"var(--chart-{name},{COLORS[name][0]})"


def _text(x: float, y: float, words: str, anchor: str = "start", color: str = "ink", extra: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{_var(color)}"{extra}>{escape(words)}</text>'


def _symbol(x: float, y: float, kind: Kind) -> str:
    color = _var(kind.color)
    fill = color if kind.filled else _var("ground")
    place = f"translate({x:.1f} {y:.1f})"
    return f'<path d="{_SHAPES[kind.shape]}" transform="{place}" fill="{fill}" stroke="{color}" stroke-width="1.6"/>'


def _line(x1: float, y1: float, x2: float, y2: float, color: str, width: float = 1, dash: str = "") -> str:
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    ends = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line {ends} stroke="{_var(color)}" stroke-width="{width:g}"{dashed}/>'


def _published(ends: tuple[float, float], y: float, height: float, scale: Scale, layout: Layout) -> str:
    low, high = (scale.at(end, layout.strip, layout.strip_width) for end in ends)
    width = max(high - low, 4.0)
    x = (low + high - width) / 2
    return (
        f'<rect class="published" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="1.5" '
        f'fill="{_var("published")}"><title>{escape(f"published {span(ends)}")}</title></rect>'
    )


def span(ends: tuple[float, float]) -> str:
    """A published range in words: one number, or two."""
    low, high = f"{ends[0]:.2f}", f"{ends[1]:.2f}"
    return low if low == high else f"{low} to {high}"


def _drawn(mark: Mark, y: float, kind: Kind, scale: Scale, layout: Layout) -> str:
    x, low, high = (scale.at(v, layout.strip, layout.strip_width) for v in (mark.value, mark.low, mark.high))
    parts = [_line(low, y, high, y, kind.color, 2)] if mark.low != mark.high else []
    # An interval that goes on beyond the axis ends in a point.
    for beyond, place, way in ((mark.low < scale.low, low, -1), (mark.high > scale.high, high, 1)):
        if beyond:
            head = f"M{place + 5 * way:.1f} {y:.1f}l{-6 * way}-4v8z"
            parts.append(f'<path d="{head}" fill="{_var(kind.color)}"/>')
    if scale.low <= mark.value <= scale.high:
        parts.append(_symbol(x, y, kind))
    words = f"{mark.words}: {mark}" if mark.words else str(mark)
    return f'<g class="mark {mark.kind}"><title>{escape(words)}</title>{"".join(parts)}</g>'


def _legend(kinds: Sequence[Kind], published: bool, layout: Layout) -> Iterator[tuple[str, float, float]]:
    """Entries of the legend with the place of each."""
    entries = [(kind.words, _symbol(0, 0, kind)) for kind in kinds]
    if published:
        bar = f'<rect x="-6" y="-5" width="12" height="10" rx="1.5" fill="{_var("published")}"/>'
        entries.insert(0, ("published", bar))
    x, y = 12.0, 14.0
    for words, symbol in entries:
        length = 18 + len(words) * layout.font * 0.56
        if x + length > layout.width and x > 12:
            x, y = 12.0, y + 19
        yield f'<g transform="translate({x:.1f} {y:.1f})">{symbol}{_text(10, 4, words)}</g>', x, y
        x += length + 14


def _axis(scale: Scale, y: float, layout: Layout) -> str:
    one = scale.at(1, layout.strip, layout.strip_width)
    words = _text(one - 6, y, f"← {scale.left}", "end", "quiet") + _text(
        one + 6, y, f"{scale.right} →", "start", "quiet"
    )
    ticks = (
        _text(scale.at(tick, layout.strip, layout.strip_width), y + 16, f"{tick:g}", "middle", "quiet")
        for tick in scale.ticks
    )
    return words + "".join(ticks)


def _grid(top: float, bottom: float, scale: Scale, layout: Layout) -> str:
    start, one = layout.strip, scale.at(1, layout.strip, layout.strip_width)
    tint = f'<rect x="{start:.1f}" y="{top:.1f}" width="{one - start:.1f}" height="{bottom - top:.1f}"'
    places = (scale.at(tick, start, layout.strip_width) for tick in scale.ticks if tick != 1)
    lines = "".join(_line(at, top, at, bottom, "grid", 0.8) for at in places)
    return f'{tint} fill="{_var("worse")}"/>{lines}{_line(one, top, one, bottom, "ink", 1.2, "4 3")}'


def _row(row: Row, y: float, kinds: Mapping[str, Kind], scale: Scale, layout: Layout) -> tuple[str, float]:
    """A row from its upper edge down, and its height."""
    lines = textwrap.wrap(row.label, layout.letters)
    # A number beside each mark needs the height of a line of text; without them marks stand closer.
    step = 11.0 if layout.numbers is None else 17.0
    label, marks = len(lines) * 15.0, max(len(row.marks) * step, 20.0)
    top = y + (label + 3 if layout.above else 0)
    height = marks if layout.above else max(label, marks) + 7
    first = top + (height - (len(row.marks) - 1) * step) / 2
    baseline = y + 12 if layout.above else y + (height - label) / 2 + 11
    words = "".join(_text(8, baseline + 15 * i, line) for i, line in enumerate(lines))
    parts = [_grid(top, top + height, scale, layout)]
    parts.append(f'<a href="{escape(row.href)}">{words}</a>' if row.href else words)
    if row.verdict and layout.above:
        parts.append(_text(layout.verdict, baseline, row.verdict, "end"))
    elif row.verdict:
        parts.append(_text(layout.verdict, top + height / 2 + 4, row.verdict))
    if row.published:
        parts.append(_published(row.published, first - 8, (len(row.marks) - 1) * step + 16, scale, layout))
    for place, mark in enumerate(row.marks):
        at = first + place * step
        parts.append(_drawn(mark, at, kinds[mark.kind], scale, layout))
        if layout.numbers is not None:
            parts.append(_text(layout.numbers, at + 4, str(mark), "start", "quiet"))
    return "".join(parts), top + height - y + (8 if layout.above else 0)


def draw(
    groups: Mapping[str, Sequence[Row]],
    kinds: Mapping[str, Kind],
    scale: Scale,
    words: str,
    layout: Layout = WIDE,
    alone: bool = False,
) -> str:
    """Draw rows with their marks as SVG.

    Parameters
    ----------
    groups : mapping
        By heading the rows below it.
    kinds : mapping
        By name; the legend has those that are drawn.
    scale : Scale
    words : str
        What the figure says, for readers who do not see it.
    layout : Layout
    alone : bool
        Whether the drawing is a file of its own, with ground and colours.
    """
    rows = [row for group in groups.values() for row in group]
    used = [kind for name, kind in kinds.items() if any(mark.kind == name for row in rows for mark in row.marks)]
    entries = list(_legend(used, any(row.published for row in rows), layout))
    top = (entries[-1][2] if entries else 0) + 26
    body, y = [], top + 24
    for heading, group in groups.items():
        if heading:
            body.append(_text(8, y + 15, heading, extra=' font-weight="700"'))
            y += 22
        for row in group:
            part, height = _row(row, y, kinds, scale, layout)
            body.append(part)
            y += height
    role = "group" if any(row.href for row in rows) else "img"
    opened = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {layout.width:g} {y + 6:.0f}" '
        f'width="{layout.width:g}" height="{y + 6:.0f}" '
        f'role="{role}" aria-label="{escape(words)}" font-family="system-ui, -apple-system, Segoe UI, Helvetica, Arial, '
        f'sans-serif" font-size="{layout.font:g}">'
    )
    ground = f'{variables()}<rect width="100%" height="100%" fill="{_var("ground")}"/>' if alone else ""
    legend = "".join(entry for entry, _, _ in entries)
    return f"{opened}{ground}{legend}{_axis(scale, top, layout)}{''.join(body)}</svg>"


def for_page(drawings: Mapping[str, str]) -> str:
    """A drawing for a wide page and one for a phone, by these names; the style sheet shows one of them."""
    boxes = (f'<div class="forest-{name}">{svg}</div>' for name, svg in drawings.items())
    return f'<div class="forest">{"".join(boxes)}</div>'
