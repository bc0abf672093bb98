"""Training heads that draft, on the target's own answers, and how often they are right on answers held out."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from tqdm.auto import tqdm
from transformers import PreTrainedModel

from specdec_lib.decoding.checks import whole_number
from specdec_lib.decoding.contract import LAST, Capture
from specdec_lib.decoding.target import Target
from specdec_lib.files import replacing
from specdec_lib.heads.answers import Answer
from specdec_lib.heads.drafting import DraftHead, Ends
from specdec_lib.heads.training import check_settings, rate_factor
from specdec_lib.lazy import former_names

__getattr__ = former_names(__name__, read_by="texts_with_states")

#: Ranks whose accuracies are measured, and depths of heads that draft as deep as they are asked to.
RANKS, DEPTHS = 10, 6
#: Rows of logits that are in memory together: those of a whole batch fill gigabytes, and take longer to write than to compute.
ROWS = 512


@dataclass(frozen=True)
class HeadTraining:
    """How drafting heads are trained.

    If the recipe has a cosine schedule, training ends after the third epoch in a row that does not lower the least held-out loss.
    Otherwise the rate is divided by four after each epoch that lowers this loss by less than 0.5 %, and the third such epoch is
    the last. It is also divided before each of the last two of ``epochs``.

    Parameters
    ----------
    epochs : int
        Epochs at most.
    batch : int
        Answers of a step.
    rate : float, optional
        AdamW's at first, after a linear rise over 3 % of the most steps; by default the recipe's.
    seed : int
        Chooses the order of the answers, the noise and what is dropped.
    vocabulary : int
        Cut the output layer to so many tokens, the most frequent of the answers, while training: the target's distribution is that
        over these tokens, and other tokens are no labels. 0 cuts nothing.
    average : float
        Share that each step leaves of a running average of the weights, which is what is measured and kept; 0 takes the weights
        themselves.
    dropout : float, optional
        By default the recipe's.

    Raises
    ------
    ValueError
        If a setting is outside its range.

    Examples
    --------
    >>> from specdec_lib.heads.draft_training import HeadTraining
    >>> HeadTraining(epochs=2, rate=1e-3).rate
    0.001
    """

    epochs: int = 20
    batch: int = 4
    rate: float | None = None
    seed: int = 0
    vocabulary: int = 0
    average: float = 0.0
    dropout: float | None = None

    def __post_init__(self) -> None:
        check_settings(self, "epochs", "batch", *([] if self.rate is None else ["rate"]))
        whole_number("vocabulary", self.vocabulary, 0)
        if not 0 <= self.average < 1:
            raise ValueError(f"average is {self.average!r}; expected a share of 0 or more and less than 1")
        if self.dropout is not None and not 0 <= self.dropout < 1:
            raise ValueError(f"dropout is {self.dropout!r}; expected a share of 0 or more and less than 1")


@dataclass(frozen=True, eq=False)
class Text:
    """An answer with the target's states.

    Parameters
    ----------
    tokens : int64 tensor of shape (n,)
        Prompt and answer.
    states : bfloat16 tensor of shape (n, d)
        On the host.
    start : int
        Length of the prompt.

    Examples
    --------
    >>> import torch
    >>> from specdec_lib.heads.draft_training import Text
    >>> Text(torch.tensor([5, 6, 7]), torch.zeros(3, 8, dtype=torch.bfloat16), start=1).start
    1
    """

    tokens: torch.Tensor
    states: torch.Tensor
    start: int


@torch.no_grad()
def states_of(target: PreTrainedModel, tokens: Sequence[int]) -> torch.Tensor:
    """The target's final states of a text, after the final norm, as drafters are shown them.

    Parameters
    ----------
    target : PreTrainedModel
    tokens : sequence of int, length n

    Returns
    -------
    float tensor of shape (n, d)

    Examples
    --------
    >>> from specdec_lib.heads.draft_training import states_of
    >>> states_of(model, prompt).shape == (len(prompt), model.config.hidden_size)
    True
    """
    with Target(target, 0, Capture(layers=(LAST,)), capacity=len(tokens)) as model:
        model.extend(list(tokens))
        return model.hidden(LAST).clone()


def texts_with_states(target: PreTrainedModel, answers: Sequence[Answer], progress: bool = True) -> list[Text]:
    """The target's states of each answer that has a token to predict: one pass for each.

    Parameters
    ----------
    target : PreTrainedModel
    answers : sequence of Answer
    progress : bool
        Show a bar.

    Returns
    -------
    list of Text

    Examples
    --------
    >>> from specdec_lib.heads.answers import record_answers
    >>> from specdec_lib.heads.draft_training import texts_with_states
    >>> answers = record_answers(model, [prompt], folder, max_new_tokens=8, progress=False)
    >>> len(texts_with_states(model, answers, progress=False)[0].tokens) == len(prompt) + 8
    True
    """
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

    Parameters
    ----------
    tokens : int64 tensor of shape (b, n)
    states : float32 tensor of shape (b, n, d)
    where : bool tensor of shape (b, n)
        The positions t whose depth 1 predicts a token of the answer that is there: t + 1 is in the answer, and so is t + 2.
    lengths : int64 tensor of shape (b,)

    Examples
    --------
    >>> import torch
    >>> from specdec_lib.heads.draft_training import Batch, Text
    >>> texts = [Text(torch.arange(n), torch.zeros(n, 8), start=1) for n in (4, 3)]
    >>> Batch.of(texts, torch.device("cpu")).where.int()
    tensor([[1, 1, 0, 0],
            [1, 0, 0, 0]], dtype=torch.int32)
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
        """What a depth predicts.

        Parameters
        ----------
        depth : int
            From 1.

        Returns
        -------
        there : bool tensor
            Where the token of that depth is there.
        tokens : int64 tensor of shape (m,)
        states : float tensor of shape (m, d)
            Those that the tokens are predicted from.
        """
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


@dataclass(frozen=True, eq=False)
class Cut:
    """An output layer for training that has rows of few tokens.

    Parameters
    ----------
    ends : Ends
    rows : int64 tensor of shape (vocabulary,)
        Each token's row, or -1.

    Examples
    --------
    >>> import torch
    >>> from specdec_lib.heads.draft_training import Cut, Text
    >>> from specdec_lib.heads.drafting import Ends
    >>> texts = [Text(torch.tensor([5, 6, 7, 7]), torch.zeros(4, 8), start=1)]
    >>> cut = Cut.to_frequent(Ends(model), texts, count=1)
    >>> cut.ends.vocabulary, int(cut.rows[7]), int(cut.rows[6])
    (1, 0, -1)
    """

    ends: Ends
    rows: torch.Tensor

    @classmethod
    def to_frequent(cls, ends: Ends, texts: Sequence[Text], count: int) -> Cut:
        """To the ``count`` most frequent tokens of the answers, of equals the lower ones."""
        counts = torch.zeros(ends.vocabulary, dtype=torch.long)
        for text in texts:
            counts += torch.bincount(text.tokens[text.start :], minlength=ends.vocabulary)
        kept = counts.sort(descending=True, stable=True).indices[:count].sort().values.to(ends.device)
        rows = torch.full((ends.vocabulary,), -1, device=ends.device)
        rows[kept] = torch.arange(len(kept), device=ends.device)
        return cls(ends.cut(kept), rows)


def products(device: torch.device) -> torch.autocast:
    """Products in bfloat16 on a processor that may round float32 so: inputs are then rounded once, not by each product.

    Parameters
    ----------
    device : torch.device

    Returns
    -------
    torch.autocast
        Switched on if :func:`torch.set_float32_matmul_precision` was given ``"medium"``.

    Examples
    --------
    >>> import torch
    >>> from specdec_lib.heads.draft_training import products
    >>> with products(torch.device("cpu")):
    ...     print((torch.eye(2) @ torch.eye(2)).dtype)
    torch.float32
    """
    asked = device.type == "cpu" and torch.get_float32_matmul_precision() == "medium"
    return torch.autocast(device.type, torch.bfloat16, enabled=asked)


def head_loss(
    head: DraftHead, ends: Ends, batch: Batch, noise: torch.Generator | None = None, cut: Cut | None = None
) -> torch.Tensor:
    """The loss of a batch by the head's recipe.

    Parameters
    ----------
    head : DraftHead
    ends : Ends
    batch : Batch
    noise : torch.Generator, optional
        Draws the recipe's noise; without it there is none.
    cut : Cut, optional

    Returns
    -------
    float tensor of shape ()

    Examples
    --------
    >>> import torch
    >>> from specdec_lib.heads.draft_training import Batch, Text, head_loss, states_of
    >>> from specdec_lib.heads.drafting import Ends, MedusaHeads
    >>> text = Text(torch.tensor(prompt), states_of(model, prompt), start=1)
    >>> heads = MedusaHeads.for_target(model, heads=2)
    >>> bool(head_loss(heads, Ends(model), Batch.of([text], torch.device("cpu"))) > 0)
    True
    """
    recipe, states = head.recipe, batch.states
    if recipe.noise and noise is not None:
        uniform = torch.rand(states.shape, generator=noise).to(states) - 0.5
        states = states + uniform * recipe.noise * 512 / states.shape[1]
    depths = 1 if recipe.only_first else head.depth
    with products(states.device):
        found = [part.float() for part in head.features(ends, states, batch.tokens, batch.where, depths)]
    total = states.new_zeros(())
    for depth, features in enumerate(found, start=1):
        there, tokens, seen = batch.ahead(depth)
        if not len(tokens):
            break
        labelled = tokens if cut is None else cut.rows[tokens]
        over = ends if cut is None else cut.ends

        def loss_of(part: torch.Tensor, rows: slice, depth=depth, labelled=labelled, seen=seen) -> torch.Tensor:
            with products(part.device):
                logits = head.logits(over, depth, part)
                with torch.no_grad():
                    labels = over.logits(seen[rows]).softmax(-1) if recipe.labels == "target" else labelled[rows]
            kept = {} if recipe.labels == "target" else {"ignore_index": -1}
            return F.cross_entropy(logits, labels, reduction="sum", **kept)

        own = [head.out[depth - 1].weight] if hasattr(head, "out") else []
        read = features[there]
        if torch.is_grad_enabled():
            summed = _SumInParts.apply(loss_of, read, *own)
        else:
            parts = (slice(first, first + ROWS) for first in range(0, len(read), ROWS))
            summed = torch.stack([loss_of(read[rows], rows) for rows in parts]).sum()
        total = total + recipe.weight * recipe.decay ** (depth - 1) * summed / len(tokens)
        if depth == 1 and recipe.regression:
            total = total + recipe.regression * F.smooth_l1_loss(features[there], seen)
    return total


def _batches(texts: Sequence[Text], size: int, device: torch.device) -> Iterator[Batch]:
    for first in range(0, len(texts), size):
        yield Batch.of(texts[first : first + size], device)


@torch.no_grad()
def mean_loss(
    head: DraftHead, ends: Ends, texts: Sequence[Text], settings: HeadTraining, cut: Cut | None = None
) -> float:
    """The loss over texts, without noise, each batch counted by its predictions.

    Parameters
    ----------
    head : DraftHead
        In evaluation mode.
    ends : Ends
    texts : sequence of Text
    settings : HeadTraining
    cut : Cut, optional

    Returns
    -------
    float

    Examples
    --------
    >>> import torch
    >>> from specdec_lib.heads.draft_training import HeadTraining, Text, mean_loss, states_of
    >>> from specdec_lib.heads.drafting import Ends, MedusaHeads
    >>> text = Text(torch.tensor(prompt), states_of(model, prompt), start=1)
    >>> heads = MedusaHeads.for_target(model, heads=2).eval()
    >>> mean_loss(heads, Ends(model), [text], HeadTraining()) > 0
    True
    """
    sums = [
        (float(head_loss(head, ends, batch, None, cut)), int(batch.where.sum()))
        for batch in _batches(texts, settings.batch, ends.device)
    ]
    return sum(loss * count for loss, count in sums) / sum(count for _, count in sums)


@torch.no_grad()
def accuracies(head: DraftHead, ends: Ends, texts: Sequence[Text]) -> list[list[float]]:
    """How often the choice of each rank was the text's token, by depth, as if those above were right.

    Parameters
    ----------
    head : DraftHead
    ends : Ends
    texts : sequence of Text

    Returns
    -------
    list of list of float
        Shares by depth and rank.

    Examples
    --------
    >>> import torch
    >>> from specdec_lib import paths
    >>> from specdec_lib.heads.draft_training import Text, accuracies, states_of
    >>> from specdec_lib.heads.drafting import DraftHead, Ends
    >>> heads = DraftHead.load(paths.POCKET / "heads/medusa.safetensors", model)
    >>> text = Text(torch.tensor(prompt), states_of(model, prompt), start=1)
    >>> found = accuracies(heads, Ends(model), [text])
    >>> len(found) == heads.depth, 0 <= found[0][0] <= 1
    (True, True)
    """
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


class Checkpoint:
    """The file that keeps the state of a training, so that it continues after an interruption.

    Parameters
    ----------
    path : path
        A safetensors file with the weights, their average and AdamW's moments.
    seconds : float
        After them the training ends, in the middle of an epoch; a later call continues there.
    every : float
        Seconds between two writes at most.

    Examples
    --------
    >>> from specdec_lib.heads.draft_training import Checkpoint
    >>> Checkpoint(folder / "training.safetensors").read() is None
    True
    """

    def __init__(self, path: str | Path, seconds: float = math.inf, every: float = 300.0):
        self.path, self.every = Path(path), every
        self.written = time.monotonic()
        self.ends = self.written + seconds

    def write(self, tensors: Mapping[str, Mapping[str, torch.Tensor]], progress: dict[str, Any]) -> None:
        """Keep some groups of tensors by their names, and where the training is."""
        flat = {
            f"{group}:{name}": part.detach().cpu().contiguous()
            for group in tensors
            for name, part in tensors[group].items()
        }
        with replacing(self.path) as aside:
            save_file(flat, aside, metadata={"progress": json.dumps(progress)})
        self.written = time.monotonic()

    def read(self) -> tuple[dict[str, dict[str, torch.Tensor]], dict[str, Any]] | None:
        """What :meth:`write` kept last; None before its first call, ValueError if it is something else."""
        if not self.path.exists():
            return None
        groups: dict[str, dict[str, torch.Tensor]] = {}
        try:
            with safe_open(self.path, "pt") as file:
                for key in file.keys():
                    group, _, name = key.partition(":")
                    groups.setdefault(group, {})[name] = file.get_tensor(key)
                held = json.loads((file.metadata() or {})["progress"])
            if held.keys() != {"settings", "progress"} or not {"head", "average", "step"} <= groups.keys():
                raise ValueError("it lacks a part")
        except (SafetensorError, KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
            raise ValueError(
                f"{self.path} is of no training ({error}); move it away, and the training begins again"
            ) from None
        return groups, held


@dataclass
class _Progress:
    """Where a training is: batches done of an epoch, counted from 0, its losses, and what came of the epochs before."""

    epoch: int = 0
    done: int = 0
    losses: list[float] = field(default_factory=list)
    least: float = math.inf
    kept: int = 0
    little: int = 0
    peak: float = 0.0
    rate: float = 0.0
    curve: list[dict] = field(default_factory=list)


def _moments(optimizer: torch.optim.Optimizer, head: DraftHead) -> dict[str, dict[str, torch.Tensor]]:
    names = {parameter: name for name, parameter in head.named_parameters()}
    kinds = ("exp_avg", "exp_avg_sq", "step")
    return {kind: {names[p]: state[kind] for p, state in optimizer.state.items() if kind in state} for kind in kinds}


def train_heads(
    head: DraftHead,
    target: PreTrainedModel,
    texts: Sequence[Text],
    held_out: Sequence[Text],
    settings: HeadTraining = HeadTraining(),
    progress: bool = True,
    checkpoint: Checkpoint | None = None,
) -> DraftHead:
    r"""Train heads in place; of all epochs the one with the least loss on ``held_out`` is kept.

    Parameters
    ----------
    head : DraftHead
    target : PreTrainedModel
        The one that the head is for.
    texts, held_out : sequence of Text
        ``held_out`` is of other prompts.
    settings : HeadTraining
    progress : bool
        Show a bar.
    checkpoint : Checkpoint, optional
        Makes a training that a later call with the same arguments goes on with.

    Returns
    -------
    DraftHead
        In evaluation mode, its weights rounded to bfloat16. Its ``story`` has the settings, the numbers of answers and
        predictions, the ``accuracies`` on ``held_out`` and the ``curve``: each epoch's ``loss`` on training batches,
        ``held_out`` and the ``rate`` of its last step.

    Raises
    ------
    ValueError
        If the head is another target's, there is nothing to predict, or the checkpoint is of another training.
    FloatingPointError
        If no epoch has a finite loss.

    Examples
    --------
    >>> from specdec_lib.heads.answers import record_answers
    >>> from specdec_lib.heads.draft_training import HeadTraining, texts_with_states, train_heads
    >>> from specdec_lib.heads.drafting import MedusaHeads
    >>> prompts = [prompt, tokenizer("for i in range(3):\n    print(i)\n")["input_ids"]]
    >>> answers = record_answers(model, prompts, folder, max_new_tokens=16, progress=False)
    >>> texts = texts_with_states(model, answers, progress=False)
    >>> new = MedusaHeads.for_target(model, heads=2)
    >>> heads = train_heads(new, model, texts[:1], texts[1:], HeadTraining(epochs=1), progress=False)
    >>> len(heads.story["curve"])
    1
    """
    head.check(target)
    for name, given in (("texts", texts), ("held_out", held_out)):
        if not sum(len(text.tokens) - text.start - 1 for text in given):
            raise ValueError(f"{name} hold no token to predict; record answers of two tokens or more")
    if settings.vocabulary and hasattr(head, "out"):
        raise ValueError(f"vocabulary is {settings.vocabulary} for heads with output layers of their own; expected 0")
    ends, recipe = Ends(target), head.recipe
    cut = Cut.to_frequent(ends, texts, settings.vocabulary) if settings.vocabulary else None
    rate = recipe.rate if settings.rate is None else settings.rate
    head.dropout = recipe.dropout if settings.dropout is None else settings.dropout
    optimizer = torch.optim.AdamW(head.parameters(), lr=rate, weight_decay=recipe.weight_decay)
    average = AveragedModel(head, multi_avg_fn=get_ema_multi_avg_fn(settings.average))
    steps_each = -(-len(texts) // settings.batch)
    steps = settings.epochs * steps_each
    at, best, out_of_time = _Progress(peak=rate), {}, False
    before = checkpoint.read() if checkpoint else None
    if before is not None:
        groups, held = before
        if held["settings"] != asdict(settings) | {"texts": len(texts)}:
            raise ValueError(
                f"{checkpoint.path} is of a training with {held['settings']}; expected these settings, or no file"
            )
        at, best = _Progress(**held["progress"]), groups.pop("best", {})
        head.load_state_dict(groups["head"])
        average.load_state_dict(groups["average"])
        for name, parameter in head.named_parameters():
            optimizer.state[parameter] = {
                kind: groups[kind][name] if kind == "step" else groups[kind][name].to(parameter.device)
                for kind in ("exp_avg", "exp_avg_sq", "step")
            }
    elif not head.story:
        head.begin(held_out[0].states)

    def keep() -> None:
        held = {"settings": asdict(settings) | {"texts": len(texts)}, "progress": asdict(at)}
        groups = {"head": head.state_dict(), "average": average.state_dict(), "best": best}
        checkpoint.write(groups | _moments(optimizer, head), held)

    bar = tqdm(range(at.epoch, settings.epochs), desc=f"{head.kind} heads", unit="epoch", disable=not progress)
    with bar:
        for epoch in bar:
            order = np.random.default_rng((settings.seed, epoch)).permutation(len(texts))
            left = [texts[j] for j in order[at.done * settings.batch :]]
            for batch in _batches(left, settings.batch, ends.device):
                step = epoch * steps_each + at.done
                noise = torch.Generator().manual_seed(settings.seed * 1_000_003 + step)
                with torch.random.fork_rng(devices=[]):
                    torch.manual_seed(settings.seed * 1_000_003 + step)
                    loss = head_loss(head.train(), ends, batch, noise, cut)
                optimizer.zero_grad(set_to_none=True)
                loss.backward(inputs=list(head.parameters()))
                torch.nn.utils.clip_grad_norm_(head.parameters(), 1.0)
                at.rate = at.peak * rate_factor(step, steps, recipe.last_rate)
                for group in optimizer.param_groups:
                    group["lr"] = at.rate
                optimizer.step()
                average.update_parameters(head)
                at.losses.append(loss.item())
                at.done += 1
                if checkpoint and time.monotonic() > checkpoint.ends:
                    out_of_time = True
                    break
                if checkpoint and time.monotonic() > checkpoint.written + checkpoint.every:
                    keep()
                    bar.set_postfix(batch=f"{at.done}/{steps_each}", loss=float(np.mean(at.losses[-20:])))
            if out_of_time:
                keep()
            found = mean_loss(average.module.eval(), ends, held_out, settings, cut)
            done = epoch + (1 if at.done == steps_each else at.done / steps_each)
            row = {"epoch": done, "loss": float(np.mean(at.losses)), "held_out": found}
            at.curve.append(row | {"rate": at.rate})
            bar.set_postfix(held_out=found)
            gained, less = found < 0.995 * at.least, found < at.least
            if less:
                at.least, at.kept = found, row["epoch"]
                best = {name: weights.clone() for name, weights in average.module.state_dict().items()}
            if out_of_time:
                break
            if recipe.last_rate is None and (not gained or epoch >= settings.epochs - 3):
                at.peak /= 4
            at.little = 0 if less else at.little + 1
            at.epoch, at.done, at.losses = epoch + 1, 0, []
            if checkpoint:
                keep()
            if at.peak < rate / 32 or (recipe.last_rate is not None and at.little == 3):
                break
    if not best:
        raise FloatingPointError(f"the loss is {at.curve[-1]['held_out']} in every epoch; lower the rate ({rate})")
    head.load_state_dict({name: values.to(torch.bfloat16).float() for name, values in best.items()})
    head.story = {
        "training": asdict(settings) | {"rate": rate, "dropout": head.dropout},
        "recipe": asdict(recipe),
        "answers": len(texts),
        "predictions": sum(max(0, len(text.tokens) - text.start - 1) for text in texts),
        "held_out_answers": len(held_out),
        "epoch_kept": at.kept,
        "curve": at.curve,
        "accuracies": accuracies(head.eval(), ends, held_out),
    }
    return head
