"""Recorded data for acceptance heads: labels, mixtures, and folders that go on after a stop."""

from collections import Counter
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from specdec_lib import Sampling, generate
from specdec_lib.datastores import StoreBusy
from specdec_lib.decoding.sampling import distribution
from specdec_lib.files import locked
from specdec_lib.heads import acceptance_data, answers
from specdec_lib.heads.acceptance_data import Response, examples, generate_data, label
from tests.decoding.test_acceptance import RIGHT, WRONG, surprise
from tests.families import CONTEXT, build, perturbed, prompt, uncached

NEW = 12
HOT = Sampling(0.8, top_k=20, seed=5)


@pytest.fixture(scope="module")
def pair():
    target = build("llama")
    return target, perturbed(target, 0.1)


def respond(target, draft, start, sampling, labels="decoding", max_new_tokens=NEW):
    return label(target, draft, start, generate(target, start, None, sampling, max_new_tokens).tokens, sampling, labels)


def test_greedy_labels_say_where_both_first_choices_agree(pair):
    r = respond(*pair, prompt(1, 15), Sampling())
    target, draft = (uncached(model, [*prompt(1, 15), *r.tokens])[0][-NEW - 1 : -1] for model in pair)
    assert r.drawn.tolist() == draft.argmax(-1).tolist()
    assert r.acceptance.tolist() == (draft.argmax(-1) == target.argmax(-1)).float().tolist()
    assert 0 < r.acceptance.mean() < 1
    assert r.confidence == pytest.approx(draft.softmax(-1).max(-1).values.numpy(), rel=1e-3)


@pytest.mark.parametrize("labels", acceptance_data.LABELS)
def test_sampled_labels_are_the_acceptance_probability(pair, labels):
    r = respond(*pair, prompt(1, 15), HOT, labels)
    text = [*prompt(1, 15), *r.tokens]
    under = HOT if labels == "decoding" else Sampling(1.0)
    p, q = (distribution(uncached(model, text)[0][-NEW - 1 : -1], under) for model in pair)
    index = torch.from_numpy(r.drawn).long()[:, None]
    expected = (p.gather(1, index) / q.gather(1, index)).clamp(max=1)[:, 0]
    assert r.acceptance == pytest.approx(expected.numpy(), rel=1e-3, abs=1e-5)
    assert r.confidence == pytest.approx(q.gather(1, index)[:, 0].numpy(), rel=1e-3, abs=1e-6)


@pytest.mark.core_cases(0)
@pytest.mark.slow
def test_draws_follow_the_draft_distribution(pair):
    counts: Counter = Counter()
    for seed in range(1500):
        r = label(*pair, prompt(1, 15), [0], Sampling(1.0, seed=seed), "raw")
        counts[int(r.drawn[0])] += 1
    p, q = (distribution(uncached(model, prompt(1, 15))[0][-1], Sampling(1.0)).tolist() for model in pair)
    assert surprise(counts, dict(enumerate(q))) < RIGHT
    # The same counts tell the draft's distribution from the target's, and from none at all.
    assert surprise(counts, dict(enumerate(p))) > WRONG
    assert surprise(counts, dict.fromkeys(range(len(q)), 1 / len(q))) > WRONG


def test_unmixed_examples_stand_behind_the_target_prefix(pair):
    responses = [respond(*pair, prompt(s, 10 + s), Sampling()) for s in range(3)]
    found = examples(pair[1], responses, None)
    texts = [[*r.prompt, *r.tokens[:i], r.drawn[i]] for r in responses for i in range(NEW)]
    expected = [uncached(pair[1], text)[1][-1] for text in texts]
    torch.testing.assert_close(found.states, torch.stack(expected), rtol=1e-3, atol=1e-4)
    assert found.acceptance.tolist() == np.concatenate([r.acceptance for r in responses]).tolist()


def test_mixed_examples_are_the_tokens_of_the_draft_in_one_text(pair, monkeypatch):
    r = respond(*pair, prompt(2, 10), HOT, max_new_tokens=40)
    for mixing in (0.0, 0.4):
        found = examples(pair[1], [r], mixing, seed=3)
        own = np.random.default_rng(3).random(40) >= mixing
        states = uncached(pair[1], [*r.prompt, *np.where(own, r.drawn, r.tokens)])[1][-40:]
        torch.testing.assert_close(found.states, states[torch.from_numpy(own)], rtol=1e-3, atol=1e-4)
        assert found.acceptance.tolist() == r.acceptance[own].tolist()
        assert found.confidence.tolist() == r.confidence[own].tolist()
    assert 10 < own.sum() < 35


PROMPTS = [prompt(s, 8 + s) for s in range(5)]


def lists(responses):
    return [[np.asarray(value).tolist() for value in vars(one).values()] for one in responses]


def test_a_stopped_run_goes_on_and_gives_what_an_unbroken_one_does(pair, tmp_path, monkeypatch):
    monkeypatch.setattr(answers, "SHARD", 2)
    options = {"sampling": HOT, "max_new_tokens": NEW, "progress": False}
    whole = generate_data(*pair, PROMPTS, tmp_path / "whole", **options)
    one_by_one = [respond(*pair, p, replace(HOT, seed=5 + i)) for i, p in enumerate(PROMPTS)]
    assert lists(whole) == lists(one_by_one)
    asked = []

    def dying(target, draft, start, *rest):
        asked.append(list(start))
        if len(asked) == 4:
            raise KeyboardInterrupt
        return label(target, draft, start, *rest)

    monkeypatch.setattr(acceptance_data, "label", dying)
    with pytest.raises(KeyboardInterrupt):
        generate_data(*pair, PROMPTS, tmp_path / "part", **options)
    with pytest.raises(FileNotFoundError, match=r"lacks shard-00001.safetensors \(2 of 3 shards\)"):
        answers.load(Response, tmp_path / "part")
    del asked[:]
    again = generate_data(*pair, PROMPTS, tmp_path / "part", **options)
    assert asked == PROMPTS[2:] and lists(again) == lists(whole)


def test_data_of_other_models_or_settings_are_refused(pair, tmp_path, monkeypatch):
    make = partial(generate_data, prompts=PROMPTS[:1], folder=tmp_path, progress=False)
    with monkeypatch.context() as short:
        short.setattr(pair[1].config, "max_position_embeddings", len(PROMPTS[0]) + 5)
        with pytest.raises(ValueError, match=f"up to {len(PROMPTS[0]) + 6} tokens, the draft model's context is"):
            make(*pair, max_new_tokens=6)
    make(*pair, max_new_tokens=2)
    for models, tokens, other in ((pair, 3, "max_new_tokens"), ((pair[0], pair[0]), 2, "draft")):
        with pytest.raises(ValueError, match=f"holds answers with another {other}; name an empty folder"):
            make(*models, max_new_tokens=tokens)
    (tmp_path / "shard-00000.safetensors").write_bytes(b"nothing")
    with pytest.raises(ValueError, match="shard-00000.safetensors is no shard"):
        make(*pair, max_new_tokens=2)


def data_with(**wrong):
    return lambda pair, folder: generate_data(*pair, **{"prompts": PROMPTS[:1], "folder": folder} | wrong)


@pytest.mark.parametrize("call, words", [
    (lambda pair, folder: examples(pair[1], [], -0.1), "mixing is"),
    (lambda pair, folder: examples(pair[1], [], 1.0), "mixing is"),
    (lambda pair, folder: examples(pair[1], [], None), "left no token"),
    (data_with(labels="soft"), "labels is 'soft'"),
    (data_with(prompts=[]), "no prompts"),
    (data_with(max_new_tokens=0), "max_new_tokens is 0; expected a whole number, 1 or more"),
    (data_with(prompts=[[3, 4], [96]]), "token id 96 is outside"),
    (data_with(prompts=[[3, 4], [5] * CONTEXT]), "prompt 1 has 128 tokens and the model's context is 128"),
])  # fmt: skip
def test_a_bad_call_leaves_nothing_behind(pair, tmp_path, call, words):
    """What it left would refuse the call put right, as data made with other settings."""
    with pytest.raises(ValueError, match=words):
        call(pair, tmp_path / "data")
    assert list(tmp_path.iterdir()) == []


def test_two_processes_do_not_fill_one_folder(pair, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    make = partial(generate_data, *pair, PROMPTS[:1], max_new_tokens=2, progress=False)
    for folder in (tmp_path / "here", "."):
        with locked(tmp_path / "here"), pytest.raises(StoreBusy, match="is being built by another process"):
            make(folder)
    assert len(make(".")) == 1 and [path.name for path in tmp_path.iterdir()] == ["here"]
