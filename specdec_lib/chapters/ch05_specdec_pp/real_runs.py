"""Real decoding compared with the arithmetic that counts its rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from transformers import PreTrainedModel

from specdec_lib.chapters.ch05_specdec_pp import sampled_law
from specdec_lib.chapters.ch05_specdec_pp.stopping_study import Policy, Study
from specdec_lib.decoding.contract import Drafter
from specdec_lib.decoding.generate import generate
from specdec_lib.decoding.sampling import Sampling
from specdec_lib.experiments import recorded_runs
from specdec_lib.experiments.losslessness import Judge
from specdec_lib.experiments.recorded_runs import Recording


def first_of_each(study: Study, count: int = 1) -> list[int]:
    """Places of the first outputs of each set."""
    groups = study.groups.tolist()
    return [i for i, name in enumerate(groups) if groups[:i].count(name) < count]


def compared(
    model: PreTrainedModel,
    recordings: Sequence[Recording],
    study: Study,
    drafters: Mapping[str, Drafter],
    policies: Mapping[str, Policy],
) -> dict[str, int]:
    """Decode the first recording of each set with every drafter, and compare texts and rounds.

    Parameters
    ----------
    model : PreTrainedModel
    recordings : sequence of Recording
        Those of the study's passes.
    study : Study
    drafters, policies : mapping
        By name, a drafter, and the policy that counts its rounds.

    Returns
    -------
    dict
        ``runs``; ``differ``: texts other than plain decoding's; ``unexplained``: of these, those that rounding does not
        explain; ``apart``: equal texts whose rounds were counted otherwise.
    """
    counts = dict.fromkeys(("runs", "differ", "unexplained", "apart"), 0)
    judge, places = Judge(model), first_of_each(study)
    chosen = [recordings[place] for place in places]
    for name, runs in recorded_runs.run_each_again(model, chosen, drafters).items():
        for place, run in zip(places, runs, strict=True):
            trace, counted = recordings[place].trace, study.play(policies[name])[place]
            counts["runs"] += 1
            if run.tokens != trace.tokens:
                verdict = judge(trace.prompt, trace.tokens, run.tokens, trace.sampling)
                counts["differ"] += 1
                counts["unexplained"] += not verdict.explained
                continue
            drafted = sum(step.drafted for step in run.steps)
            accepted = sum(step.accepted for step in run.steps)
            counts["apart"] += (len(run.steps), drafted, accepted) != (counted.calls, counted.drafted, counted.accepted)
    return counts


def law_values(
    model: PreTrainedModel,
    recordings: Sequence[Recording],
    study: Study,
    drafter: Drafter,
    temperatures: Sequence[float],
    tokens: int,
) -> dict[str, float | int]:
    """Sample with a drafter at each temperature on three prompts of each set, and test whether the texts follow the target.

    Recorded by name: the tests, how many of them reject at one in a thousand, the tokens, and the least p value.
    """
    drawn: dict[tuple[float, str], list] = {}
    for temperature in temperatures:
        sampling = Sampling(temperature, seed=1)
        for place in first_of_each(study, 3):
            prompt, own = recordings[place].trace.prompt, drawn.setdefault((temperature, study.groups[place]), [])
            run = generate(model, prompt, drafter, sampling, tokens)
            own.extend(sampled_law.transformed(model, prompt, run.tokens, sampling, place))
    p_values = [sampled_law.uniform_p_value(numbers) for numbers in drawn.values()]
    return {
        "head_law_tests": len(p_values),
        "head_law_rejected": sum(p < 1e-3 for p in p_values),
        "head_law_tokens": sum(map(len, drawn.values())),
        "head_law_least": min(p_values),
    }
