"""Training an acceptance head on recorded states (SpecDec++, section 3.3)."""

from __future__ import annotations

import copy
import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from tqdm.auto import tqdm

from specdec_lib.heads.acceptance import AcceptanceHead, Examples, weighted_loss


def check_settings(settings: Any, *positive: str) -> None:
    """Reject settings that no training can use.

    Parameters
    ----------
    settings : object
        With a ``seed``.
    *positive : str
        Names of those that must be finite and above 0.

    Raises
    ------
    ValueError

    Examples
    --------
    >>> from specdec_lib.heads.training import Training
    >>> Training(rate=0.0)
    Traceback (most recent call last):
        ...
    ValueError: rate is 0.0; expected a finite number above 0
    """
    for name in positive:
        value = getattr(settings, name)
        if not 0 < value < math.inf:
            raise ValueError(f"{name} is {value!r}; expected a finite number above 0")
    if not 0 <= settings.seed < 2**63:
        raise ValueError(f"seed is {settings.seed!r}; expected a whole number from 0 to 2**63 - 1")


@dataclass(frozen=True)
class Training:
    """How an acceptance head is trained.

    Parameters
    ----------
    reject_weight : float
        w_rej; w_acc is 1. With another value than 1 the prediction that minimises the loss is not P but
        P / (P + w_rej (1 - P)): rejections are overstated on purpose.
    epochs : int
        The released code makes 3 over some 10 million tokens, at a rate of 5e-5; the defaults here are for some ten thousand.
    batch : int
        Examples of a step.
    rate : float
        Peak rate of AdamW; a cosine after a linear rise, as released.
    seed : int

    Examples
    --------
    >>> from specdec_lib.heads.training import Training
    >>> Training(reject_weight=1.0, epochs=2).reject_weight
    1.0
    """

    reject_weight: float = 6.0
    epochs: int = 10
    batch: int = 256
    rate: float = 2e-3
    seed: int = 0

    def __post_init__(self) -> None:
        check_settings(self, "reject_weight", "epochs", "batch", "rate")


@torch.no_grad()
def evaluate(head: AcceptanceHead, examples: Examples, reject_weight: float = 1.0) -> float:
    """:func:`specdec_lib.heads.acceptance.weighted_loss` of a head over all examples.

    Parameters
    ----------
    head : AcceptanceHead
    examples : Examples
    reject_weight : float

    Returns
    -------
    float

    Examples
    --------
    >>> import torch
    >>> from specdec_lib.heads.acceptance import AcceptanceHead, Examples
    >>> from specdec_lib.heads.training import evaluate
    >>> examples = Examples(torch.randn(4, 8), torch.tensor([1.0, 1.0, 0.0, 0.5]))
    >>> evaluate(AcceptanceHead(width=8), examples) > 0
    True
    """
    return float(weighted_loss(head(examples.states, examples.confidence), examples.acceptance, reject_weight))


@torch.no_grad()
def divergence(head: AcceptanceHead, examples: Examples) -> float:
    """Mean binary Kullback-Leibler divergence of the labels from the prediction (the released dev metric).

    Parameters
    ----------
    head : AcceptanceHead
    examples : Examples

    Returns
    -------
    float
        In nats.

    Examples
    --------
    >>> import torch
    >>> from specdec_lib.heads.acceptance import AcceptanceHead, Examples
    >>> from specdec_lib.heads.training import divergence
    >>> head, states = AcceptanceHead(width=8), torch.randn(4, 8)
    >>> abs(divergence(head, Examples(states, head.probability(states)))) < 1e-6
    True
    """
    label = examples.acceptance
    entropy = -(torch.xlogy(label, label) + torch.xlogy(1 - label, 1 - label)).mean()
    return evaluate(head, examples) - float(entropy)


def rate_factor(step: int, steps: int, last: float | None = 0.0) -> float:
    """Share of the peak rate at a step: after a linear rise over 3 % of the steps a cosine.

    Parameters
    ----------
    step, steps : int
        The step, from 0, and the number of all.
    last : float or None
        Share at the end; None has no cosine.

    Returns
    -------
    float

    Examples
    --------
    >>> from specdec_lib.heads.training import rate_factor
    >>> [round(rate_factor(step, 100), 2) for step in (0, 2, 50, 99)]
    [0.33, 1.0, 0.52, 0.0]
    """
    rise = max(1, round(0.03 * steps))
    if step < rise or last is None:
        return min(1.0, (step + 1) / rise)
    return last + (1 - last) * 0.5 * (1 + math.cos(math.pi * (step - rise) / max(1, steps - rise)))


def train(
    examples: Examples,
    held_out: Examples,
    settings: Training = Training(),
    depth: int = 3,
    draft: str = "",
    sees_confidence: bool = False,
    progress: bool = True,
) -> AcceptanceHead:
    """Train an acceptance head on examples (SpecDec++, section 3.3).

    Of all epochs the one with the least weighted loss on ``held_out`` is kept.

    Parameters
    ----------
    examples : Examples
    held_out : Examples
        Of other prompts.
    settings : Training
    depth : int
        Of the head, as for :class:`~specdec_lib.heads.acceptance.AcceptanceHead`.
    draft : str
        Fingerprint of the draft model.
    sees_confidence : bool
    progress : bool
        Show a bar.

    Returns
    -------
    AcceptanceHead
        Its weights are rounded to bfloat16. Its ``story`` holds the settings, the number of examples, the epoch kept and the
        ``curve``: for each epoch ``epoch``, ``loss`` (of the training batches), ``held_out`` (weighted) and ``divergence``
        (:func:`divergence` on ``held_out``).

    Raises
    ------
    ValueError
        If the head is to see the confidence and the examples have none.
    FloatingPointError
        If no epoch has a finite loss.

    Examples
    --------
    >>> import torch
    >>> from specdec_lib.heads.acceptance import Examples
    >>> from specdec_lib.heads.training import Training, train
    >>> states = torch.randn(64, 8, generator=torch.Generator().manual_seed(0))
    >>> made = Examples(states, (states[:, 0] > 0).float())
    >>> head = train(made[:48], made[48:], Training(epochs=3, batch=16), progress=False)
    >>> [row["epoch"] for row in head.story["curve"]]
    [1, 2, 3]
    """
    rng = np.random.default_rng(settings.seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        head = AcceptanceHead(examples.states.shape[1], depth, True, draft, sees_confidence=sees_confidence)
    head.to(examples.states.device)
    if sees_confidence and (examples.confidence is None or held_out.confidence is None):
        raise ValueError("the head is to see the confidence, and the examples have none; record it with the states")
    optimizer = torch.optim.AdamW(head.parameters(), lr=settings.rate, weight_decay=0.0)
    steps = settings.epochs * -(-len(examples) // settings.batch)
    best, kept, curve, step = float("inf"), None, [], 0
    for epoch in (
        bar := tqdm(range(1, settings.epochs + 1), desc="acceptance head", unit="epoch", disable=not progress)
    ):
        losses = []
        for rows in torch.from_numpy(rng.permutation(len(examples))).split(settings.batch):
            some = examples[rows]
            loss = weighted_loss(head(some.states, some.confidence), some.acceptance, settings.reject_weight)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(head.parameters(), 1.0)
            for group in optimizer.param_groups:
                group["lr"] = settings.rate * rate_factor(step, steps)
            optimizer.step()
            step += 1
            losses.append(loss.item())
        row = {
            "epoch": epoch,
            "loss": float(np.mean(losses)),
            "held_out": evaluate(head, held_out, settings.reject_weight),
            "divergence": divergence(head, held_out),
        }
        curve.append(row)
        bar.set_postfix(held_out=row["held_out"])
        if row["held_out"] < best:
            best, kept = row["held_out"], (epoch, copy.deepcopy(head.state_dict()))
    if kept is None:
        raise FloatingPointError(f"the loss is {curve[-1]['held_out']} in every epoch; lower the rate, {settings.rate}")
    head.load_state_dict({name: values.to(torch.bfloat16).float() for name, values in kept[1].items()})
    head.story = {
        "training": asdict(settings),
        "examples": len(examples),
        "held_out_examples": len(held_out),
        "epoch_kept": kept[0],
        "curve": curve,
    }
    return head.eval()
