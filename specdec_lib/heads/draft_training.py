"""Training heads that draft, on the target's own answers, and how often they are right on answers held out."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
import torch.nn.functional as F
from tqdm.auto import tqdm
from transformers import PreTrainedModel

from specdec_lib.decoding.contract import LAST, Capture
from specdec_lib.decoding.target import Target
from specdec_lib.files import replacing
from specdec_lib.heads.answers import Answer
from specdec_lib.heads.drafting import DraftHead, Ends
from specdec_lib.heads.training import rate_factor

Loss = Literal["published", "total-variation"]
#: Ranks whose accuracies are measured, and depths of heads that draft as deep as they are asked to.
RANKS, DEPTHS = 10, 6


@dataclass(frozen=True)
class HeadTraining:
    """How drafting heads are trained.

    ``rate`` is the peak rate of AdamW, the recipe's without it. With the loss "total-variation" the distance of the head's
    distribution from the target's stands for the recipe's cross-entropy: one minus it is the probability that a draft drawn
    from the head is accepted. ``seed`` chooses the order of the answers and the noise.
    """

    epochs: int = 10
    batch: int = 4
    rate: float | None = None
    loss: Loss = "published"
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("epochs", "batch", "rate"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name} is {value!r}; expected a number above 0")
        if self.loss not in get_args(Loss):
            raise ValueError(f"loss is {self.loss!r}; expected one of {', '.join(get_args(Loss))}")


@dataclass(frozen=True, eq=False)
class Text:
    """An answer with the target's states: int64 tokens (n,), bfloat16 states (n, d) on the host, the length of the prompt."""

    tokens: torch.Tensor
    states: torch.Tensor
    start: int


@torch.no_grad()
def states_of(target: PreTrainedModel, tokens: Sequence[int]) -> torch.Tensor:
    """The target's final states of a text, after the final norm, shape (n, d), as drafters are shown them."""
    with Target(target, 0, Capture(layers=(LAST,)), capacity=len(tokens)) as model:
        model.extend(list(tokens))
        return model.hidden(LAST).clone()


def read_by(target: PreTrainedModel, answers: Sequence[Answer], progress: bool = True) -> list[Text]:
    """The target's states of each answer that has a token to predict: one pass for each."""
    texts = []
    for answer in tqdm(answers, desc="states", unit="answer", disable=not progress):
        if len(answer.tokens) > 1:
            tokens = [*answer.prompt.tolist(), *answer.tokens.tolist()]
            states = states_of(target, tokens).to("cpu", torch.bfloat16)
            texts.append(Text(torch.tensor(tokens), states, len(answer.prompt)))
    return texts


@dataclass(frozen=True, eq=False)
class Batch:
    """Texts side by side, the shorter ones filled up at the end.

    ``tokens`` are int64 (b, n), ``states`` float32 (b, n, d), ``lengths`` int64 (b,); ``where``, bool (b, n), marks the positions t
    whose depth 1 predicts a token of the answer that is there: t + 1 is in the answer, and so is t + 2.
    """

    tokens: torch.Tensor
    states: torch.Tensor
    where: torch.Tensor
    lengths: torch.Tensor

    @classmethod
    def of(cls, texts: Sequence[Text], device: torch.device) -> Batch:
        pad = torch.nn.utils.rnn.pad_sequence
        tokens = pad([text.tokens for text in texts], batch_first=True)
        states = pad([text.states for text in texts], batch_first=True).to(device).float()
        lengths = torch.tensor([len(text.tokens) for text in texts])
        starts = torch.tensor([text.start for text in texts])
        place = torch.arange(tokens.shape[1])
        where = (place >= starts[:, None] - 1) & (place < lengths[:, None] - 2)
        return cls(tokens.to(device), states, where.to(device), lengths.to(device))

    def ahead(self, depth: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Whether the token of that depth is there for each position, and for those where it is the token, int64 (m,), and the
        state that the target predicts it from, float32 (m, d).
        """
        rows, places = self.where.nonzero(as_tuple=True)
        there = places + 1 + depth < self.lengths[rows]
        rows, places = rows[there], places[there]
        return there, self.tokens[rows, places + 1 + depth], self.states[rows, places + depth]


def total_variation(logits: torch.Tensor, states: torch.Tensor, ends: Ends) -> torch.Tensor:
    """Mean total variation distance of the head's distributions from the target's, of shape ()."""
    return 0.5 * (logits.softmax(-1) - wanted(states, ends)).abs().sum(-1).mean()


@torch.no_grad()
def wanted(states: torch.Tensor, ends: Ends) -> torch.Tensor:
    """The target's own distributions for its states."""
    return ends.logits(states).softmax(-1)


def head_loss(
    head: DraftHead, ends: Ends, batch: Batch, loss: Loss = "published", noise: torch.Generator | None = None
) -> torch.Tensor:
    """The loss of a batch by the head's recipe, of shape (); with the recipe's noise if its generator is given."""
    recipe, states = head.recipe, batch.states
    if recipe.noise and noise is not None:
        uniform = torch.rand(states.shape, generator=noise).to(states) - 0.5
        states = states + uniform * recipe.noise * 512 / states.shape[1]
    depths = 1 if recipe.only_first else head.depth
    found = head.features(ends, states, batch.tokens, batch.where, depths)
    total = states.new_zeros(())
    for depth, features in enumerate(found, start=1):
        there, tokens, seen = batch.ahead(depth)
        if not len(tokens):
            break
        logits = head.logits(ends, depth, features[there])
        if loss == "total-variation":
            each = total_variation(logits, seen, ends)
        else:
            each = F.cross_entropy(logits, wanted(seen, ends) if recipe.labels == "target" else tokens)
        total = total + recipe.weight * recipe.decay ** (depth - 1) * each
        if depth == 1 and recipe.regression:
            total = total + recipe.regression * F.smooth_l1_loss(features[there], seen)
    return total


def _batches(texts: Sequence[Text], size: int, device: torch.device) -> Iterator[Batch]:
    for first in range(0, len(texts), size):
        yield Batch.of(texts[first : first + size], device)


@torch.no_grad()
def mean_loss(head: DraftHead, ends: Ends, texts: Sequence[Text], settings: HeadTraining) -> float:
    """The loss over texts, without noise, each batch counted by its predictions."""
    sums = [
        (float(head_loss(head, ends, batch, settings.loss)), int(batch.where.sum()))
        for batch in _batches(texts, settings.batch, ends.device)
    ]
    return sum(loss * count for loss, count in sums) / sum(count for _, count in sums)


@dataclass(frozen=True, eq=False)
class Judged:
    """How good heads are along texts, by depth, whatever the depths above would have chosen.

    At how many places the choice of each rank was the text's token, shape (depths, ranks), the sum of the distances of the
    distributions, and how many places there are, shape (depths,).
    """

    right: np.ndarray
    distance: np.ndarray
    places: np.ndarray

    @property
    def accuracies(self) -> list[list[float]]:
        """The share of places where the choice of each rank was right."""
        return [[round(float(share), 4) for share in row] for row in self.right / np.maximum(self.places, 1)[:, None]]

    @property
    def distances(self) -> list[float]:
        """The mean total variation distance from the target's distributions."""
        return [round(float(value), 4) for value in self.distance / np.maximum(self.places, 1)]


@torch.no_grad()
def judge(head: DraftHead, ends: Ends, texts: Sequence[Text]) -> Judged:
    """Compare heads with the target along texts, one after the other."""
    depths = head.depth or DEPTHS
    right, distance, places = np.zeros((depths, min(RANKS, ends.vocabulary))), np.zeros(depths), np.zeros(depths)
    for batch in _batches(texts, 1, ends.device):
        features = head.features(ends, batch.states, batch.tokens, batch.where, depths)
        for k in range(depths):
            there, tokens, seen = batch.ahead(k + 1)
            if len(tokens):
                logits = head.logits(ends, k + 1, features[k][there])
                best = logits.topk(right.shape[1], dim=-1).indices
                right[k] += (best == tokens[:, None]).sum(0).cpu().numpy()
                distance[k] += len(tokens) * float(total_variation(logits, seen, ends))
                places[k] += len(tokens)
    return Judged(right, distance, places)


def train_heads(
    head: DraftHead,
    target: PreTrainedModel,
    texts: Sequence[Text],
    held_out: Sequence[Text],
    settings: HeadTraining = HeadTraining(),
    checkpoint: str | Path | None = None,
    progress: bool = True,
) -> DraftHead:
    """Train new heads in place; of all epochs the one with the least loss on ``held_out``, of other prompts, is kept.

    A ``checkpoint`` is written after each epoch and removed at the end. Where it is there, the training goes on from it and ends
    with the weights of one that was not interrupted. Gives the head in evaluation mode, its weights rounded to bfloat16. Its
    ``story`` holds the settings, the number of answers and predictions, the epoch kept, the ``accuracies`` on ``held_out`` and the
    ``curve``: for each epoch ``epoch``, ``loss`` (of the training batches) and ``held_out``.
    """
    head.check(target)
    for name, given in (("texts", texts), ("held_out", held_out)):
        if not sum(len(text.tokens) - text.start - 1 for text in given):
            raise ValueError(f"{name} hold no token to predict; record answers of two tokens or more")
    ends, recipe = Ends(target), head.recipe
    rate = recipe.rate if settings.rate is None else settings.rate
    optimizer = torch.optim.AdamW(head.parameters(), lr=rate, weight_decay=recipe.weight_decay)
    state = _State(head, optimizer, _about(head, texts, settings), None if checkpoint is None else Path(checkpoint))
    steps_each = -(-len(texts) // settings.batch)
    bar = tqdm(total=settings.epochs, desc=f"{head.kind} heads", unit="epoch", disable=not progress)
    bar.update(state.epoch)
    with bar, _frozen(target):
        while state.epoch < settings.epochs:
            order = np.random.default_rng((settings.seed, state.epoch)).permutation(len(texts))
            losses = []
            for i, batch in enumerate(_batches([texts[j] for j in order], settings.batch, ends.device)):
                step = state.epoch * steps_each + i
                noise = torch.Generator().manual_seed(settings.seed * 1_000_003 + step)
                loss = head_loss(head, ends, batch, settings.loss, noise)
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                torch.nn.utils.clip_grad_norm_(head.parameters(), 1.0)
                for group in optimizer.param_groups:
                    group["lr"] = rate * rate_factor(step, settings.epochs * steps_each)
                optimizer.step()
                losses.append(loss.item())
            state.after_epoch(float(np.mean(losses)), mean_loss(head, ends, held_out, settings))
            bar.update()
            bar.set_postfix(held_out=state.curve[-1]["held_out"])
    if state.best is None:
        raise FloatingPointError(f"the loss is {state.curve[-1]['held_out']} in every epoch; lower the rate ({rate})")
    rounded = {name: values.to(torch.bfloat16).float() for name, values in state.best["head"].items()}
    head.load_state_dict(rounded)
    head.story = {
        "training": asdict(settings) | {"rate": rate},
        "recipe": asdict(recipe),
        "answers": len(texts),
        "predictions": sum(max(0, len(text.tokens) - text.start - 1) for text in texts),
        "held_out_answers": len(held_out),
        "epoch_kept": state.best["epoch"],
        "curve": state.curve,
        "accuracies": judge(head.eval(), ends, held_out).accuracies,
    }
    state.done()
    return head


def _about(head: DraftHead, texts: Sequence[Text], settings: HeadTraining) -> dict[str, Any]:
    digest = hashlib.sha256()
    for text in texts:
        digest.update(text.tokens.numpy().tobytes())
    return {
        "kind": head.kind,
        "target": head.target,
        "options": head.options,
        "settings": asdict(settings),
        "answers": digest.hexdigest(),
    }


class _State:
    """How far a training has come, also on disk."""

    def __init__(self, head: DraftHead, optimizer: torch.optim.Optimizer, about: dict[str, Any], path: Path | None):
        self.head, self.optimizer, self.about, self.path = head, optimizer, about, path
        self.epoch, self.best, self.curve = 0, None, []
        if path is not None and path.exists():
            self._go_on(path)

    def _go_on(self, path: Path) -> None:
        try:
            held = torch.load(path, map_location=next(self.head.parameters()).device, weights_only=True)
            differ = [name for name, value in self.about.items() if held["about"][name] != value]
        except Exception as error:
            raise ValueError(
                f"{path} is no checkpoint of heads ({type(error).__name__}); delete it to start again"
            ) from error
        if differ:
            raise ValueError(
                f"{path} is of an unfinished training with another {', '.join(differ)}; delete it to start again"
            )
        self.head.load_state_dict(held["head"])
        self.optimizer.load_state_dict(held["optimizer"])
        self.epoch, self.best, self.curve = held["epoch"], held["best"], held["curve"]

    def after_epoch(self, loss: float, held_out: float) -> None:
        self.epoch += 1
        self.curve.append({"epoch": self.epoch, "loss": loss, "held_out": held_out})
        least = float("inf") if self.best is None else self.best["held_out"]
        if held_out < least:
            weights = copy.deepcopy(self.head.state_dict())
            self.best = {"epoch": self.epoch, "held_out": held_out, "head": weights}
        if self.path is None:
            return
        with replacing(self.path) as aside:
            torch.save(
                {
                    "about": self.about,
                    "epoch": self.epoch,
                    "best": self.best,
                    "curve": self.curve,
                    "head": self.head.state_dict(),
                    "optimizer": self.optimizer.state_dict(),
                },
                aside,
            )

    def done(self) -> None:
        if self.path is not None:
            self.path.unlink(missing_ok=True)


@contextmanager
def _frozen(model: PreTrainedModel) -> Iterator[None]:
    """The target's weights take no part in the gradient within this block."""
    taking = [weights for weights in model.parameters() if weights.requires_grad]
    for weights in taking:
        weights.requires_grad_(False)
    try:
        yield
    finally:
        for weights in taking:
            weights.requires_grad_(True)
