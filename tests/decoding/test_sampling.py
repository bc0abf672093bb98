"""Uniform numbers, filtered distributions and choices against independent implementations."""

import functools
import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from specdec_lib import Sampling, custom_generate, generate, record, replay
from specdec_lib.decoding.sampling import (
    ACCEPT,
    DRAFT,
    RESIDUAL,
    TARGET,
    choose,
    choose_each,
    distribution,
    invert_cdf,
    most_likely,
)
from specdec_lib.drafters import PromptLookup
from tests.families import VOCABULARY, build, prompt

SEED_OF = 6197934810381150874


def logits(seed: int, vocabulary: int) -> torch.Tensor:
    return 3 * torch.randn(vocabulary, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def uniforms(count: int, **fixed) -> np.ndarray:
    """Uniforms along whichever of position, seed and salt is not fixed."""
    free = next(name for name in ("position", "seed", "salt") if name not in fixed)

    def one(seed=0, position=0, stream=TARGET, salt=0):
        return Sampling(seed=seed).uniform(position, stream, salt)

    return np.array([one(**fixed, **{free: i}) for i in range(count)])


@pytest.mark.parametrize("fixed", [{"seed": 0}, {"seed": 12345}, {"position": 7}, {"position": 3, "seed": 1}], ids=str)
def test_uniforms_are_spread_evenly_along_positions_seeds_and_salts(fixed):
    numbers = uniforms(20_000, **fixed)
    assert numbers.min() >= 0 and numbers.max() < 1
    counts = np.histogram(numbers, bins=100, range=(0, 1))[0]
    # Chi-square with 99 degrees of freedom: mean 99, standard deviation 14; five of those away.
    assert abs(((counts - 200) ** 2 / 200).sum() - 99) < 70


SEQUENCES = [{"seed": 0}, {"seed": 1}, {"seed": 2**32}, {"seed": 0, "salt": 1}]
SEQUENCES += [{"seed": 0, "stream": stream} for stream in (DRAFT, ACCEPT, RESIDUAL)]


def test_sequences_of_different_seeds_streams_and_salts_are_uncorrelated():
    drawn = np.array([uniforms(10_000, **sequence) for sequence in SEQUENCES])
    for first, second in ((drawn, drawn), (drawn[:, :-1], drawn[:, 1:])):
        correlations = np.corrcoef(first, second)[: len(drawn), len(drawn) :]
        assert np.abs(correlations - np.diag(correlations.diagonal())).max() < 0.05


@settings(max_examples=400)
@given(
    st.integers(0, 10**6),
    st.integers(2, 300) | st.just(1500),
    st.floats(0.05, 5.0),
    # Nearer to 1 the tokens left out have less mass together than a sum of probabilities rounds away.
    st.floats(0.01, 1 - 1e-9) | st.just(1.0),
    st.integers(0, 320),
)
def test_distribution_equals_the_warpers_of_transformers_and_ties_are_kept_as_there(
    seed, size, temperature, top_p, top_k
):
    """Exact, rounded to bfloat16, as logits of many models are, or rounded to whole numbers."""
    scores = logits(seed, size)
    scores = (scores, scores.bfloat16().double(), scores.round())[seed % 3]
    expected = TemperatureLogitsWarper(temperature)(None, scores[None])
    if top_k:
        expected = TopKLogitsWarper(top_k)(None, expected)
        kept = distribution(scores, Sampling(temperature, 1.0, top_k)) > 0
        assert torch.equal(kept, expected[0].isfinite())
    if top_p < 1:
        # Which of the ties at the edge a sort puts first is torch's affair unless it is told to be stable.
        theirs = TopPLogitsWarper(top_p)(None, expected)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch, "sort", functools.partial(torch.sort, stable=True))
            expected = TopPLogitsWarper(top_p)(None, expected)
        assert torch.equal(scores[theirs[0].isfinite()].sort()[0], scores[expected[0].isfinite()].sort()[0])
    got = distribution(scores, Sampling(temperature, top_p, top_k))
    assert got.dtype == torch.float64 and torch.equal(got > 0, expected[0].isfinite())
    torch.testing.assert_close(got, expected.softmax(-1)[0], rtol=1e-9, atol=1e-12)


def test_ties_are_cut_in_one_row_where_another_has_none():
    rows = torch.tensor([[1.0, 3.0, 2.0, 0.0], [1.0, 1.0, 1.0, 1.0], [2.0, 2.0, 0.0, 2.0]])
    got = distribution(rows, Sampling(1.0, top_p=0.5))
    assert (got > 0).tolist() == [[False, True, False, False], [False, False, True, True], [False, True, False, True]]


@settings(max_examples=200)
@given(
    st.lists(st.floats(0, 1), min_size=1, max_size=40).filter(lambda w: sum(w) > 1e-3),
    st.floats(0, 1, exclude_max=True),
)
def test_invert_cdf_equals_a_search_in_the_running_sum(weights, uniform):
    p = torch.tensor(weights, dtype=torch.float64)
    p = p / p.sum()
    running = np.cumsum(p.numpy())
    token = invert_cdf(p, uniform)
    assert token == np.searchsorted(running, uniform * running[-1], side="right")
    assert p[token] > 0


SAMPLINGS = [Sampling(), Sampling(0.7), Sampling(0.7, 0.9), Sampling(1.0, top_k=2), Sampling(1.0, 0.9, 50)]


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
@pytest.mark.parametrize("broken", [torch.nan, torch.inf, -torch.inf])
def test_logits_that_are_no_numbers_are_an_error_and_no_token(broken, sampling):
    large = torch.randn(3000, generator=torch.Generator().manual_seed(0))
    rows = [torch.full((3,), broken)]
    if broken != -torch.inf:  # one token that cannot be chosen is no error
        rows += [torch.tensor([0.0, broken, 1.0]), large.index_fill(0, torch.tensor([2999]), broken)]
    for row in rows:
        calls = [lambda: choose(row, sampling, 0)]
        if not sampling.greedy:
            calls += [lambda: distribution(row, sampling)]
            calls += [lambda: choose_each(torch.stack([torch.zeros_like(row), row]), sampling, [4, 5])]
        elif row.max() > -torch.inf:  # of NaN it is NaN
            continue
        for call in calls:
            with pytest.raises(FloatingPointError, match="NaN"):
                call()


@pytest.mark.parametrize("further", [0, 20_000])
def test_most_likely_takes_the_first_of_equals_and_refuses_one_bad_row(further):
    rest = torch.full((2, further), -7.0)
    rows = torch.cat([torch.tensor([[1.0, 3.0, 3.0], [-5.0, -6.0, -float("inf")]]), rest], 1)
    assert most_likely(rows) == rows.double().argmax(-1).tolist() == [1, 0]
    with pytest.raises(FloatingPointError):
        most_likely(torch.cat([torch.tensor([[1.0, 3.0], [float("nan"), 0.0]]), rest], 1))


NAN = float("nan")
WRONG = {"temperature": (-0.1, NAN, "hot"), "top_p": (0.0, 1.01, NAN), "top_k": (-1, 2.5), "seed": (-1, "1")}


@pytest.mark.parametrize("name, value", [(name, value) for name, values in WRONG.items() for value in values])
def test_values_out_of_range_are_refused_by_name_and_none_and_integers_of_numpy_are_not(name, value):
    with pytest.raises(ValueError, match=f"{name} is {value!r}; expected"):
        Sampling(**{name: value})
    assert Sampling(None, None, None) == Sampling(1.0, 1.0, 0)
    assert Sampling(seed=np.int64(7), top_k=np.int32(5)) == Sampling(seed=7, top_k=5)


def test_a_prompts_seed_depends_on_seed_and_tokens_alone():
    start = [5, 0, 7]
    # Committed: a seed's tokens must not change from one release of Python or of this library to another.
    assert Sampling(seed=1).for_prompt(start).seed == SEED_OF
    assert Sampling(0.7, 0.9, 5, 1).for_prompt(start) == Sampling(0.7, 0.9, 5, SEED_OF)
    for same in (tuple(start), np.array(start, np.int32), torch.tensor(start)):
        assert Sampling(seed=1).for_prompt(same).seed == SEED_OF
    others = [*((seed, start) for seed in (2, 2**64 + 1, 11))]
    others += [(1, tokens) for tokens in (start[::-1], [*start, 0], [0, *start], start[:2])]
    seeds = {Sampling(seed=seed).for_prompt(tokens).seed for seed, tokens in others}
    assert len(seeds) == len(others) and SEED_OF not in seeds


@pytest.fixture(scope="module")
def even():
    """A model under which every token is as likely as another, so that a token tells the number it was drawn with."""
    model = build("llama-gqa")
    with torch.no_grad():
        model.lm_head.weight.zero_()
    return model


def test_every_way_in_draws_by_seed_prompt_and_position(even):
    """Prompts of one length, and the turns of a conversation, are independent under one seed; each is reproducible."""
    sampling, drawn = Sampling(1.0, seed=4), []
    starts = [prompt(i, 20) for i in range(12)]
    turn = generate(even, starts[0], None, sampling, 6, []).tokens
    starts.append(starts[0] + turn)
    for place, start in enumerate(starts):
        tokens = generate(even, start, None, sampling, 40, []).tokens
        bound = sampling.for_prompt(start)
        assert tokens == [int(bound.uniform(len(start) + i) * VOCABULARY) for i in range(40)]
        drawn.append(tokens)
        if place > 1:
            continue
        trace = record(even, start, sampling, 40, [])
        assert trace.tokens == tokens and trace.sampling == sampling
        drafted = generate(even, start, PromptLookup(1, 4), sampling, 40, [])
        assert drafted.tokens == tokens
        replayed = replay(trace, PromptLookup(1, 4))
        assert [s.tokens for s in replayed.steps] == [s.tokens for s in drafted.steps]
        settings = {"do_sample": True, "top_k": 0, "max_new_tokens": 40, "eos_token_id": -1}
        method = custom_generate(PromptLookup(1, 4), seed=4)
        through = even.generate(torch.tensor([start]), custom_generate=method, **settings)
        assert through[0, len(start) :].tolist() == tokens
    table = np.array(drawn)
    equal = [(a == b).mean() for a, b in itertools.combinations(table, 2)]
    assert max(equal) < 0.2 and np.mean(equal) < 0.02
    # A token is the whole part of 96 u: half a step is added to make it even on [0, 1).
    numbers = np.sort((table.ravel() + 0.5) / VOCABULARY)
    above = np.arange(1, len(numbers) + 1) / len(numbers) - numbers
    assert max(above.max(), 1 / len(numbers) - above.min()) * len(numbers) ** 0.5 < 2.2  # Kolmogorov's distance
