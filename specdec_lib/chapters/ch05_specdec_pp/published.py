"""What SpecDec++ (Huang et al. 2024) publishes and the chapter starts from: times of a pass, and the settings of the head."""

from __future__ import annotations

from typing import NamedTuple

from specdec_lib.chapters.ch05_specdec_pp.head_study import Variant
from specdec_lib.experiments.published_numbers import published


class Paper(NamedTuple):
    """Published numbers.

    Attributes
    ----------
    times : (float, float)
        Seconds of a pass of the draft model and of the target (Llama-2-7B and 70B).
    alone : float
        Seconds of a pass of the target in plain decoding.
    threshold : float
        h, for all data sets.
    setting : Variant
        Loss weight, depth and mixing of the head.
    error : float
        Largest error of the predicted throughput, as a share.
    speedups : dict
        Of SpecDec++ over plain decoding, by data set.
    """

    times: tuple[float, float]
    alone: float
    threshold: float
    setting: Variant
    error: float
    speedups: dict[str, float]


def paper() -> Paper:
    """The numbers, from ``data/published``."""
    numbers = published("specdec_pp")

    def value(row: str) -> float:
        return float(numbers[f"specdec-pp-{row}"]["value"])

    return Paper(
        times=(value("t-draft"), value("t-target")),
        alone=value("t-target-alone"),
        threshold=value("tuned-threshold"),
        setting=Variant(value("w-rej"), int(value("depth")), value("mixing")),
        error=value("error") / 100,
        speedups={name: value(f"{name}-speedup") for name in ("alpaca", "humaneval", "gsm8k")},
    )
