"""The acceptance head: its function, its file, its training."""

import math

import numpy as np
import pytest
import torch

from specdec_lib.heads.acceptance import AcceptanceHead, Examples, weighted_loss
from specdec_lib.heads.training import Training, divergence, evaluate, train

WIDTH = 12


def states(count: int = 40, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, WIDTH, generator=torch.Generator().manual_seed(seed))


def by_hand(head: AcceptanceHead, x: np.ndarray, confidence: np.ndarray) -> np.ndarray:
    """The released head's function in NumPy: blocks, a linear layer, a sigmoid."""
    if head.sees_confidence:
        x = np.concatenate([x, np.log(confidence / (1 - confidence))[:, None]], axis=1)
    for _ in range(head.depth):
        linear = head.blocks[0].linear
        y = x @ linear.weight.detach().numpy().T + linear.bias.detach().numpy()
        x = x + y / (1 + np.exp(-y))
    z = x @ head.out.weight.detach().numpy()[0] + head.out.bias.item()
    return 1 / (1 + np.exp(-z))


@pytest.mark.parametrize("depth", range(5))
@pytest.mark.parametrize("sees", [False, True])
def test_the_head_is_blocks_a_linear_layer_and_a_sigmoid(depth, sees):
    torch.manual_seed(depth)
    head = AcceptanceHead(WIDTH, depth, sees_confidence=sees)
    confidence = torch.rand(40) * 0.99 + 0.005
    expected = by_hand(head, states().double().numpy(), confidence.double().numpy())
    np.testing.assert_allclose(head.probability(states(), confidence).numpy(), expected, rtol=1e-4)
    score = head.scorer()
    scores = [score(s, float(c)) for s, c in zip(states(), confidence, strict=True)]
    np.testing.assert_allclose(scores, expected, rtol=1e-4)


def test_certain_states_score_without_overflow_and_nan_is_an_error():
    head = AcceptanceHead(1, 1, zero=True)
    with torch.no_grad():
        head.out.weight.fill_(1.0)
        head.out.bias.zero_()
    assert [head.scorer()(torch.tensor([v])) for v in (-1e4, 1e4)] == [0.0, 1.0]
    head, bad = AcceptanceHead(WIDTH, 2), states(1)
    bad[0, 3] = math.nan
    for ask in (head.probability, lambda states: Examples(states, torch.ones(1))):
        with pytest.raises(FloatingPointError, match="the draft model's states hold NaN"):
            ask(bad)
    assert math.isnan(head.scorer()(bad[0]))


def test_the_loss_is_the_weighted_cross_entropy():
    logits, label, weight = torch.tensor([0.3, -1.0, 2.0]), torch.tensor([1.0, 0.25, 0.0]), 6.0
    guess, rejected = 1 / (1 + np.exp(-logits.numpy())), weight * (1 - label.numpy())
    total = -(label.numpy() * np.log(guess) + rejected * np.log(1 - guess)).sum()
    expected = total / (label.numpy() + rejected).sum()
    assert weighted_loss(logits, label, weight).item() == pytest.approx(expected, rel=1e-5)


@pytest.fixture(scope="module")
def learnable():
    """Labels that are a steep function of the first component."""
    return [Examples(x, torch.sigmoid(3 * x[:, 0])) for x in (states(600, 0), states(600, 1))]


def test_a_head_that_sees_the_confidence_learns_from_it():
    parts = []
    for seed in (0, 1):
        confidence = torch.rand(600, generator=torch.Generator().manual_seed(seed))
        parts.append(Examples(states(600, seed), confidence, confidence))
    losses = [
        divergence(train(*parts, Training(1.0, 40, 64, 5e-2), 0, sees_confidence=sees, progress=False), parts[1])
        for sees in (False, True)
    ]
    assert losses[1] < 0.01 < losses[0]


@pytest.mark.parametrize("depth", [0, 2])
def test_training_finds_what_can_be_found(learnable, depth):
    head = train(*learnable, Training(1.0, 40, 64, 5e-2), depth, progress=False)
    assert divergence(head, learnable[1]) < 0.01
    assert divergence(AcceptanceHead(WIDTH, depth), learnable[1]) > 0.1


def test_the_best_epoch_is_kept_and_the_curve_says_so(learnable):
    few = Examples(learnable[0].states[:30], learnable[0].acceptance[:30].round())
    head = train(few, learnable[1], Training(6.0, 30, 8, 5e-2), 4, progress=False)
    losses = [row["held_out"] for row in head.story["curve"]]
    assert head.story["epoch_kept"] == 1 + int(np.argmin(losses)) < 30
    assert evaluate(head, learnable[1], 6.0) == pytest.approx(min(losses), rel=2e-3)  # in bfloat16


def test_training_depends_on_the_seed_alone(learnable):
    before = torch.random.get_rng_state()
    heads = [train(*learnable, Training(epochs=1, seed=s), 1, progress=False).state_dict() for s in (0, 0, 1)]
    same, other = (all(torch.equal(heads[0][k], h[k]) for k in h) for h in heads[1:])
    assert same and not other and torch.equal(before, torch.random.get_rng_state())


@pytest.mark.parametrize(("make", "says"), [
    (lambda: AcceptanceHead(WIDTH, 5), "depth is 5"),
    (lambda: AcceptanceHead(WIDTH, 1.0), "depth is 1.0"),
    (lambda: AcceptanceHead(0), "width is 0"),
    *((lambda p=p: Examples(states(2), torch.tensor([0.5, p])), "acceptance holds") for p in (-0.01, math.nan)),
    (lambda: Examples(states(2), torch.ones(2), torch.tensor([0.5, 2.0])), "confidence holds 2.0"),
    (lambda: Examples(states(2), torch.zeros(3)), "acceptance has shape .3,.; expected .2,."),
    (lambda: Examples(states(0), torch.zeros(0)), "expected .n, width. with n of 1 or more"),
    (lambda: train(*[Examples(states(9), torch.ones(9))] * 2, sees_confidence=True), "the examples have none"),
    *((lambda n=n: Training(**{n: 0}), f"{n} is 0") for n in ("reject_weight", "epochs", "batch", "rate")),
])  # fmt: skip
def test_what_cannot_be_trained_on_is_refused_by_name(make, says):
    with pytest.raises(ValueError, match=says):
        make()
