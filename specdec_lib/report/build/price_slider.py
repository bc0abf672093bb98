"""What the price slider of "Which method when" reads: recorded widths of passes, and price curves to begin with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from specdec_lib.drafters.pass_prices import CURVES
from specdec_lib.experiments.published_numbers import pass_prices, published_draft_price
from specdec_lib.methods import METHODS
from specdec_lib.report.display import figures
from specdec_lib.report.display.record import RecordError

# The recorded values that it is made of: :func:`specdec_lib.experiments.pass_widths.widths_by_task`, and the measured prices.
NAMES = ("pass_widths", "pass_prices_here")
_CURVES = {"gpu": "a GPU", "cpu": "a processor", "server": "a loaded server"}


def slider_data(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the script reads.

    Parameters
    ----------
    values : mapping
        What the chapter recorded (:func:`specdec_lib.report.display.record.recorded`).

    Returns
    -------
    dict
        ``tasks`` as recorded; ``methods``, by name the color, and whether a ``network`` drafts; ``presets``, each with a name,
        ``points`` of its curve, pairs of a width and a price in passes over one token, and ``drafts``, by method the price of
        a unit of drafting.

    Raises
    ------
    RecordError
        The chapter recorded none of it.
    """
    missing = [name for name in NAMES if name not in values]
    if missing:
        raise RecordError(f"the chapter recorded no {missing[0]!r}: run it again (python -m specdec_lib run --only 06)")
    tasks, here = (values[name] for name in NAMES)
    names = list(dict.fromkeys(name for own in tasks.values() for name in own))
    published = {name: published_draft_price() for name in names if METHODS[name].network}
    curves = {"this machine (measured in chapter 6)": ({int(w): p for w, p in here["passes"].items()}, here["drafts"])}
    curves |= {_CURVES[key]: (dict(curve.widths), published) for key, curve in CURVES.items()}
    curves |= {f"{p.device}, {p.model} ({p.source})": (own, published) for p, own in pass_prices().items()}
    return {
        "tasks": tasks,
        "methods": {name: {"color": figures.color(name), "network": METHODS[name].network} for name in names},
        "presets": [
            {"name": name, "points": [list(point) for point in sorted(points.items())], "drafts": drafts}
            for name, (points, drafts) in curves.items()
        ],
    }


def slider_html(values: Mapping[str, Any]) -> str:
    """The data in an element that stays hidden where no script runs."""
    text = json.dumps(slider_data(values), separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")
    return f'<div class="price-slider" hidden><script type="application/json">{text}</script></div>'
