"""Training heads that draft, on the target's own answers, and how often they are right on answers held out."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import torch
import torch.nn.functional as F
from tqdm.auto import tqdm
from transformers import PreTrainedModel

from specdec_lib.decoding.contract import LAST, Capture
from specdec_lib.decoding.target import Target
from specdec_lib.heads.answers import Answer
from specdec_lib.heads.drafting import DraftHead, Ends
from specdec_lib.heads.training import check_settings

#: Ranks whose accuracies are measured, and depths of heads that draft as deep as they are asked to.
RANKS, DEPTHS = 10, 6
#: Rows of logits that are in memory together: those of a whole batch fill gigabytes, and take longer to write than to compute.
ROWS = 128


@dataclass(frozen=True)
class HeadTraining:
    """How drafting heads are trained.

    ``epochs`` are the most. ``rate`` is AdamW's at first, the recipe's without it, after a linear rise over 3 % of the most
    steps. An epoch that lowers the least held-out loss by less than 0.5 % divides it by four, and the third such epoch is the
    last. Of the most epochs the last two come after such a division too. ``seed`` chooses the order of the answers and the noise.
    """

    epochs: int = 20
    batch: int = 4
    rate: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        check_settings(self, "epochs", "batch", *([] if self.rate is None else ["rate"]))


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
        """Where the token of that depth is there, bool; those tokens, int64 (m,); the states they are predicted from, (m, d)."""
        rows, places = self.where.nonzero(as_tuple=True)
        there = places + 1 + depth < self.lengths[rows]
        rows, places = rows[there], places[there]
        return there, self.tokens[rows, places + 1 + depth], self.states[rows, places + depth]


class _SumInParts(torch.autograd.Function):
    """The sum of ``loss_of(part, rows)`` over parts of :data:`ROWS` rows of features; ``weights`` are those that it trains."""

    @staticmethod
    def forward(ctx, loss_of: Callable[[torch.Tensor, slice], torch.Tensor], features, *weights):
        total, ctx.gradients = features.new_zeros(()), [torch.zeros_like(each) for each in (features, *weights)]
        for first in range(0, len(features), ROWS):
            rows = slice(first, first + ROWS)
            part = features[rows].detach().requires_grad_()
            with torch.enable_grad():
                loss = loss_of(part, rows)
            total += loss.detach()
            ctx.gradients[0][rows], *of_weights = torch.autograd.grad(loss, [part, *weights])
            for own, more in zip(ctx.gradients[1:], of_weights, strict=True):
                own += more
        return total

    @staticmethod
    def backward(ctx, of_total):
        return None, *(of_total * gradient for gradient in ctx.gradients)


def head_loss(head: DraftHead, ends: Ends, batch: Batch, noise: torch.Generator | None = None) -> torch.Tensor:
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

        def loss_of(part: torch.Tensor, rows: slice, depth=depth, tokens=tokens, seen=seen) -> torch.Tensor:
            with torch.no_grad():
                labels = ends.logits(seen[rows]).softmax(-1) if recipe.labels == "target" else tokens[rows]
            return F.cross_entropy(head.logits(ends, depth, part), labels, reduction="sum")

        own = [head.out[depth - 1].weight] if hasattr(head, "out") else []
        each = _SumInParts.apply(loss_of, features[there], *own) / len(tokens)
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
        (float(head_loss(head, ends, batch)), int(batch.where.sum()))
        for batch in _batches(texts, settings.batch, ends.device)
    ]
    return sum(loss * count for loss, count in sums) / sum(count for _, count in sums)


@torch.no_grad()
def accuracies(head: DraftHead, ends: Ends, texts: Sequence[Text]) -> list[list[float]]:
    """By depth, as if those above were right: at what share of the places the choice of each rank was the text's token."""
    depths = head.depth or DEPTHS
    right, places = np.zeros((depths, min(RANKS, ends.vocabulary))), np.zeros(depths)
    for batch in _batches(texts, 1, ends.device):
        features = head.features(ends, batch.states, batch.tokens, batch.where, depths)
        for k in range(depths):
            there, tokens, _ = batch.ahead(k + 1)
            if len(tokens):
                best = head.logits(ends, k + 1, features[k][there]).topk(right.shape[1], dim=-1).indices
                right[k] += (best == tokens[:, None]).sum(0).cpu().numpy()
                places[k] += len(tokens)
    return [[round(float(share), 4) for share in row] for row in right / np.maximum(places, 1)[:, None]]


def train_heads(
    head: DraftHead,
    target: PreTrainedModel,
    texts: Sequence[Text],
    held_out: Sequence[Text],
    settings: HeadTraining = HeadTraining(),
    progress: bool = True,
) -> DraftHead:
    """Train heads in place; of all epochs the one with the least loss on ``held_out``, of other prompts, is kept.

    Gives the head in evaluation mode, its weights rounded to bfloat16. Its ``story`` has the settings, the numbers of answers and
    predictions, the ``accuracies`` on ``held_out`` and the ``curve``: each epoch's ``loss`` on training batches and ``held_out``.
    """
    head.check(target)
    for name, given in (("texts", texts), ("held_out", held_out)):
        if not sum(len(text.tokens) - text.start - 1 for text in given):
            raise ValueError(f"{name} hold no token to predict; record answers of two tokens or more")
    ends, recipe = Ends(target), head.recipe
    rate = recipe.rate if settings.rate is None else settings.rate
    optimizer = torch.optim.AdamW(head.parameters(), lr=rate, weight_decay=recipe.weight_decay)
    steps_each = -(-len(texts) // settings.batch)
    rise = max(1, round(0.03 * settings.epochs * steps_each))
    least, best, kept, curve, peak = float("inf"), None, 0, [], rate
    bar = tqdm(range(settings.epochs), desc=f"{head.kind} heads", unit="epoch", disable=not progress)
    with bar:
        for epoch in bar:
            order = np.random.default_rng((settings.seed, epoch)).permutation(len(texts))
            losses = []
            for i, batch in enumerate(_batches([texts[j] for j in order], settings.batch, ends.device)):
                step = epoch * steps_each + i
                noise = torch.Generator().manual_seed(settings.seed * 1_000_003 + step)
                loss = head_loss(head, ends, batch, noise)
                optimizer.zero_grad(set_to_none=True)
                loss.backward(inputs=list(head.parameters()))
                torch.nn.utils.clip_grad_norm_(head.parameters(), 1.0)
                for group in optimizer.param_groups:
                    group["lr"] = peak * min(1.0, (step + 1) / rise)
                optimizer.step()
                losses.append(loss.item())
            found = mean_loss(head, ends, held_out, settings)
            curve.append({"epoch": epoch + 1, "loss": float(np.mean(losses)), "held_out": found})
            bar.set_postfix(held_out=found)
            if not found < 0.995 * least or epoch >= settings.epochs - 3:
                peak /= 4
            if found < least:
                least, best, kept = found, copy.deepcopy(head.state_dict()), epoch + 1
            if peak < rate / 32:
                break
    if best is None:
        raise FloatingPointError(f"the loss is {curve[-1]['held_out']} in every epoch; lower the rate ({rate})")
    head.load_state_dict({name: values.to(torch.bfloat16).float() for name, values in best.items()})
    head.story = {
        "training": asdict(settings) | {"rate": rate},
        "recipe": asdict(recipe),
        "answers": len(texts),
        "predictions": sum(max(0, len(text.tokens) - text.start - 1) for text in texts),
        "held_out_answers": len(held_out),
        "epoch_kept": kept,
        "curve": curve,
        "accuracies": accuracies(head.eval(), ends, held_out),
    }
    return head
