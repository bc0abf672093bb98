"""The orderings of PLD+'s tables: systems that follow one another there, and the pairs that the ledger of claims asks about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from specdec_lib.chapters.ch07_other_systems.prices import Prices
from specdec_lib.chapters.ch07_other_systems.published_rows import neighbours
from specdec_lib.chapters.ch07_other_systems.systems import Measured, ratios
from specdec_lib.experiments import input_guided as guided
from specdec_lib.experiments.statistics import Interval
from specdec_lib.methods import METHODS, slug

_BY_SLUG = {row.slug: name for name, row in METHODS.items()}
_PLUS = ("h", "a")


class Place(NamedTuple):
    """Prompts that are compared: the table of PLD+, which is greedy or sampled, the tasks, whether the systems that follow one
    another there are shown, and further pairs, the first of which the paper has ahead."""

    table: int
    tasks: Sequence[str]
    shown: bool
    pairs: Sequence[tuple[str, str]]


def _pairs(firsts: Sequence[str], seconds: Sequence[str]) -> list[tuple[str, str]]:
    """Each of some methods with each of others, given by what stands for them in recorded names."""
    return [(_BY_SLUG[first], _BY_SLUG[second]) for first in firsts for second in seconds]


#: By name of the place.
PLACES: dict[str, Place] = {
    "editing": Place(
        1,
        [task for task in guided.TASKS if "editing" in task],
        True,
        [*_pairs(["h"], ["eagle", "pld"]), *_pairs(["eagle"], ["hydra"]), *_pairs(["medusa"], ["rest"])],
    ),
    "conversation": Place(
        1,
        ["multi-turn"],
        True,
        _pairs(["hydra", "eagle"], ["medusa", "specdec", *_PLUS, "rest", "pld", "lookahead"]),
    ),
    "temperature_one": Place(2, guided.TASKS, True, _pairs(["eagle"], _PLUS)),
    "all": Place(1, guided.TASKS, False, _pairs(_PLUS, ["eagle", "hydra", "medusa"])),
    **{
        name: Place(1, [task], False, _pairs(["h"], ["eagle"]))
        for name, task in zip(("summarisation", "code", "short", "long"), guided.TASKS, strict=False)
    },
}


def compared(
    paper: Sequence[dict[str, Any]], by_table: Mapping[int, Measured], prices: Prices
) -> tuple[list[dict[str, Any]], dict[str, Interval | None]]:
    """Composed speed-ups of pairs of systems over each other, in their published shapes.

    Parameters
    ----------
    paper : sequence of dict
        Of :func:`specdec_lib.chapters.ch07_other_systems.published_rows.beside`.
    by_table : mapping
        By PLD+'s table: the runs with its sampling.
    prices : Prices

    Returns
    -------
    rows : list of dict
        Of :func:`specdec_lib.chapters.ch07_other_systems.published_rows.neighbours` for each place that is shown, with
        ``where`` and our ``ratio``, None for a pair that is not here.
    found : dict
        By ``order_<place>_<first>_<second>``: the ratio of each pair that was asked about; None without one.
    """
    rows: list[dict[str, Any]] = []
    found: dict[str, Interval | None] = {}
    for name, place in PLACES.items():
        beside = neighbours(paper, place.table, place.tasks) if place.shown else []
        pairs = list(dict.fromkeys([*(row["pair"] for row in beside), *place.pairs]))
        ratio = dict(zip(pairs, ratios(by_table[place.table], prices, place.tasks, pairs), strict=True))
        rows += [row | {"where": name.replace("_", " "), "ratio": ratio[row["pair"]]} for row in beside]
        found |= {f"order_{name}_{slug(a)}_{slug(b)}": ratio[a, b] for a, b in pairs if a is not None and b is not None}
    return rows, found
