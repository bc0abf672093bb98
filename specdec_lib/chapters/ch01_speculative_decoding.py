"""Chapter 1: outputs decoded for real and compared, and drafts of every length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from specdec_lib import methods
from specdec_lib.decoding.contract import Drafter
from specdec_lib.decoding.sampling import Sampling
from specdec_lib.drafters import PromptLookup
from specdec_lib.experiments import comparison, draft_costs, recorded_runs, results
from specdec_lib.experiments.prompt import Prompt
from specdec_lib.experiments.recordings import record_once
from specdec_lib.experiments.rounding import Judge


def decoded(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Prompt],
    drafters: Mapping[str, Drafter],
    samplings: Sequence[Sampling],
    longest: int,
) -> pd.DataFrame:
    """Rows of real runs with each drafter; those that keep the distribution alone are left out of sampled text.

    ``length``: tokens of the output; ``differs``: whether it is another text than plain decoding's; ``unexplained``: and rounding
    does not explain it; ``other_steps``: whether a replay of the recording takes other steps, NaN where there is none.
    """
    judge, frames = Judge(model), []
    for sampling in samplings:
        recordings = record_once(model, tokenizer, prompts, sampling, longest)
        used = drafters if sampling.greedy else {name: drafters[name] for name in methods.exact(drafters)}
        for name, runs in recorded_runs.run_each_again(model, recordings, used).items():
            verdicts = [
                judge(one.trace.prompt, one.trace.tokens, run.tokens, sampling)
                for one, run in zip(recordings, runs, strict=True)
            ]
            steps = [None] * len(runs)
            if recorded_runs.can_be_replayed(recordings, drafters[name]):
                again = recorded_runs.replay_all(recordings, drafters[name])
                steps = [
                    None if verdict else not comparison.same_steps(run, replayed)
                    for verdict, run, replayed in zip(verdicts, runs, again, strict=True)
                ]
            frames.append(
                results.table(recordings, {name: runs}).assign(
                    length=[len(run.tokens) for run in runs],
                    differs=[int(bool(verdict)) for verdict in verdicts],
                    unexplained=[int(bool(verdict) and not verdict.explained) for verdict in verdicts],
                    other_steps=pd.array(steps, "Float64").astype(float),
                )
            )
    return pd.concat(frames, ignore_index=True)


def swept(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    draft: PreTrainedModel,
    prompts: Sequence[Prompt],
    longest: int,
    lengths: Sequence[int],
) -> pd.DataFrame:
    """Rows of drafts of each length: ``"SpecDec, 5"``, ``"PLD, original, 5"``, ``"PLD, transformers, 5"``.

    ``ends_inside``: whether the text ends inside a draft; ``unbalanced``: by how much the balance of drafted and emitted tokens is
    off where that is allowed for (:func:`specdec_lib.experiments.draft_costs.unbalanced`).
    """
    recordings = record_once(model, tokenizer, prompts, None, longest)
    runs = {f"SpecDec, {k}": each for k, each in recorded_runs.sweep_draft_model(recordings, draft, lengths).items()}
    lookups = {
        f"PLD, {variant}, {k}": PromptLookup(3, k, variant) for variant in ("original", "transformers") for k in lengths
    }
    runs |= recorded_runs.replay_each(recordings, lookups)
    each = [run for own in runs.values() for run in own]
    return results.table(recordings, runs).assign(
        unbalanced=[draft_costs.unbalanced(run) for run in each],
        ends_inside=[int(draft_costs.ends_inside(run)) for run in each],
    )
