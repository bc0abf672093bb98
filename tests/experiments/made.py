"""A recording made of given tokens."""

from collections.abc import Sequence

from specdec_lib.decoding.loop import Limits, Trace
from specdec_lib.decoding.sampling import Sampling
from specdec_lib.experiments.data.prompt import Prompt
from specdec_lib.experiments.runs.recorded_runs import Recording


def made_up(
    prompt: Sequence[int],
    tokens: Sequence[int],
    id: str = "one",
    task: str = "code editing",
    sampling: Sampling = Sampling(),
) -> Recording:
    trace = Trace(list(prompt), list(tokens), sampling, 50, Limits(len(tokens), frozenset(), None), "length")
    return Recording(Prompt(id, task, ("text",)), 0, trace)
