"""Uniform numbers, filtered distributions and choices against independent implementations."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from specdec_lib import Sampling, generate
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
from tests.families import build, perturbed, prompt


def logits(seed: int, vocabulary: int, scale: float = 3.0) -> torch.Tensor:
    return scale * torch.randn(vocabulary, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def uniforms(count: int, **fixed) -> np.ndarray:
    """Uniforms along whichever of seed, position and salt is not fixed."""
    free = next(name for name in ("position", "seed", "salt") if name not in fixed)
    given_ = {"seed": 0, "position": 0, "salt": 0, "stream": TARGET} | fixed
    return np.array(
        [
            Sampling(seed=(k := given_ | {free: i})["seed"]).uniform(k["position"], k["stream"], k["salt"])
            for i in range(count)
        ]
    )


@pytest.mark.parametrize(
    "fixed", [{"seed": 0}, {"seed": 12345}, {"position": 7}, {"position": 3, "seed": 1}], ids=str
)
def test_uniforms_are_spread_evenly_along_positions_seeds_and_salts(fixed):
    numbers = uniforms(20_000, **fixed)
    assert numbers.min() >= 0 and numbers.max() < 1
    counts = np.histogram(numbers, bins=100, range=(0, 1))[0]
    # Chi-square with 99 degrees of freedom: mean 99, standard deviation 14; five of those away.
    assert abs(((counts - 200) ** 2 / 200).sum() - 99) < 70


@pytest.mark.parametrize(
    "a, b",
    list(
        itertools.combinations(
            [
                {"seed": 0},
                {"seed": 1},
                {"seed": 2**32},
                {"seed": 0, "stream": DRAFT},
                {"seed": 0, "stream": ACCEPT},
                {"seed": 0, "stream": RESIDUAL},
                {"seed": 0, "salt": 1},
            ],
            2,
        )
    ),
    ids=str,
)
def test_sequences_of_different_seeds_streams_and_salts_are_uncorrelated(a, b):
    x, y = uniforms(10_000, **a), uniforms(10_000, **b)
    assert abs(np.corrcoef(x, y)[0, 1]) < 0.05
    assert abs(np.corrcoef(x[:-1], y[1:])[0, 1]) < 0.05


def test_neighbouring_positions_are_uncorrelated():
    numbers = uniforms(10_000, seed=5)
    for lag in (1, 2, 3, 7):
        assert abs(np.corrcoef(numbers[:-lag], numbers[lag:])[0, 1]) < 0.05


@pytest.mark.parametrize("family", ["stream", "salt"])
def test_the_same_arguments_give_the_same_number(family):
    assert Sampling(seed=9).uniform(4, **{family: 2}) == Sampling(seed=9, temperature=0.4).uniform(
        4, **{family: 2}
    )


@settings(max_examples=150, deadline=None)
@given(
    st.integers(0, 10**6),
    st.integers(2, 300),
    st.floats(0.05, 5.0),
    st.floats(0.01, 1.0),
    st.integers(0, 320),
)
def test_distribution_equals_the_warpers_of_transformers(seed, vocabulary, temperature, top_p, top_k):
    scores = logits(seed, vocabulary)
    expected = TemperatureLogitsWarper(temperature)(None, scores[None])
    if top_k:
        expected = TopKLogitsWarper(top_k)(None, expected)
    if top_p < 1:
        expected = TopPLogitsWarper(top_p)(None, expected)
    got = distribution(scores, Sampling(temperature, top_p, top_k))
    assert got.dtype == torch.float64
    torch.testing.assert_close(got, expected.softmax(-1)[0], rtol=1e-9, atol=1e-12)


def test_distribution_of_many_rows_is_that_of_each():
    rows = torch.stack([logits(s, 200) for s in range(5)])
    sampling = Sampling(0.8, 0.95, 50)
    torch.testing.assert_close(
        distribution(rows, sampling), torch.stack([distribution(r, sampling) for r in rows])
    )


def test_a_nucleus_wider_than_the_first_look_is_found_whole():
    scores = torch.zeros(5000, dtype=torch.float64)
    kept = distribution(scores, Sampling(1.0, top_p=0.50005))
    assert int((kept > 0).sum()) == 2501 and float(kept.sum()) == pytest.approx(1)


@settings(max_examples=200, deadline=None)
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


@pytest.mark.parametrize("uniform", [0.0, 0.5, np.nextafter(1.0, 0.0)])
def test_tokens_without_probability_are_never_drawn_at_the_ends(uniform):
    p = torch.tensor([0.0, 0.0, 0.3, 0.7 - 1e-9, 0.0], dtype=torch.float64)
    assert p[invert_cdf(p, uniform)] > 0


@given(st.integers(0, 10**6), st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
def test_a_temperature_near_zero_chooses_what_greedy_does(seed, position):
    scores = logits(seed, 50)
    best = int(scores.numpy().argmax())
    assert choose(scores, Sampling(), position) == best
    assert choose(scores, Sampling(temperature=1e-6, seed=seed), position) == best


def test_choose_draws_with_the_uniform_of_its_position():
    scores, sampling = logits(1, 30), Sampling(0.9, 0.95, 20, seed=6)
    for position in range(50):
        assert choose(scores, sampling, position) == invert_cdf(
            distribution(scores, sampling), sampling.uniform(position)
        )


@pytest.mark.parametrize("broken", [[0.0, float("nan"), 1.0], [float("nan")] * 3])
@pytest.mark.parametrize(
    "sampling", [Sampling(), Sampling(0.7), Sampling(0.7, 0.9), Sampling(1.0, top_k=2)], ids=str
)
def test_nan_logits_are_an_error_and_no_token(broken, sampling):
    with pytest.raises(FloatingPointError, match="NaN"):
        choose(torch.tensor(broken), sampling, 0)


@pytest.mark.parametrize("value", [float("inf"), -float("inf")])
def test_infinite_logits_are_an_error_when_sampling(value):
    with pytest.raises(FloatingPointError):
        choose(torch.tensor([value] * 3), Sampling(1.0), 0)


def test_most_likely_takes_the_first_of_equals_and_refuses_one_bad_row():
    assert most_likely(torch.tensor([[1.0, 3.0, 2.0], [-5.0, -6.0, -float("inf")]])) == [1, 0]
    with pytest.raises(FloatingPointError):
        most_likely(torch.tensor([[1.0, 3.0], [float("nan"), 0.0]]))


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.7, 0.9)], ids=str)
def test_a_model_with_damaged_weights_gives_an_error(sampling):
    model = perturbed(build("llama"), 0.0)
    with torch.no_grad():
        model.lm_head.weight[3, 3] = float("nan")
    with pytest.raises((FloatingPointError, ValueError), match="NaN|nan"):
        generate(model, prompt(0, 8), None, sampling, 4)


@pytest.mark.parametrize(
    "arguments, says",
    [
        ({"temperature": -0.1}, "temperature is -0.1"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"temperature": float("inf")}, "temperature is inf"),
        ({"top_p": 0.0}, "top_p is 0.0"),
        ({"top_p": 1.01}, "top_p is 1.01"),
        ({"top_p": float("nan")}, "top_p is nan"),
        ({"top_k": -1}, "top_k is -1"),
        ({"top_k": 2.5}, "top_k is 2.5"),
        ({"seed": -1}, "seed is -1"),
        ({"seed": 1.0}, "seed is 1.0"),
        ({"seed": "1"}, "seed is '1'"),
    ],
)
def test_values_out_of_range_are_refused_by_name(arguments, says):
    with pytest.raises(ValueError, match=says):
        Sampling(**arguments)


def test_numpy_integers_are_seeds_too():
    assert Sampling(seed=np.int64(7), top_k=np.int32(5)) == Sampling(seed=7, top_k=5)
    assert Sampling(seed=np.int64(7)).uniform(3) == Sampling(seed=7).uniform(3)


@pytest.mark.parametrize("broken", [torch.nan, torch.inf])
def test_logits_that_are_no_numbers_are_refused_with_a_nucleus_of_a_large_vocabulary_too(broken):
    logits = torch.randn(3, 3000, generator=torch.Generator().manual_seed(0))
    logits[1, 2999] = broken
    for sampling in (Sampling(1.0, top_p=0.9), Sampling(1.0, top_p=0.9, top_k=50), Sampling(1.0)):
        for row in (distribution, lambda x, s: choose(x[1], s, 4), lambda x, s: choose_each(x, s, [4, 5, 6])):
            with pytest.raises(FloatingPointError, match="NaN"):
                row(logits, sampling)
