"""Text that follows the target's distribution is told from text that does not."""

from __future__ import annotations

import numpy as np

from specdec_lib import Sampling, generate
from specdec_lib.chapters.ch05_specdec_pp.sampled_law import transformed, uniform_p_value
from specdec_lib.drafters import SpecDecPP
from tests.chaos import head_of
from tests.families import perturbed, prompt


def test_text_that_follows_the_target_gives_uniform_numbers_and_other_text_does_not(llama):
    drafter, sampling = SpecDecPP(perturbed(llama), head_of(perturbed(llama)), 0.6), Sampling(0.9)
    numbers, cold = [], []
    for seed in range(12):
        ids, own = prompt(seed, 10), Sampling(0.9, seed=seed)
        numbers.append(transformed(llama, ids, generate(llama, ids, drafter, own, 24).tokens, sampling, seed))
        cold.append(transformed(llama, ids, generate(llama, ids, None, Sampling(0.5, seed=seed), 24).tokens, sampling))
    assert all(((part >= 0) & (part <= 1)).all() for part in numbers)
    assert uniform_p_value(np.concatenate(numbers)) > 1e-3
    assert uniform_p_value(np.concatenate(cold)) < 1e-6


def test_the_p_value_is_as_small_as_it_says_as_often_as_it_says():
    rng = np.random.default_rng(0)
    found = np.array([uniform_p_value(rng.random(60)) for _ in range(800)])
    for level in (0.05, 0.5):
        assert abs((found < level).mean() - level) < 4 * np.sqrt(level * (1 - level) / 800)
