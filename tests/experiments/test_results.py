"""The results table against sums by hand and against the rates of runs, on made recordings."""

import numpy as np
import pytest

from specdec_lib import Sampling
from specdec_lib.drafters import PromptLookup
from specdec_lib.experiments import recorded_runs, results
from specdec_lib.experiments.recorded_runs import Recording
from tests.experiments.made import made_up

METHODS = {"plain": None, "short": PromptLookup(2, 3), "long": PromptLookup(2, 12, "transformers")}


def recordings() -> list[Recording]:
    """Six prompts of two tasks, each with two seeds; the answers copy spans of their prompt."""
    rng, out = np.random.default_rng(0), []
    for number in range(12):
        prompt = rng.integers(0, 9, 40).tolist()
        begin = int(rng.integers(0, 20))
        answer = [*prompt[begin : begin + 12], *rng.integers(0, 9, 6).tolist()]
        task, sampling = "ab"[number % 4 > 1], Sampling(1.0, seed=number % 2)
        out.append(made_up(prompt, answer, str(number // 2), task, sampling))
    return out


@pytest.fixture(scope="module")
def replayed():
    made = recordings()
    runs = {name: recorded_runs.replay_all(made, drafter) for name, drafter in METHODS.items()}
    return made, runs, results.table(made, runs)


def test_rates_and_their_intervals_are_those_of_the_runs(replayed):
    recordings, runs, table = replayed
    rates = results.rate(table, by=["method"])
    acceptance = results.rate(table[table.drafts > 0], results.ACCEPTANCE, by="method")
    for name in METHODS:
        assert rates[name] == pytest.approx(recorded_runs.interval(runs[name], recordings), nan_ok=True)
        if name != "plain":
            expected = recorded_runs.interval(runs[name], recordings, "acceptance_rate")
            assert acceptance[name].value == pytest.approx(expected.value)
    assert rates["plain"].value == 1


def test_a_ratio_is_paired_on_outputs(replayed):
    recordings, runs, table = replayed
    found = results.ratio(table, "long", "short", by="task")
    assert found[results.ALL] == pytest.approx(recorded_runs.gain(runs["long"], runs["short"], recordings))
    for task in "ab":
        own = table[table.task == task].groupby("method")[["tokens", "passes"]].sum()
        expected = (own.tokens / own.passes)["long"] / (own.tokens / own.passes)["short"]
        assert found[task].value == pytest.approx(expected)
    shuffled = table.sample(frac=1, random_state=1)
    assert results.ratio(shuffled, "long", "short").value == pytest.approx(found[results.ALL].value)
    with pytest.raises(ValueError, match="no row of method 'REST'; expected one of long, plain, short"):
        results.ratio(table, "REST", "short")
