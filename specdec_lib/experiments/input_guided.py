"""The five input-guided tasks of PLD+ (section 5.1) among the book's, and the choice of PLD+'s layer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from specdec_lib.experiments.recorded_runs import Recording, metric, replay_all

#: The paper's tasks; multi-turn conversation stands last.
TASKS = ("summarisation", "code editing", "short text editing", "long text editing", "conversation")
#: Tasks on whose choosing half heads and layer are chosen: their answers copy.
CALIBRATION = TASKS[:4]


def best_layer(recordings: Sequence[Recording], make: Any, layers: Iterable[int]) -> int:
    """The layer whose drafter ``make(layer)`` gives most tokens per forward; the lowest among equals."""
    found = {layer: metric(replay_all(recordings, make(layer)), "tokens_per_forward") for layer in layers}
    return max(found, key=lambda layer: (found[layer], -layer))
