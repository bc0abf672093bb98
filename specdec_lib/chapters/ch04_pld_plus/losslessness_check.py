"""Whether drafting changes the text, and whether a replay takes the steps of the real run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from transformers import PreTrainedModel

from specdec_lib.decoding.contract import Drafter
from specdec_lib.experiments import comparison
from specdec_lib.experiments.losslessness import Judge
from specdec_lib.experiments.recorded_runs import Recording, Runs, run_each_again


def check(
    model: PreTrainedModel,
    recordings: Sequence[Recording],
    drafters: Mapping[str, Drafter],
    replayed: Mapping[str, Runs],
) -> dict[str, int]:
    """Decode every recorded prompt for real with each drafter and compare outputs and steps.

    Parameters
    ----------
    model : PreTrainedModel
    recordings : sequence of Recording
        Of plain decoding.
    drafters, replayed : mapping
        By name: the drafter, and its replay on these recordings.

    Returns
    -------
    dict
        ``lossless_prompts``, ``lossless_tokens``, ``lossless_mismatches`` and, of these, ``lossless_unexplained`` by
        rounding; ``replay_runs``, the runs with the replay's text, and ``replay_mismatches``, those with other steps.
    """
    judge = Judge(model)
    counts = dict.fromkeys(("prompts", "tokens", "mismatches", "unexplained"), 0)
    replays = parted = 0
    for name, runs in run_each_again(model, recordings, drafters).items():
        compared = comparison.compare(recordings, runs)
        verdicts = [
            judge(r.trace.prompt, r.trace.tokens, run.tokens, r.trace.sampling)
            for r, run in zip(recordings, runs, strict=True)
        ]
        counts["prompts"] += compared.prompts
        counts["tokens"] += compared.tokens
        counts["mismatches"] += len(compared.divergences)
        counts["unexplained"] += sum(not verdict.explained for verdict in verdicts if verdict)
        both = [(a, b) for a, b in zip(runs, replayed[name], strict=True) if a.tokens == b.tokens]
        replays += len(both)
        parted += sum(not comparison.same_steps(a, b) for a, b in both)
    return {f"lossless_{name}": count for name, count in counts.items()} | {
        "replay_runs": replays,
        "replay_mismatches": parted,
    }


def together(*checked: Mapping[str, int]) -> dict[str, int]:
    """The counts of several checks, added."""
    return {name: sum(one[name] for one in checked) for name in checked[0]}
