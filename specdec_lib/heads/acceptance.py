"""The acceptance head of SpecDec++: will the target keep the token that the draft model has just drawn?

The head reads the draft model's final state at the token in question (after the final norm) and gives the
probability that the target accepts it, given that all before it are accepted (section 3.2, equation 3.1).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from transformers import PreTrainedModel

from specdec_lib.decoding.checks import whole_number
from specdec_lib.decoding.compiled import compiled
from specdec_lib.decoding.sampling import not_numbers
from specdec_lib.decoding.served_models import input_device
from specdec_lib.heads import head_files
from specdec_lib.models.fingerprint import fingerprint

COMMAND = "python -m specdec_lib train-acceptance-head"
#: Confidences are kept this far from 0 and 1 before their log-odds are taken.
EDGE = 1e-6
NO_STATES = "the draft model's states hold NaN or infinity"


class ResidualBlock(nn.Module):
    """x + SiLU(W x + b), as released (SpecDec++, section 4.1).

    Parameters
    ----------
    width : int
    zero : bool
        Begin as the identity, which the released code has as a comment.

    Examples
    --------
    >>> import torch
    >>> from specdec_lib.heads.acceptance import ResidualBlock
    >>> x = torch.ones(2, 8)
    >>> torch.equal(ResidualBlock(8, zero=True)(x), x)
    True
    """

    def __init__(self, width: int, zero: bool = False):
        super().__init__()
        self.linear = nn.Linear(width, width)
        if zero:
            nn.init.zeros_(self.linear.weight)
            nn.init.zeros_(self.linear.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + F.silu(self.linear(x))


class AcceptanceHead(nn.Module):
    """Residual blocks and a linear layer (SpecDec++, section 4.1: a network of D + 1 layers) on a draft model's states.

    The output is one logit f(e), whose sigmoid is the probability of acceptance, as the paper has it. The released head has
    two logits and takes their softmax; that is the sigmoid of their difference.

    Parameters
    ----------
    width : int
        Values of a state.
    depth : int
        How often one block is applied, 0 to 4, as the released code does.
    zero : bool
        Whether the block begins as the identity.
    draft : str
        Fingerprint of the draft model whose states it reads.
    story : dict, optional
        How it was trained, JSON.
    sees_confidence : bool
        Whether it also reads the log-odds of the probability that the draft model gave the token, which the paper's does not.

    Examples
    --------
    >>> import torch
    >>> from specdec_lib import paths
    >>> from specdec_lib.heads.acceptance import AcceptanceHead
    >>> head = AcceptanceHead.load(paths.POCKET / "head/acceptance.safetensors", draft)
    >>> head.width == draft.config.hidden_size
    True
    >>> head.probability(torch.zeros(3, head.width)).shape
    torch.Size([3])
    """

    def __init__(
        self,
        width: int,
        depth: int = 3,
        zero: bool = False,
        draft: str = "",
        story: dict | None = None,
        sees_confidence: bool = False,
    ):
        super().__init__()
        depth, width = whole_number("depth", depth, 0), whole_number("width", width, 1)
        if depth > 4:
            raise ValueError(f"depth is {depth}; expected a whole number, 0 (a linear layer) to 4")
        self.width, self.depth, self.draft = width, depth, draft
        self.story, self.sees_confidence = dict(story or {}), sees_confidence
        inputs = width + sees_confidence
        self.blocks = nn.ModuleList(ResidualBlock(inputs, zero) for _ in range(min(depth, 1)))
        self.out = nn.Linear(inputs, 1)

    def forward(self, states: torch.Tensor, confidence: torch.Tensor | None = None) -> torch.Tensor:
        """Logits of acceptance.

        Parameters
        ----------
        states : float tensor of shape (..., width)
        confidence : float tensor of shape (...), optional
            The draft model's probabilities of the tokens; for a head that sees them.

        Returns
        -------
        float tensor of shape (...)
        """
        x = states
        if self.sees_confidence:
            x = torch.cat([x, confidence.to(x).clamp(EDGE, 1 - EDGE).logit()[..., None]], dim=-1)
        for _ in range(self.depth):
            x = self.blocks[0](x)
        return self.out(x)[..., 0]

    @torch.inference_mode()
    def probability(self, states: torch.Tensor, confidence: torch.Tensor | None = None) -> torch.Tensor:
        """Predicted probability of acceptance, float32, shape (...); arguments as for :meth:`forward`."""
        return _checked(self(states.float(), confidence).sigmoid())

    def scorer(self, device: torch.device | None = None) -> Callable[[torch.Tensor, float], float | torch.Tensor]:
        """The head as a function of one state and one confidence, at the least cost.

        Parameters
        ----------
        device : torch.device, optional
            Where the states will lie; by default where the head does.

        Returns
        -------
        callable
            From a state of shape (width,) and a confidence. It gives a float on a CPU, and elsewhere a tensor of no dimension that
            nothing was read back for; NaN for a state with NaN.

        Examples
        --------
        >>> import torch
        >>> from specdec_lib.heads.acceptance import AcceptanceHead
        >>> head, state = AcceptanceHead(width=8), torch.ones(8)
        >>> abs(head.scorer()(state) - float(head.probability(state))) < 1e-6
        True
        """
        device = device or self.out.weight.device
        own = copy.deepcopy(self).to(device)
        if device.type != "cpu":
            return lambda state, confidence=0.5: own(state.float(), torch.full((), confidence, device=device)).sigmoid()
        block = own.blocks[0].linear if self.depth else own.out  # of no depth, none is applied
        weights = np.ascontiguousarray(block.weight.detach().float().T.numpy())
        shifts = block.bias.detach().float().numpy()
        last, bias = own.out.weight.detach().float()[0].numpy(), own.out.bias.item()

        def score(state: torch.Tensor, confidence: float = 0.5) -> float:
            z = _logit(weights, shifts, self.depth, last, bias, state.float().numpy(), confidence)
            return 0.0 if z < -700.0 else 1.0 / (1.0 + math.exp(-z))

        return score

    def check(self, model: PreTrainedModel) -> None:
        """Reject a draft model that the head was not trained for."""
        own = fingerprint(model)
        if self.draft != own:
            made = f"the draft model with fingerprint {self.draft[:12]}" if self.draft else "no draft model"
            raise ValueError(f"the acceptance head was trained for {made}, not {own[:12]}; train one: {COMMAND}")

    def save(self, path: str | Path) -> None:
        """Write one safetensors file in bfloat16, aside and renamed."""
        names = ("width", "depth", "draft", "sees_confidence", "story")
        head_files.save(path, "acceptance_head", self, {name: getattr(self, name) for name in names})

    @classmethod
    def load(cls, path: str | Path, model: PreTrainedModel | None = None) -> AcceptanceHead:
        """Read what :meth:`save` wrote.

        Parameters
        ----------
        path : path
        model : PreTrainedModel, optional
            The draft model that it is for: the head is checked, and moved there.

        Returns
        -------
        AcceptanceHead

        Raises
        ------
        FileNotFoundError
        ValueError
            If the file holds no acceptance head, or one of another draft model.
        """

        def make(about: dict) -> AcceptanceHead:
            options = {name: about[name] for name in ("width", "depth", "story", "sees_confidence")}
            return cls(**options, draft=str(about["draft"]))

        head = head_files.load(path, "acceptance_head", make, COMMAND)
        if model is not None:
            head.check(model)
            head.to(input_device(model))
        return head


def _checked(values: torch.Tensor) -> torch.Tensor:
    if not bool(values.isfinite().all()):
        raise not_numbers(NO_STATES)
    return values


@compiled
def _logit(weights, shifts, depth, last, bias, state, confidence):  # pragma: no cover
    """The head's logit of one state; compiled, because a call into torch costs more than products this small.

    ``weights`` has shape (n, n) and is transposed: ``weights[j]`` is what input ``j`` adds. A state of n - 1 values has the
    confidence's log-odds as its last input.
    """
    count = len(last)
    x = np.empty(count, np.float32)
    x[: len(state)] = state
    if len(state) < count:
        inside = min(max(confidence, EDGE), 1.0 - EDGE)
        x[count - 1] = math.log(inside / (1.0 - inside))
    y = np.empty(count, np.float32)
    for _ in range(depth):
        y[:] = shifts
        for j in range(count):
            factor, row = x[j], weights[j]
            for i in range(count):
                y[i] += factor * row[i]
        for i in range(count):
            # SiLU as y (1 + tanh(y / 2)) / 2: the exponential of a large -y would overflow.
            x[i] += y[i] * np.float32(0.5) * (np.float32(1) + np.tanh(np.float32(0.5) * y[i]))
    z = bias
    for i in range(count):
        z += last[i] * x[i]
    return z


@dataclass(frozen=True)
class Examples:
    """What a head is trained on.

    Raises
    ------
    ValueError
        If the shapes do not agree, or a probability is outside [0, 1].
    FloatingPointError
        If a state is not finite.

    Examples
    --------
    >>> import torch
    >>> from specdec_lib.heads.acceptance import Examples
    >>> examples = Examples(torch.randn(3, 8), acceptance=torch.tensor([1.0, 0.25, 0.0]))
    >>> len(examples), len(examples[:2])
    (3, 2)
    """

    #: The draft model's final state at each token that it drew, shape (n, width).
    states: torch.Tensor = field(repr=False)
    #: Probability that the target accepts that token, shape (n,).
    acceptance: torch.Tensor = field(repr=False)
    #: Probability that the draft model gave it, shape (n,); for heads that see it.
    confidence: torch.Tensor | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.states.ndim != 2 or not len(self.states):
            raise ValueError(f"states have shape {tuple(self.states.shape)}; expected (n, width) with n of 1 or more")
        for name in ("acceptance", "confidence"):
            values = getattr(self, name)
            if values is None:
                continue
            if values.shape != self.states.shape[:1]:
                raise ValueError(f"{name} has shape {tuple(values.shape)}; expected ({len(self.states)},)")
            wrong = values[~((values >= 0) & (values <= 1))]
            if len(wrong):
                raise ValueError(f"{name} holds {float(wrong[0])}; expected probabilities in [0, 1]")
        _checked(self.states)

    def __len__(self) -> int:
        return len(self.acceptance)

    def __getitem__(self, rows: torch.Tensor | slice) -> Examples:
        """Some of the examples, without the checks."""
        some = object.__new__(Examples)
        some.__dict__.update({name: None if v is None else v[rows] for name, v in self.__dict__.items()})
        return some


def weighted_loss(logits: torch.Tensor, acceptance: torch.Tensor, reject_weight: float) -> torch.Tensor:
    """Weighted binary cross-entropy with soft labels P (SpecDec++, section 3.3, w_acc = 1), normalised as released.

    The sum of -P log P^ - w_rej (1 - P) log(1 - P^) over the sum of P + w_rej (1 - P).

    Parameters
    ----------
    logits, acceptance : float tensor of shape (n,)
        Predictions, and labels in [0, 1].
    reject_weight : float
        w_rej.

    Returns
    -------
    float tensor of shape ()

    Examples
    --------
    >>> import torch
    >>> from specdec_lib.heads.acceptance import weighted_loss
    >>> weighted_loss(torch.zeros(2), torch.tensor([1.0, 0.0]), reject_weight=6.0)
    tensor(0.6931)
    """
    rejected = reject_weight * (1 - acceptance)
    each = -acceptance * F.logsigmoid(logits) - rejected * F.logsigmoid(-logits)
    return each.sum() / (acceptance + rejected).sum()
