"""The target model: prefill, one pass over a draft tree, and what is captured on the way."""
from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from transformers import PreTrainedModel

from . import attention
from .attention_rows import AttentionRows
from .cache import TreeCache, on_device
from .contract import LAST, Capture
from .forward import Forward
from specdec_lib.decoding.served_models import (
    UnsupportedModel,
    check_kind,
    context_limit,
    decoder_config,
    vocabulary_size,
)
from .runtime import Runtime
from .tree import EMPTY, DraftTree

#: Positions of one prefill pass; bounds the memory of its mask and activations.
PREFILL_CHUNK = 4096
#: Logits of a prompt held at once where those of every position are asked for: 128 MiB in float32.
LOGITS_AT_ONCE = 2**25
#: Room for a draft behind prompt and output before a buffer has to grow, in positions.
DRAFT_ROOM = 65
_CHECKED: weakref.WeakSet = weakref.WeakSet()


class Target:
    """A causal language model with its cache, ready to verify drafts of one sequence.

    Parameters
    ----------
    model : PreTrainedModel
        Any decoder-only causal language model with full attention.
    longest : int
        Length that prompt and output may reach; checked against a sliding window.
    capture : Capture
        Hidden states and attention rows to keep.
    capacity : int, optional
        Positions the buffers hold at first; they grow by half when exceeded. ``longest`` and a draft by default.
    runtime : Runtime, optional
        Runs passes over drafts with buffers in place, whose capacity then holds; None runs them eagerly.

    Attributes
    ----------
    rows : AttentionRows, optional
        The reader of the captured heads.

    Raises
    ------
    UnsupportedModel
        If tree verification would not compute what the model computes.
    """

    def __init__(self, model: PreTrainedModel, longest: int, capture: Capture = Capture(), capacity: int | None = None,
                 runtime: Runtime | None = None):
        check_kind(model, longest)
        capacity = longest + DRAFT_ROOM if capacity is None else capacity
        self.model = model
        self.device = model.get_input_embeddings().weight.device
        self.devices = {parameter.device for parameter in model.parameters()}
        config = decoder_config(model)
        self.layers, self._vocabulary = config.num_hidden_layers, vocabulary_size(model)
        # The most likely tokens are read off the logits: no pass differs for them.
        self.runtime, self.capture = runtime, replace(capture, topk=0)
        self._states: dict[int, torch.Tensor] = {} if runtime is None else runtime.take(
            self, model, self.capture, longest)
        self.cache = TreeCache(self.layers, capacity) if runtime is None else runtime.cache
        capacity = self.cache.capacity
        self.forward = Forward(model, self.cache, self.device)
        self._additive = self.forward.additive
        # Drafts end at the model's last position; passengers may not.
        self._last_position = (context_limit(model) or sys.maxsize) - 1
        self._strip: torch.Tensor | None = None
        self._positions = torch.arange(capacity, device=self.device)
        self._hooks: list = []
        self.rows: AttentionRows | None = None
        self._installed = False
        self._block: list[int] = []
        try:
            for layer in dict.fromkeys(map(self._layer, capture.layers)):
                self._hook_states(layer)
            if capture.heads:
                self.rows = self.forward.rows = AttentionRows(model, capture.heads)
            shared = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
            if not self._additive and shared < config.num_attention_heads:
                attention.install(model, self)
                self._installed = True
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Target:
        return self

    def __exit__(self, kind, *exc) -> None:
        self.close(failed=kind is not None)

    def close(self, failed: bool = False) -> None:
        """Take the hooks off the model, and give the runtime back.

        Parameters
        ----------
        failed : bool
            A pass may have left in the buffers what is no number.
        """
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        if self.rows is not None:
            self.rows.close()
        if self._installed:
            attention.uninstall(self.model, self)
            self._installed = False
        if self.runtime is not None:
            self.runtime.give_back(failed)

    @property
    def length(self) -> int:
        """Committed positions."""
        return self.cache.length

    def extend(self, tokens: Sequence[int], each: Callable[[torch.Tensor], None] | None = None) -> torch.Tensor:
        """Run and commit tokens that continue the committed ones (prefill, or a draft model's next token).

        Parameters
        ----------
        tokens : sequence of int
        each : callable, optional
            Gets the logits after each of the tokens, some at a time, shape (n, vocabulary); the next pass overwrites them.

        Returns
        -------
        tensor, shape (vocabulary,)
            Logits after the last of them.
        """
        size = PREFILL_CHUNK
        if each is not None:
            size = max(1, min(size, LOGITS_AT_ONCE // self._vocabulary))
        for start in range(0, len(tokens), size):
            chunk = tokens[start: start + size]
            width, length = len(chunk), self.cache.length
            self._reserve(width)
            if length and self._fits(width):
                logits = self.runtime.run(self.forward, self.capture, chunk, None)
            else:
                # From an empty cache the model's own causal path is right, and lets SDPA skip the mask.
                mask = None if length == 0 else self._chain_mask(width)
                logits = self._eager(chunk, self._positions[length: length + width], mask, last_only=each is None)
            if each is not None:
                each(logits)
            # Of a prompt's pass the last row alone is kept; a padded pass has rows behind the last token's.
            self._block = list(range(width)) if self._fits(width) and length else []
            self._commit(range(width))
        return logits[-1]

    def extend_rows(self, tokens: Sequence[int], positions: Sequence[int], visible: torch.Tensor) -> torch.Tensor:
        """Run and commit tokens that need not continue each other, such as the next ones of several branches.

        Parameters
        ----------
        tokens, positions : sequence of int, length n
        visible : bool tensor, shape (n, length + n)
            What each attends to of the committed tokens and of these, itself included.

        Returns
        -------
        tensor, shape (n, vocabulary)
            Logits after each.
        """
        self._reserve(len(tokens))
        at = torch.as_tensor(positions, device=self.device)
        logits = self._eager(tokens, at, self.forward.as_mask(visible.to(self.device)), last_only=False)
        self._commit(range(len(tokens)))
        return logits

    def verify(self, root: int, tree: DraftTree) -> torch.Tensor:
        """One pass over the root, the tree's nodes and its passengers, after the committed positions.

        Parameters
        ----------
        root : int
            The last emitted token, whose keys are not cached yet.
        tree : DraftTree

        Returns
        -------
        tensor, shape (n + 1 + p, vocabulary)
            Logits after the root, then after each node, then after each passenger.
        """
        width, length = tree.width, self.cache.length
        self._reserve(width)
        if self._fits(width):
            return self.runtime.run(self.forward, self.capture, tree.block(root), tree)
        if tree.is_causal:
            mask, positions = self._chain_mask(width), self._positions[length: length + width]
        else:
            visible = torch.ones((width, length + width), dtype=torch.bool)
            visible[:, length:] = torch.from_numpy(tree.mask())
            mask = self.forward.as_mask(visible.to(self.device))
            positions = (torch.tensor(tree.block_depths, device=self.device) + length).clamp_(max=self._last_position)
        return self._eager(tree.block(root), positions, mask, last_only=False)

    def commit(self, path: Sequence[int]) -> None:
        """Keep the root and the nodes ``path`` of the tree last verified, and drop the others."""
        self._block = [0, *(node + 1 for node in path)]
        self._commit(self._block)

    def truncate(self, length: int) -> None:
        """Forget committed positions from ``length`` on."""
        self.cache.truncate(length)

    def hidden(self, layer: int) -> torch.Tensor:
        """Captured states of the committed positions, shape (length, d)."""
        return self._states[self._layer(layer)][: self.cache.length]

    def last_hidden(self, layer: int) -> torch.Tensor:
        """The last of :meth:`hidden`, shape (d,)."""
        return self._states[self._layer(layer)][self.cache.length - 1]

    def attention(self) -> torch.Tensor:
        """Captured heads' attention of the last committed position over all committed ones, shape (heads, length)."""
        return self.rows.last(self._block, self.cache.length)

    def _commit(self, block: Sequence[int]) -> None:
        length, count = self.cache.length, len(block)
        if block[-1] != count - 1:
            for states in self._states.values():
                at = on_device([length + i for i in block], states.device)
                states[length: length + count] = states.index_select(0, at)
        self.cache.commit(block)

    def _reserve(self, width: int) -> None:
        self.cache.reserve(width)
        if len(self._positions) < self.cache.capacity:
            self._positions = torch.arange(self.cache.capacity, device=self.device)
            self._strip = None
            for layer, states in self._states.items():
                larger = states.new_empty((self.cache.capacity, states.shape[1]))
                larger[: self.cache.length] = states[: self.cache.length]
                self._states[layer] = larger

    def _fits(self, width: int) -> bool:
        return self.runtime is not None and self.runtime.width_for(width) is not None

    def _chain_mask(self, width: int) -> torch.Tensor | None:
        # One token attends to everything; without a mask SDPA reads grouped keys as they are.
        if width == 1:
            return None
        # Row i of a chain sees columns 0 .. length + i. Every such mask is a window into one strip, whose row i is
        # true up to column capacity + i: no mask is built per step.
        capacity, length = self.cache.capacity, self.cache.length
        if self._strip is None or self._strip.shape[0] < width:
            rows = max(width, 32)
            self._strip = torch.ones((rows, capacity + rows), dtype=torch.bool, device=self.device).tril(capacity)
        window = self._strip[:width, capacity - length: capacity + width]
        return self.forward.as_mask(window) if self._additive else window[None, None]

    def _eager(self, tokens: Sequence[int], positions: torch.Tensor, mask: torch.Tensor | None, last_only: bool):
        if self.runtime is not None:
            self.runtime.passes["eager"] += 1
        return self.forward(self.model, torch.tensor([tokens], device=self.device), positions, mask, last_only)

    def _layer(self, layer: int) -> int:
        return self.layers if layer == LAST else layer

    def _hook_states(self, layer: int) -> None:
        if not 0 <= layer <= self.layers:
            raise ValueError(f"layer is {layer}; expected 0 (embeddings) to {self.layers} (after the final norm), "
                             f"or LAST ({LAST})")

        def store(states: torch.Tensor) -> None:
            # The model may serve others at the same time, such as a draft that is the target itself.
            if not self.forward.running:
                return
            if layer not in self._states:
                self._states[layer] = states.new_empty((self.cache.capacity, states.shape[-1]))
            if self.cache.slots is not None:
                self._states[layer].index_copy_(0, self.cache.slots, states[0])
            else:
                start = self.cache.length
                self._states[layer][start: start + states.shape[1]] = states[0]

        if layer == self.layers:
            base = getattr(self.model, self.model.base_model_prefix)
            hook = base.register_forward_hook(lambda module, args, out: store(out.last_hidden_state))
        else:
            hook = decoder_blocks(self.model)[layer].register_forward_pre_hook(
                lambda module, args, kwargs: store(args[0] if args else kwargs["hidden_states"]), with_kwargs=True)
        self._hooks.append(hook)


def decoder_blocks(model: PreTrainedModel) -> torch.nn.ModuleList:
    """The list of decoder blocks, found by its length and place.

    Raises
    ------
    UnsupportedModel
        If no list of ``num_hidden_layers`` modules is a direct child of the base model.
    """
    base = getattr(model, model.base_model_prefix)
    count = decoder_config(model).num_hidden_layers
    for child in base.children():
        if isinstance(child, torch.nn.ModuleList) and len(child) == count:
            return child
    raise UnsupportedModel(f"{type(model).__name__}: its base model has no list of {count} decoder blocks, so hidden "
                           "states and attention rows cannot be captured; use a drafter that needs neither")


@torch.inference_mode()
def check_model(model: PreTrainedModel) -> None:
    """See once per model that verifying a tree computes what the model computes on each path alone.

    Catches what no list of architectures can: position encodings or attention variants that ignore the tree mask.

    Raises
    ------
    UnsupportedModel
        If the logits differ by more than the rounding of the model's type explains.
    """
    if model in _CHECKED:
        return
    check_kind(model, 12)
    vocabulary = vocabulary_size(model)
    prompt = [(7 * i + 3) % vocabulary for i in range(5)]
    root, a, b, c, d, e = ((11 * i + 5) % vocabulary for i in range(6))
    if a == b:
        raise UnsupportedModel(f"{type(model).__name__} has a vocabulary of {vocabulary} tokens; expected 12 or more")
    tree = DraftTree([a, b, c, d], [-1, -1, 0, 1])
    try:
        pairs = _probe(model, prompt, root, e, tree)
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise UnsupportedModel(f"{type(model).__name__} cannot run a draft tree under a mask and positions of its own: "
                               f"{type(error).__name__}: {error}") from error
    tolerance = 1e-3 if model.dtype in (torch.float32, torch.float64) else 0.15
    for row, path in pairs:
        expected = model(torch.tensor([prompt + path], device=row.device), use_cache=False).logits[0, -1].float()
        spread = (expected - expected.mean()).norm()
        error = (row.float() - expected).norm() / spread.clamp_min(1e-12)
        if not error <= tolerance:
            raise UnsupportedModel(
                f"{type(model).__name__}: logits of a verified draft differ from the model's own by {float(error):.2g} of "
                f"their spread (allowed: {tolerance}); its attention or positions do not follow the tree mask")
    _CHECKED.add(model)


def _probe(model: PreTrainedModel, prompt: list[int], root: int, last: int, tree: DraftTree):
    """Logits of a verified tree, and after a commit out of order, each with the tokens that lead there."""
    with Target(model, 12) as target:
        target.extend(prompt)
        got = target.verify(root, tree)
        pairs = [(got[node + 1], [root, *(tree.tokens[n] for n in tree.path(node))]) for node in range(-1, len(tree))]
        path = tree.path(3)
        target.commit(path)
        pairs.append((target.verify(last, EMPTY)[0], [root, *(tree.tokens[n] for n in path), last]))
    return pairs
