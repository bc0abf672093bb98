"""The comparison with plain decoding: what differs is found, and called rounding only where it is."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from specdec_lib import Sampling, generate
from specdec_lib.decoding.sampling import choose
from specdec_lib.experiments import losslessness
from specdec_lib.experiments.losslessness import compare_all
from specdec_lib.experiments.rounding import SLACK, Judge, explain, margin
from specdec_lib.experiments.workbench import ModelPair
from tests.families import build, perturbed, prompt

GREEDY, HOT = Sampling(), Sampling(0.7, 0.9, seed=1)
#: Those that need no datastore: the model of these tests has no tokenizer to build one with.
WITHOUT_STORES = {name: replace(losslessness.METHODS[name], variants={}) for name in ("PLD", "PLD+ (h)", "SpecDec")}
PROMPTS = [(f"p{i}", prompt(i, 12 + i)) for i in range(3)]


@pytest.fixture(scope="module")
def pair():
    target = build("llama-gqa")
    return target, perturbed(target)


def test_every_method_and_way_of_sampling_is_counted(pair, monkeypatch):
    monkeypatch.setattr(losslessness, "METHODS", WITHOUT_STORES)
    found = compare_all(
        ModelPair.untuned(*pair, None), PROMPTS, [GREEDY, HOT, Sampling(0.7, 0.9, seed=2)], 12, progress=False
    )
    assert found["mismatches"] == []
    rows = {(row["method"], row["sampling"]): row for row in found["counts"]}
    assert set(rows) == {
        ("PLD", "greedy"),
        ("PLD", "sampled"),
        ("PLD+ (h)", "greedy"),
        ("PLD+ (h)", "sampled"),
        ("SpecDec", "greedy"),
    }
    for (_, how), row in rows.items():
        assert row["outputs"] == (3 if how == "greedy" else 6) and row["tokens"] == 12 * row["outputs"]
        assert row["mismatches"] == row["explained"] == 0


def test_equal_outputs_are_no_mismatch(pair):
    assert Judge(pair[0])([1, 2], [3, 4], [3, 4], GREEDY) is None


@pytest.mark.parametrize("sampling", [GREEDY, HOT, Sampling(0.7, seed=3)], ids=str)
def test_a_wrong_token_is_not_explained(pair, sampling):
    start = prompt(1, 12)
    tokens = generate(pair[0], start, None, sampling, 10).tokens
    for wrong in range(2, 90, 8):
        if wrong == tokens[6]:
            continue
        found = Judge(pair[0])(start, tokens, [*tokens[:6], wrong, *tokens[7:]], sampling, "p", "m")
        assert (found.position, found.expected, found.got, found.explained) == (6, tokens[6], wrong, False)
        assert found.distance > SLACK * found.rounding


def test_an_output_that_ends_early_is_not_explained(pair):
    found = Judge(pair[0])([1, 2], [3, 4, 5], [3, 4], GREEDY)
    assert (found.position, found.expected, found.got) == (2, 5, -1) and not found.explained


def test_a_tie_is_explained():
    model, start = build("llama-gqa"), prompt(1, 12)
    with torch.no_grad():
        state = model.model(torch.tensor([start])).last_hidden_state[0, -1]
        # Two likely tokens that nothing but rounding tells apart.
        model.lm_head.weight[40] = 2 * state
        model.lm_head.weight[50] = model.lm_head.weight[40] * (1 + 1e-7)
    found = Judge(model)(start, [40], [50], GREEDY)
    assert found.explained and found.margin <= SLACK * found.rounding
    assert not Judge(model)(start, [40], [51], GREEDY).explained


def test_margin_is_the_room_around_a_choice():
    logits = torch.tensor([1.0, 4.0, 3.5, -2.0])
    assert margin(logits, GREEDY, 0) == pytest.approx(0.5)
    p = logits.double().softmax(-1)
    u = Sampling(1.0, seed=2).uniform(7)
    assert margin(logits, Sampling(1.0, seed=2), 7) == pytest.approx(float((p.cumsum(-1)[:-1] - u).abs().min()))


class Fixed(Sampling):
    """A sampling whose uniform number is given."""

    def uniform(self, position, stream=0, salt=0):
        return self.number


def fixed(number: float, top_p: float = 1.0) -> Fixed:
    sampling = Fixed(1.0, top_p)
    object.__setattr__(sampling, "number", number)
    return sampling


@pytest.mark.parametrize("error", [1e-7, 1e-6])
@pytest.mark.parametrize("top_p", [1.0, 0.9])
def test_a_number_between_two_neighbours_is_explained_only_within_the_rounding_error(error, top_p):
    p = torch.tensor([0.4, 0.3, 0.25, 0.03, 0.02]).double()
    scale = 1.0 if top_p == 1 else 0.95  # the nucleus of 0.9 holds the first three
    exact = p.log()
    rounded = (p + torch.tensor([error, -error, 0, 0, 0]).double()).log()
    boundary = 0.4 / scale
    for shift, explained in ((2 * error, True), (-2 * error, True), (100 * error, False), (-100 * error, False)):
        sampling = fixed(boundary + shift, top_p)
        assert choose(exact, sampling, 0) == (1 if shift > 0 else 0)
        distance, rounding = explain(exact, rounded, sampling, 0, (0, 1))
        assert rounding == pytest.approx(error, rel=1e-3)
        assert (distance <= SLACK * rounding) == explained
        # A third token is never explained by this boundary.
        assert explain(exact, rounded, sampling, 0, (0, 2))[0] > SLACK * rounding


def test_a_nucleus_that_ends_at_its_limit_is_explained():
    p = torch.tensor([0.5, 0.4, 0.06, 0.04]).double()  # the nucleus of 0.9 is two or three tokens, by rounding
    rounded = (p + torch.tensor([-1e-7, 0, 1e-7, 0]).double()).log()
    low, high = 0.5 / 0.96, 0.5 / 0.9
    sampling = fixed((low + high) / 2, 0.9)
    distance, rounding = explain(p.log(), rounded, sampling, 0, (0, 1))
    assert distance <= SLACK * rounding
    # With a limit that is clear of the sums the same two tokens are not explained.
    clear = fixed((low + high) / 2, 0.88)
    distance, rounding = explain(p.log(), rounded, clear, 0, (0, 1))
    assert distance > SLACK * rounding
    assert math.isinf(explain(p.log(), rounded, clear, 0, (0, 3))[0])


@pytest.mark.parametrize(("place", "pair"), [(0.53, (1, 2)), (0.82, (2, 3))])
def test_tokens_that_tie_at_the_edge_of_the_nucleus_may_change_places(place, pair):
    """The nucleus of 0.9 holds one of the two tokens of 0.06, and rounding decides which."""
    p = torch.tensor([0.5, 0.06, 0.3, 0.06, 0.08]).double()
    either = [p + torch.tensor([0, shift, 0, -shift, 0]).double() for shift in (1e-7, -1e-7)]
    sampling = fixed(place / 0.94, 0.9)
    assert {choose(one.log(), sampling, 0) for one in either} == set(pair)
    for exact, rounded in (either, either[::-1]):
        distance, rounding = explain(exact.log(), rounded.log(), sampling, 0, pair)
        assert distance <= SLACK * rounding
        # The first token is far from the number, whichever of the two is inside.
        assert explain(exact.log(), rounded.log(), sampling, 0, (0, pair[0]))[0] > SLACK * rounding
    # Tokens that differ by more than rounding do not change places.
    clear = p + torch.tensor([0, 1e-3, 0, -1e-3, 0]).double()
    rounded = clear + torch.tensor([1e-7, -1e-7, 0, 0, 0]).double()
    distance, rounding = explain(clear.log(), rounded.log(), sampling, 0, pair)
    assert distance > SLACK * rounding


def test_many_tokens_below_the_rounding_error_move_no_boundary():
    p = torch.tensor([1e-6] * 400 + [0.5, 0.4996], dtype=torch.float64)
    sampling = fixed(400e-6 + 0.5 + 1e-8)
    rounded = (p + torch.tensor([0.0] * 400 + [1e-7, -1e-7], dtype=torch.float64)).log()
    distance, rounding = explain(p.log(), rounded, sampling, 0, (400, 401))
    assert distance == pytest.approx(1e-8, rel=1e-3) and distance <= SLACK * rounding
    far = fixed(400e-6 + 0.5 + 1e-4)
    distance, rounding = explain(p.log(), rounded, far, 0, (400, 401))
    assert distance == pytest.approx(1e-4, rel=1e-3) and distance > SLACK * rounding
