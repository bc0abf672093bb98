"""Metrics against small examples worked out by hand, identities and brute force; the results table against the rates of runs."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec_lib import DraftTree, Generation, Sampling, generate
from specdec_lib.decoding.results import Step, metrics
from specdec_lib.drafters import PromptLookup
from specdec_lib.experiments.runs import recorded_runs, results
from specdec_lib.experiments.runs.metrics import ends_in_loop, pooled_metrics, rate_counts, speedup_of_mean_rates
from specdec_lib.experiments.runs.recorded_runs import Recording, prompts_of
from specdec_lib.experiments.statistics.intervals import pooled_rate, ratio_of_rates
from tests.chaos import Perfect
from tests.experiments.made import made_up
from tests.families import build, prompt


def step(tree: DraftTree, path: list[int], bonus: int | None, *seconds: float) -> Step:
    tokens = [tree.tokens[n] for n in path] + ([] if bonus is None else [bonus])
    return Step(tree, tuple(path), tuple(tokens), *seconds)


def generation(first: int, steps: list[Step], prefill: float = 0.0) -> Generation:
    return Generation([first, *(t for s in steps for t in s.tokens)], steps, "length", 10, prefill)


#: 7 tokens: the prefill's, then 3 (2 of 4 drafted kept), 1 (no draft), 2 (1 of 5 nodes in a tree of depth 2).
STEPS = [
    step(DraftTree.chain([1, 2, 3, 4]), [0, 1], 7, 0.01, 0.1, 0.001),
    step(DraftTree.chain([]), [], 8, 0.02, 0.2, 0),
    step(DraftTree([1, 2, 3, 4, 5], [-1, -1, 0, 0, 1]), [1], 6, 0.03, 0.3, 0.003),
]
ONE = generation(9, STEPS, prefill=1.0)
#: 3 tokens: the prefill's, then 2, the last of them inside the draft.
TWO = generation(9, [step(DraftTree.chain([1, 2, 3]), [0, 1], None, 0.1, 0.4, 0)], prefill=0.5)
PLAIN = generation(9, [step(DraftTree.chain([]), [], t, 0, 0.5, 0) for t in range(6)], prefill=1.0)

BY_HAND = {
    "new_tokens": 7, "calls": 3, "calls_with_prefill": 4, "calls_with_draft": 2, "tokens_per_forward": 6 / 3,
    "tokens_per_forward_with_prefill": 7 / 4, "mean_accepted_drafts": 3 / 2, "acceptance_rate": 3 / (4 + 2),
    "acceptance_rate_nodes": 3 / 9, "acceptance_rate_step_mean": (2 / 4 + 1 / 2) / 2, "discard_rate": 6 / 6,
    "verification_rate": 3 / 6, "prefill_seconds": 1.0, "draft_seconds": 0.06, "verify_seconds": 0.6,
    "commit_seconds": 0.004, "host_seconds": 0.0, "seconds": 1.664, "ms_per_token": 664 / 6,
    "ms_per_token_with_prefill": 1664 / 7, "tokens_per_second": 6 / 0.664,
    "tokens_per_second_with_prefill": 7 / 1.664, "draft_ms_per_step": 60 / 3, "draft_ms_per_token": 60 / 6,
}  # fmt: skip
POOLED_BY_HAND = {
    "new_tokens": 10, "calls": 4, "calls_with_prefill": 6, "calls_with_draft": 3, "tokens_per_forward": 8 / 4,
    "tokens_per_forward_with_prefill": 10 / 6, "mean_accepted_drafts": 5 / 3, "acceptance_rate": 5 / (4 + 2 + 3),
    "acceptance_rate_nodes": 5 / 12, "acceptance_rate_step_mean": (2 / 4 + 1 / 2 + 2 / 3) / 3, "discard_rate": 7 / 8,
    "verification_rate": 4 / 8, "seconds": 2.664 - 0.5 + 0.5, "tokens_per_second": 8 / 1.164,
}  # fmt: skip


def test_every_metric_by_hand():
    assert ONE.stats == pytest.approx(BY_HAND)
    found = pooled_metrics([ONE, TWO])
    assert {name: found[name] for name in POOLED_BY_HAND} == pytest.approx(POOLED_BY_HAND)
    assert found == metrics([ONE, TWO])
    alone = generation(3, []).stats  # the prefill
    assert alone["new_tokens"] == 1 and alone["calls"] == 0
    rates = "tokens_per_forward acceptance_rate mean_accepted_drafts discard_rate ms_per_token"
    assert all(math.isnan(alone[name]) for name in rates.split())


def test_the_speedup_of_mean_rates_by_hand_and_that_of_different_prompts_is_refused():
    plain_two = generation(9, [step(DraftTree.chain([]), [], t, 0, 0.25, 0) for t in range(2)], prefill=0.5)
    expected = (7 / 1.664 + 3 / 1.0) / (7 / 4.0 + 3 / 1.0)
    assert speedup_of_mean_rates([ONE, TWO], [PLAIN, plain_two]) == pytest.approx(expected)
    for method, plain in (([ONE], [PLAIN, TWO]), ([], [])):
        with pytest.raises(ValueError, match="expected the same prompts"):
            speedup_of_mean_rates(method, plain)
    with pytest.raises(ValueError, match="no runs"):
        pooled_metrics([])


def table_of(*runs: Generation):
    """The results table of runs of one method, each on a prompt of its own."""
    made = [made_up([1, 2], run.tokens, str(number)) for number, run in enumerate(runs)]
    return results.table(made, {"drafted": runs})


def test_acceptance_by_depth_by_hand():
    found = [each.value for each in results.kept_by_depth(table_of(ONE, TWO), 4)]
    # Drafts of depth 4, 2 and 3, of which 2, 1 and 2 were kept; what follows the last two was not looked at.
    np.testing.assert_allclose(found, [3 / 3, 2 / 3, 0 / 1, np.nan])
    assert [each.value for each in results.kept_by_depth(table_of(TWO), 2)] == [1, 1]


def test_where_the_target_would_go_on_as_drafted_no_draft_token_counts_as_refused():
    """A drafter that knows the output is right at every depth, wherever in its draft the output ends."""
    model = build("gpt-neox")  # repeats itself at times
    text = prompt(1, 30) + generate(model, prompt(1, 30), max_new_tokens=40, eos_token_id=[]).tokens
    new = text[30:]
    ends = [end for end in range(1, 13) if new.index(new[end]) == end]
    assert len(ends) >= 6
    for end in ends:
        run = generate(model, prompt(1, 30), Perfect(text), max_new_tokens=30, eos_token_id=new[end])
        found = [each.value for each in results.kept_by_depth(table_of(run), 6)]
        assert {value for value in found if not math.isnan(value)} == {1.0}, end


def loops_by_brute_force(tokens: list[int], repeats: int, longest: int) -> bool:
    for period in range(1, longest + 1):
        times = max(repeats, -(-6 // period))
        block = tokens[len(tokens) - period :]
        if period * times <= len(tokens) and tokens[len(tokens) - period * times :] == block * times:
            return True
    return False


@settings(max_examples=300, deadline=None)
@given(st.text("012", max_size=5), st.text("012", min_size=1, max_size=5), st.integers(0, 8), st.integers(2, 4))
def test_ends_in_loop_equals_brute_force(before, block, times, repeats):
    tokens = list(map(int, before + block * times))
    assert ends_in_loop(tokens, repeats, 6) == loops_by_brute_force(tokens, repeats, 6)


REPLAYED = {"plain": None, "short": PromptLookup(2, 3), "long": PromptLookup(2, 12, "transformers")}


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
    runs = {name: recorded_runs.replay_all(made, drafter) for name, drafter in REPLAYED.items()}
    return made, runs, results.table(made, runs)


def test_rates_and_their_intervals_are_those_of_the_runs(replayed):
    recordings, runs, table = replayed

    def of_runs(name, metric):
        return pooled_rate(rate_counts(runs[name], metric), prompts_of(recordings))

    rates = results.rate(table, by=["method"])
    acceptance = results.rate(table[table.drafts > 0], results.ACCEPTANCE, by="method")
    for name in REPLAYED:
        assert rates[name] == pytest.approx(of_runs(name, "tokens_per_forward"), nan_ok=True)
        if name != "plain":
            assert acceptance[name].value == pytest.approx(of_runs(name, "acceptance_rate").value)
    assert rates["plain"].value == 1


def test_a_ratio_is_paired_on_outputs(replayed):
    recordings, runs, table = replayed
    found = results.ratio(table, "long", "short", by="task")
    both = [rate_counts(runs[name], "tokens_per_forward") for name in ("long", "short")]
    assert found[results.ALL] == pytest.approx(ratio_of_rates(*both, prompts_of(recordings)))
    for task in "ab":
        own = table[table.task == task].groupby("method")[["tokens", "passes"]].sum()
        expected = (own.tokens / own.passes)["long"] / (own.tokens / own.passes)["short"]
        assert found[task].value == pytest.approx(expected)
    shuffled = table.sample(frac=1, random_state=1)
    assert results.ratio(shuffled, "long", "short").value == pytest.approx(found[results.ALL].value)
    with pytest.raises(ValueError, match="no row of method 'REST'; expected one of long, plain, short"):
        results.ratio(table, "REST", "short")


def test_a_function_of_rates_takes_frames_of_different_prompts_and_draws_the_seeds_within_each(replayed):
    recordings, runs, table = replayed
    long, short = (table[table.method == name] for name in ("long", "short"))
    assert results.of_rates([long], lambda rate: rate).value == results.rate(long).value
    found = results.of_rates([long, short], lambda a, b: a / b)
    assert found[:1] == pytest.approx(results.ratio(table, "long", "short")[:1]) and found.prompts == 6
    # Each with its own prompts: the rates of the halves, and an interval of all prompts.
    parts = [long[long.task == task] for task in "ab"]
    sums = [part[["tokens", "passes"]].sum() for part in parts]
    apart = results.of_rates(parts, lambda a, b: a - b)
    assert apart.value == pytest.approx(sums[0].tokens / sums[0].passes - sums[1].tokens / sums[1].passes)
    assert apart.prompts == 6
    # Two seeds of one prompt are no second prompt.
    assert not results.of_rates([long[long.prompt == "0"]], lambda rate: rate).known
    silent = long.assign(tokens=0, passes=0)
    assert not math.isfinite(results.of_rates([silent], lambda rate: rate).value)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=12), st.floats(0, 2), st.floats(0, 1))
def test_the_cost_of_steps_is_summed_one_by_one(widths, a_step, a_token):
    steps = [step(DraftTree.chain([1] * (width - 1)), [], 2, 0, 0, 0) for width in widths]
    costed = results.with_cost(
        table_of(generation(9, steps)), {1: 1.0, 4: 2.0, 20: 5.0}, lambda _: {"passes": a_step, "drafted": a_token}
    )
    known = np.interp(widths, [1, 4, 20, 40], [1.0, 2.0, 5.0, 5.0 + 20 * 3 / 16])
    expected = sum(known) + sum(a_step + a_token * (width - 1) for width in widths)
    assert costed.cost[0] == pytest.approx(expected)
