"""The five input-guided tasks of PLD+ (section 5.1) among the book's, and the choice of PLD+'s layer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from specdec_lib.experiments.recorded_runs import Recording, metric, replay_all

#: The paper's tasks; multi-turn conversation stands last.
TASKS = ("summarisation", "code editing", "short text editing", "long text editing", "conversation")
#: Tasks on whose choosing half heads and layer are chosen: their answers copy.
CALIBRATION = TASKS[:4]


def right_so_far(recordings: Sequence[Recording], tokenizer: PreTrainedTokenizerBase) -> float:
    """Share of the outputs to prompts of one turn that are the reference, or its beginning where they were cut.

    NaN without such prompts.
    """
    judged = []
    for recording in recordings:
        prompt, trace = recording.prompt, recording.trace
        if len(prompt.turns) == 1 and prompt.reference is not None:
            text = tokenizer.decode(trace.tokens, skip_special_tokens=True)
            ended = trace.finish_reason == "eos"
            judged.append(text == prompt.reference if ended else prompt.reference.startswith(text))
    return sum(judged) / len(judged) if judged else float("nan")


def best_layer(recordings: Sequence[Recording], make: Any, layers: Iterable[int]) -> int:
    """The layer whose drafter ``make(layer)`` gives most tokens per forward; the lowest among equals."""
    found = {layer: metric(replay_all(recordings, make(layer)), "tokens_per_forward") for layer in layers}
    return max(found, key=lambda layer: (found[layer], -layer))
