"""Heads are asked about the tokens that decoding meets, and timed by the right clock."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from specdec_lib import Sampling, generate, load_model, record, replay
from specdec_lib.chapters.ch05_specdec_pp import heads, timing
from specdec_lib.chapters.ch05_specdec_pp.draft_pass import draft_along
from specdec_lib.chapters.ch05_specdec_pp.heads import met, reweighted
from specdec_lib.chapters.ch05_specdec_pp.sampled_law import transformed, uniform_p_value
from specdec_lib.chapters.ch05_specdec_pp.timing import fit_forward_times
from specdec_lib.drafters import PromptLookup, SpecDecPP
from tests.chaos import CountingClock, head_of
from tests.families import perturbed, prompt


def test_the_heads_of_a_pair_come_with_it_and_serve_its_draft_model_alone():
    (model, _), (small, _) = load_model("pocket", "cpu"), load_model("pocket-draft", "cpu")
    paper, seeing = heads.shipped(model, small)
    assert paper and seeing
    assert not any(head.sees_confidence for head in paper) and all(head.sees_confidence for head in seeing)
    with pytest.raises(ValueError, match="holds no heads of this draft model; train some"):
        heads.shipped(model, model)


def test_tokens_are_those_that_decoding_meets_with_what_heads_say_of_them(llama):
    small = perturbed(llama)
    head = head_of(small)
    passes = [draft_along(record(llama, prompt(s, 8), max_new_tokens=9), small) for s in range(2)]
    found = met(passes, {"one": head}, 6.0)
    assert found.accepted.tolist() == np.concatenate([p.agreement for p in passes]).astype(float).tolist()
    assert found.output.tolist() == [place for place, p in enumerate(passes) for _ in p.agreement]
    own = passes[1].examples()
    said = reweighted(head.probability(own.states, own.confidence), 6.0)
    assert found.one[found.output == 1].tolist() == pytest.approx(said.tolist())
    assert found.confidence[found.output == 1].tolist() == pytest.approx(own.confidence.tolist())


def test_reweighting_undoes_the_weight_of_the_loss():
    p = np.linspace(0.01, 0.99, 9)
    np.testing.assert_allclose(reweighted(p / (p + 6 * (1 - p)), 6), p)
    np.testing.assert_allclose(reweighted(torch.from_numpy(p), 1), p)


def test_the_cost_of_a_head_and_passes_in_turns_are_timed_by_the_clock_of_the_devices(llama, monkeypatch):
    asked = []
    monkeypatch.setattr(heads, "clock_of", lambda devices: asked.append(set(devices)) or CountingClock(0.5))
    spent = heads.head_cost(llama, head_of(llama), prompt(1, 9), 2, 2)
    assert spent == {"draft": 0.5, "capture": 0.0, "head": 0.5, "share": (1.0, 1.0, 1.0)} and asked == [{llama.device}]
    monkeypatch.setattr(timing, "clock_of", lambda devices: CountingClock(0.5))
    assert timing.alone_over_in_turns(llama, perturbed(llama), 3, 1, 8, 4) == (1.0, 1.0, 1.0)


def test_counts_and_widths_are_those_of_the_steps(llama):
    run = replay(record(llama, prompt(1, 25), max_new_tokens=30), PromptLookup(num_tokens=3))
    steps = [replace(s, draft_seconds=0.5, verify_seconds=1.0 + s.drafted, host_seconds=0.0) for s in run.steps]
    slow, quick = replace(run, steps=steps), replace(run, steps=[replace(s, draft_seconds=0.1) for s in steps])
    forwards, seconds = timing.forward_counts([slow])
    drafted = sum(s.drafted for s in steps)
    assert forwards.tolist() == [[drafted, len(steps)]]
    assert seconds == pytest.approx([sum(0.5 + 1.0 + s.drafted + s.commit_seconds for s in steps)])
    assert timing.seconds_by_width([slow]) == {w: float(w) for w in sorted({s.drafted + 1 for s in steps})}
    assert timing.fastest([[slow], [quick]]) == [quick]


def test_fits_have_intervals_and_sets_of_one_price_have_no_spread():
    rng = np.random.default_rng(3)
    counts = rng.integers(1, 30, (40, 2))
    exact = counts @ np.array([0.02, 0.1])
    assert timing.fit(counts, exact).r_squared.low == pytest.approx(1)
    noisy_seconds = exact * rng.lognormal(0, 0.3, 40)
    noisy, alone = timing.fit(counts, noisy_seconds), fit_forward_times(counts, noisy_seconds)
    assert noisy.r_squared.low < noisy.r_squared.value < noisy.r_squared.high < 1
    assert [one.value for one in noisy.seconds] == pytest.approx(alone.seconds)
    assert all(one.low <= one.value <= one.high for one in noisy.seconds)
    halves = [(counts[:20], exact[:20]), (counts[20:], exact[20:])]
    assert timing.spread_share(halves).value == pytest.approx(0, abs=1e-9)
    halves[1] = (counts[20:], counts[20:] @ np.array([0.04, 0.1]))
    assert timing.spread_share(halves).value == pytest.approx(np.std([0.02, 0.04], ddof=1) / 0.03)


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
