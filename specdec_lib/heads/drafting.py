"""Heads that draft: small networks on the target's final states, which share its embeddings and its output layer.

Medusa (Cai et al. 2024), Hydra (Ankner et al. 2024) and EAGLE (Li et al. 2024). A head of depth 1 predicts the token after the
newest one, whose own state is not computed yet; the state it reads is that of the token before.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import torch
import torch.nn.functional as F
from torch import nn
from transformers import PreTrainedModel

from specdec_lib.decoding.checks import whole_number
from specdec_lib.decoding.served_models import UnsupportedModel, decoder_config, device_of, vocabulary_size
from specdec_lib.heads import head_files
from specdec_lib.heads.acceptance import ResidualBlock
from specdec_lib.heads.layer import DecoderLayer, Past, PrefixLayer
from specdec_lib.models.fingerprint import fingerprint, weights_of

COMMAND = "python -m specdec_lib train-heads"
#: Largest number of heads, or of times that a block is applied.
MOST = 1024


class Ends:
    """The two ends of a target, which heads share and do not train: its embeddings and its output layer.

    Parameters
    ----------
    model : PreTrainedModel

    Raises
    ------
    UnsupportedModel
        If the model has no output layer.

    Examples
    --------
    >>> import torch
    >>> from specdec_lib.heads.drafting import Ends
    >>> ends = Ends(model)
    >>> ends.embed(torch.tensor([[5, 6, 7]])).shape == (1, 3, model.config.hidden_size)
    True
    >>> ends.logits(torch.zeros(2, ends.width)).shape
    torch.Size([2, 4096])
    """

    def __init__(self, model: PreTrainedModel):
        self._embeddings, self._output = model.get_input_embeddings(), model.get_output_embeddings()
        if self._output is None:
            raise UnsupportedModel(f"{type(model).__name__} has no output layer for the heads; use another drafter")
        weight, config = self._output.weight, decoder_config(model)
        self.device, self.vocabulary = device_of(model, self._output), vocabulary_size(model)
        self._embeds_on = device_of(model, self._embeddings)
        self.width = config.hidden_size
        # Of an output layer in whole numbers its inputs' type is the model's.
        self.dtype = weight.dtype if weight.is_floating_point() else model.dtype
        self._cap = getattr(config, "final_logit_softcapping", None)
        self._factor = (getattr(config, "logit_scale", None) or 1.0) / (getattr(config, "logits_scaling", None) or 1.0)
        with torch.no_grad():
            some = self._embeddings(torch.arange(min(self.vocabulary, 1024), device=self._embeds_on))
            self._scale = float(some.float().square().mean().clamp_min(1e-12).rsqrt())

    @torch.no_grad()
    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """Embeddings of int64 tokens of any shape, (..., d), divided by their root mean square over the vocabulary.

        The published heads read them as they are, some fifty times smaller than the states; a short training cannot learn that.
        """
        return (self._embeddings(tokens.to(self._embeds_on)) * self._scale).to(self.device)

    def cut(self, tokens: torch.Tensor) -> Ends:
        """These ends with the output layer's rows of some tokens alone, int64 (v,), and logits in their order, (..., v)."""
        few, weight = copy.copy(self), weights_of(self._output)[tokens]
        few._output = nn.Linear(self.width, len(tokens), bias=False, device=self.device, dtype=self.dtype)
        few._output.requires_grad_(False).weight.copy_(weight)
        few.vocabulary = len(tokens)
        return few

    def logits(self, states: torch.Tensor) -> torch.Tensor:
        """The target's logits for states of shape (..., d), float32, with its own scale and cap."""
        # Rows that pad the output layer are no tokens.
        logits = self._output(states.to(self.dtype))[..., : self.vocabulary].float()
        if self._factor != 1.0:
            logits = logits * self._factor
        return logits if self._cap is None else self._cap * torch.tanh(logits / self._cap)


@dataclass(frozen=True)
class Recipe:
    """The published loss of a kind of head.

    Examples
    --------
    >>> from specdec_lib.heads.drafting import MedusaHeads
    >>> MedusaHeads.recipe.labels, MedusaHeads.recipe.decay
    ('tokens', 0.8)
    """

    #: Cross-entropy with the answer's tokens, or with the target's own distribution.
    labels: Literal["tokens", "target"]
    #: Of that cross-entropy.
    weight: float = 1.0
    #: Weight of each depth over that of the depth above.
    decay: float = 1.0
    #: Weight of the smooth L1 distance of the first depth's states from the target's.
    regression: float = 0.0
    #: Width of uniform noise on the states that are read, for sequences of 512 tokens; shorter ones get more.
    noise: float = 0.0
    #: Train the first depth alone; the others are the same network on its own states.
    only_first: bool = False
    rate: float = 1e-3
    weight_decay: float = 0.0
    #: Share of values that are dropped before each block and before the output layer.
    dropout: float = 0.0
    #: The rate falls along a cosine to this share of its peak; without it, where the held-out loss stops falling.
    last_rate: float | None = None


class DraftHead(nn.Module, ABC):
    """What the kinds of heads share: depths, files, and the check that heads are used with the target of their training.

    ``depth`` is how many depths it predicts at most, 0 for as many as are asked for.

    Parameters
    ----------
    options : dict of str to int
        What a subclass was made with.
    target : str
        Fingerprint of its target.
    story : dict, optional
        How it was trained, JSON.

    Examples
    --------
    >>> from specdec_lib import paths
    >>> from specdec_lib.heads.drafting import DraftHead
    >>> heads = DraftHead.load(paths.POCKET / "heads/medusa.safetensors", model)
    >>> type(heads).__name__, len(heads.accuracies) == heads.depth
    ('MedusaHeads', True)
    """

    kind: ClassVar[str]
    recipe: ClassVar[Recipe]
    depth: int

    def __init__(self, options: dict[str, Any], target: str = "", story: dict | None = None):
        super().__init__()
        for name, value in options.items():
            options[name] = whole_number(name, value, 0 if name in ("vocabulary", "prefix", "mlp", "norm") else 1)
            if name in ("heads", "layers") and value > MOST:  # a file that says so must not ask for as much memory
                raise ValueError(f"{name} is {value}; expected at most {MOST}")
        self.options, self.target, self.story = options, target, dict(story or {})
        #: In training; by default the recipe's.
        self.dropout = self.recipe.dropout

    @classmethod
    def for_target(cls, model: PreTrainedModel, own_vocabulary: bool = False, **options: Any) -> Self:
        """New heads for a target.

        Parameters
        ----------
        model : PreTrainedModel
        own_vocabulary : bool
            Give each depth an output layer of its own, which begins as the target's.
        **options
            Of the kind of heads.

        Returns
        -------
        DraftHead

        Examples
        --------
        >>> from specdec_lib.heads.drafting import MedusaHeads
        >>> MedusaHeads.for_target(model, heads=2).depth
        2
        """
        ends, weight = Ends(model), weights_of(model.get_output_embeddings())
        if own_vocabulary:
            options["vocabulary"] = len(weight)
        head = cls(width=decoder_config(model).hidden_size, target=fingerprint(model), **options).to(ends.device)
        with torch.no_grad():
            for layer in getattr(head, "out", ()):
                layer.weight.copy_(weight)
        return head

    def begin(self, states: torch.Tensor) -> None:
        """See some of the target's states, (n, d), before the first training."""

    @abstractmethod
    def features(
        self, ends: Ends, states: torch.Tensor, tokens: torch.Tensor, where: torch.Tensor, depths: int
    ) -> list[torch.Tensor]:
        """The inputs of the output layer of each depth.

        Parameters
        ----------
        ends : Ends
        states : float tensor of shape (b, n, d)
            The target's.
        tokens : int64 tensor of shape (b, n)
        where : bool tensor of shape (b, n)
            The m positions t to predict from.
        depths : int

        Returns
        -------
        list of float tensors of shape (m, d)
            For each depth k from 1: token t + 1 + k is predicted from it, given the states up to t and the tokens up to t + k.
        """

    def logits(self, ends: Ends, depth: int, features: torch.Tensor) -> torch.Tensor:
        """Logits of one depth.

        Parameters
        ----------
        ends : Ends
        depth : int
            From 1.
        features : float tensor of shape (..., d)

        Returns
        -------
        float32 tensor of shape (..., vocabulary)
        """
        out = getattr(self, "out", None)
        return ends.logits(features) if out is None else out[depth - 1](features)[..., : ends.vocabulary].float()

    @property
    def accuracies(self) -> list[list[float]]:
        """For each depth, how often the choice of each rank was right on held-out answers, as recorded by the training."""
        if "accuracies" not in self.story:
            raise ValueError(f"these {self.kind} heads hold no accuracies; train them: {COMMAND} --kind {self.kind}")
        return self.story["accuracies"]

    def check(self, model: PreTrainedModel) -> None:
        """Reject a target that the head was not trained for."""
        own = fingerprint(model)
        if self.target != own:
            made = f"the target with fingerprint {self.target[:12]}" if self.target else "no target"
            raise ValueError(
                f"the {self.kind} heads were trained for {made}, not {own[:12]}; train some: {COMMAND} --kind {self.kind}"
            )

    def save(self, path: str | Path) -> None:
        """Write one safetensors file in bfloat16, aside and renamed."""
        about = {name: getattr(self, name) for name in ("kind", "options", "target", "story")}
        head_files.save(path, "drafting_heads", self, about)

    @classmethod
    def load(cls, path: str | Path, model: PreTrainedModel | None = None) -> Self:
        """Read what :meth:`save` wrote, in float32.

        Parameters
        ----------
        path : path
        model : PreTrainedModel, optional
            The target that the heads must be for.

        Returns
        -------
        DraftHead
            Of the kind that the file holds.

        Raises
        ------
        FileNotFoundError
        ValueError
            If the file is damaged, or holds heads of another kind or another target.
        """

        def make(about: dict[str, Any]) -> DraftHead:
            kind = about["kind"]
            if kind not in KINDS or not issubclass(KINDS[kind], cls):
                raise ValueError(f"heads of kind {kind!r}; expected {getattr(cls, 'kind', ' or '.join(KINDS))}")
            for row in about["story"].get("accuracies", ()):
                if not all(isinstance(share, float | int) and 0 <= share <= 1 for share in row):
                    raise ValueError(f"accuracies of {row!r:.80}")
            return KINDS[kind](**about["options"], target=str(about["target"]), story=about["story"])

        head = head_files.load(path, "drafting_heads", make, COMMAND)
        if model is not None:
            head.check(model)
        return head


def _own_layers(count: int, width: int, vocabulary: int) -> nn.ModuleList:
    return nn.ModuleList(nn.Linear(width, vocabulary, bias=False) for _ in range(count))


class GroundedBlock(nn.Module):
    """Hydra's released block, M x + SiLU(W x + b) of x = [h, e_1, ..., e_k]; it starts as h.

    With k = 0 it is Medusa's, whose released block has the identity for M: heads that share an output layer need the map.

    Parameters
    ----------
    width : int
    depth : int
        k.

    Examples
    --------
    >>> import torch
    >>> from specdec_lib.heads.drafting import GroundedBlock
    >>> state, embedding = torch.randn(2, 8), torch.randn(2, 8)
    >>> torch.equal(GroundedBlock(8, depth=1)(torch.cat([state, embedding], dim=-1)), state)
    True
    """

    def __init__(self, width: int, depth: int = 0):
        super().__init__()
        self.map, self.linear = (nn.Linear((depth + 1) * width, width) for _ in range(2))
        for weights in self.parameters():
            nn.init.zeros_(weights)
        nn.init.eye_(self.map.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """For the state and the k embeddings one after another, shape (..., (k + 1) d)."""
        return self.map(x) + F.silu(self.linear(x))


class MedusaHeads(DraftHead):
    """Medusa-1: predicts each depth from the same state, independently of the others (Cai et al. 2024, section 2.2.1).

    Parameters
    ----------
    width : int
        Values of a state.
    heads : int
        Depths.
    layers : int
        How often each applies its block; the released heads do once.
    vocabulary : int
        0 for the target's own output layer, or the number of tokens of an output layer for each depth, as published.
    target, story
        As for :class:`DraftHead`.

    Examples
    --------
    New heads predict what the target itself predicts, whatever the depth:

    >>> import torch
    >>> from specdec_lib.heads.drafting import MedusaHeads
    >>> heads, state = MedusaHeads(width=8, heads=3), torch.randn(2, 8)
    >>> torch.equal(heads.feature(3, state), state)
    True
    """

    kind = "medusa"
    recipe = Recipe("tokens", decay=0.8)

    def __init__(
        self,
        width: int,
        heads: int = 5,
        layers: int = 1,
        vocabulary: int = 0,
        target: str = "",
        story: dict | None = None,
    ):
        options = {"width": width, "heads": heads, "layers": layers, "vocabulary": vocabulary}
        super().__init__(options, target, story)
        self.depth, self.layers = heads, layers
        self.blocks = nn.ModuleList(GroundedBlock(width) for _ in range(heads))
        if vocabulary:
            self.out = _own_layers(heads, width, vocabulary)

    def feature(self, depth: int, states: torch.Tensor) -> torch.Tensor:
        """Of one depth, from 1, for states of shape (..., d)."""
        for _ in range(self.layers):
            states = self.blocks[depth - 1](states)
        return states

    def features(self, ends, states, tokens, where, depths):
        read = states[where]
        return [self.feature(depth, read) for depth in range(1, depths + 1)]


class HydraHeads(DraftHead):
    """Hydra: predicts each depth from the state and the tokens between (Ankner et al. 2024, section 3).

    Depth k reads h_t and the embeddings of x_{t+1}, ..., x_{t+k}.

    Parameters
    ----------
    width, heads, vocabulary, target, story
        As for :class:`MedusaHeads`.
    layers : int
        A second block is applied ``layers - 1`` times, 3 in Hydra++.
    prefix : int
        0, or the attention heads of the prefix layer of Hydra++: a decoder layer over the states of the text so far, whose
        output stands for h_t.
    mlp : int
        Inner width of that layer.
    norm : int
        1: a norm follows that layer, as released; files of earlier versions have none.

    Examples
    --------
    >>> import torch
    >>> from specdec_lib.heads.drafting import HydraHeads
    >>> heads = HydraHeads(width=8, heads=3)
    >>> heads.feature(2, torch.randn(5, 8), torch.randn(5, 2, 8)).shape
    torch.Size([5, 8])
    """

    kind = "hydra"
    recipe = Recipe("target", rate=5e-4, weight_decay=0.1, dropout=0.2, last_rate=0.33)

    def __init__(
        self,
        width: int,
        heads: int = 4,
        layers: int = 1,
        prefix: int = 0,
        mlp: int = 0,
        vocabulary: int = 0,
        norm: int = 0,
        target: str = "",
        story: dict | None = None,
    ):
        options = {"width": width, "heads": heads, "layers": layers, "prefix": prefix, "mlp": mlp}
        super().__init__(options | {"vocabulary": vocabulary, "norm": norm}, target, story)
        self.depth, self.layers = heads, layers
        self.first = nn.ModuleList(GroundedBlock(width, depth) for depth in range(1, heads + 1))
        self.blocks = nn.ModuleList(ResidualBlock(width, zero=True) for _ in range(heads if layers > 1 else 0))
        self.prefix = PrefixLayer(width, prefix, mlp, bool(norm)) if prefix else None
        if vocabulary:
            self.out = _own_layers(heads, width, vocabulary)

    @classmethod
    def for_target(
        cls,
        model: PreTrainedModel,
        own_vocabulary: bool = False,
        prefix: bool = True,
        layers: int = 4,
        **options: Any,
    ) -> Self:
        """New heads for a target, by default as released.

        Parameters
        ----------
        model, own_vocabulary, **options
            As for :meth:`DraftHead.for_target`.
        prefix : bool
            Have a prefix layer of the target's own shape, and a norm.
        layers : int

        Returns
        -------
        HydraHeads
        """
        if prefix:
            options["prefix"], options["mlp"] = layer_shape(model)
            options["norm"] = 1
        return super().for_target(model, own_vocabulary, layers=layers, **options)

    def begin(self, states):
        if self.prefix is not None:
            self.prefix.scale_to(states)

    def feature(self, depth: int, states: torch.Tensor, embeddings: torch.Tensor) -> torch.Tensor:
        """Of one depth, from 1, for states of shape (..., d) and embeddings of shape (..., depth, d)."""
        read = torch.cat([states, embeddings.flatten(-2).to(states.dtype)], dim=-1)
        states = self.first[depth - 1](self._dropped(read))
        for _ in range(self.layers - 1):
            states = self.blocks[depth - 1](self._dropped(states))
        return self._dropped(states)

    def _dropped(self, x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x, self.dropout, self.training)

    def features(self, ends, states, tokens, where, depths):
        if self.prefix is not None:
            states, _ = self.prefix(states, torch.arange(states.shape[1], device=states.device))
        embeddings = ends.embed(tokens)
        # Rows that run over the end of a text hold tokens of its beginning; nothing is predicted there.
        behind = torch.stack([embeddings.roll(-k, dims=1)[where] for k in range(1, depths + 1)], dim=-2)
        return [self.feature(k, states[where], behind[:, :k]) for k in range(1, depths + 1)]


class EagleHead(DraftHead):
    """EAGLE: predicts the next state from the state and the next token, by one decoder layer (Li et al. 2024, section 3.1).

    It reads fc([e(x_{i+1}), f_i]) at position i and gives f_{i+1}, from which the target's own output layer predicts x_{i+2}.
    Deeper predictions read its own states.

    Parameters
    ----------
    width : int
        Values of a state.
    heads : int
        Attention heads.
    mlp : int
        Inner width of the layer's network.
    target, story
        As for :class:`DraftHead`.

    Examples
    --------
    >>> import torch
    >>> from specdec_lib.heads.drafting import EagleHead
    >>> head = EagleHead(width=8, heads=2, mlp=16)
    >>> states, past = head(torch.randn(1, 3, 8), torch.randn(1, 3, 8), torch.arange(3))
    >>> states.shape
    torch.Size([1, 3, 8])
    """

    kind = "eagle"
    recipe = Recipe("target", weight=0.1, regression=1.0, noise=0.2, only_first=True)
    #: It drafts as deep as it is asked to.
    depth = 0

    def __init__(self, width: int, heads: int, mlp: int, target: str = "", story: dict | None = None):
        super().__init__({"width": width, "heads": heads, "mlp": mlp}, target, story)
        self.fc = nn.Linear(2 * width, width)
        self.layer = DecoderLayer(width, heads, mlp, input_norm=False)

    @classmethod
    def for_target(cls, model: PreTrainedModel, mlp: int = 0, **options: Any) -> Self:
        """New heads for a target.

        Parameters
        ----------
        model, **options
            As for :meth:`DraftHead.for_target`.
        mlp : int
            Inner width of the layer's network; 0 takes the target's own.

        Returns
        -------
        EagleHead
        """
        heads, own = layer_shape(model)
        return super().for_target(model, heads=heads, mlp=mlp or own, **options)

    def forward(
        self,
        embeddings: torch.Tensor,
        states: torch.Tensor,
        positions: torch.Tensor,
        past: Past | None = None,
        visible: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, Past]:
        """Predicted next states.

        Parameters
        ----------
        embeddings, states : float tensor of shape (b, n, d)
        positions, past, visible
            As for :class:`~specdec_lib.heads.layer.DecoderLayer`.

        Returns
        -------
        float tensor of shape (b, n, d)
        pair of float tensors
            The past with the new tokens at the end.
        """
        return self.layer(self.fc(torch.cat([embeddings.to(states.dtype), states], dim=-1)), positions, past, visible)

    def features(self, ends, states, tokens, where, depths):
        embeddings = ends.embed(tokens)
        count = states.shape[1]
        positions = torch.arange(count, device=states.device)
        own = torch.eye(count, dtype=torch.bool, device=states.device)
        past, visible, found = None, torch.ones_like(own).tril(), []
        for k in range(1, depths + 1):
            states, past = self(embeddings.roll(-k, dims=1), states, positions + k - 1, past, visible)
            # Row t of each depth sees the true pairs up to t, then the pairs of its own branch.
            visible = torch.cat([visible, own], dim=1)
            found.append(states[where])
        return found


#: The kinds of heads by name.
KINDS: dict[str, type[DraftHead]] = {head.kind: head for head in (MedusaHeads, HydraHeads, EagleHead)}


def layer_shape(model: PreTrainedModel) -> tuple[int, int]:
    """Attention heads and inner width of a target's own decoder layers.

    Parameters
    ----------
    model : PreTrainedModel

    Returns
    -------
    heads : int
    mlp : int
        Four times the model's width where it states none.

    Examples
    --------
    >>> from specdec_lib.heads.drafting import layer_shape
    >>> layer_shape(model)
    (5, 864)
    """
    config = decoder_config(model)
    return config.num_attention_heads, getattr(config, "intermediate_size", None) or 4 * config.hidden_size
