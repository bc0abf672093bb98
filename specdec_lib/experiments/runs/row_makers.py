"""What makes rows of evidence of some prompts: replays of recorded outputs, and outputs decoded for real, compared with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import or_

import pandas as pd
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from specdec_lib import methods
from specdec_lib.decoding.contract import Capture, Drafter
from specdec_lib.decoding.sampling import Sampling
from specdec_lib.experiments.checks import comparison
from specdec_lib.experiments.checks.rounding import Judge
from specdec_lib.experiments.data.prompt import Prompt
from specdec_lib.experiments.runs import recorded_runs, results
from specdec_lib.experiments.runs.recordings import record_once


def replayed_rows(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Prompt],
    drafters: Mapping[str, Drafter | None],
    longest: int,
    sampling: Sampling | None = None,
    capture: Capture = Capture(),
) -> pd.DataFrame:
    """Rows of each drafter, cold at each output: of a replay where that gives the real run, and of a real run elsewhere."""
    recordings = record_once(model, tokenizer, prompts, sampling, longest, capture)
    return results.table(recordings, recorded_runs.all_runs(model, recordings, drafters, {}))


def decoded_rows(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Prompt],
    drafters: Mapping[str, Drafter],
    samplings: Sequence[Sampling],
    longest: int,
) -> pd.DataFrame:
    """Rows of real runs with each drafter, cold; those that keep the distribution alone are left out of sampled text.

    ``length``: tokens of the output; ``differs``: whether it is another text than plain decoding's; ``unexplained``: and rounding
    does not explain it; ``other_steps``: whether a replay of the recording drafts or accepts other tokens at some step, NaN where
    there is none. The scores of a draft's nodes may differ by rounding: a replay sees states of one pass over the whole text.
    """
    judge, frames = Judge(model), []
    for sampling in samplings:
        used = drafters if sampling.greedy else {name: drafters[name] for name in methods.exact(drafters)}
        if not used:
            continue
        needed = reduce(or_, (each.capture for each in used.values() if each.replays != "never"), Capture())
        recordings = record_once(model, tokenizer, prompts, sampling, longest, needed)
        for name, runs in recorded_runs.run_each_again(model, recordings, used).items():
            verdicts = [
                judge(one.trace.prompt, one.trace.tokens, run.tokens, sampling)
                for one, run in zip(recordings, runs, strict=True)
            ]
            steps = [None] * len(runs)
            if recorded_runs.can_be_replayed(recordings, drafters[name]):
                again = recorded_runs.replay_all(recordings, drafters[name])
                steps = [
                    None if verdict else comparison.replay_differences([run], [replayed])[1]
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
