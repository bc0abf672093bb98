"""The target model: prefill, one pass over a draft tree, and what is captured on the way."""
from __future__ import annotations

import inspect
import weakref
from collections.abc import Sequence

import torch
from transformers import PreTrainedModel

from .attention_rows import AttentionRows
from .cache import TreeCache
from .contract import LAST, Capture
from .tree import EMPTY, DraftTree

#: Positions of one prefill pass; bounds the memory of its mask and activations.
PREFILL_CHUNK = 4096
#: Room for a draft behind prompt and output before a buffer has to grow, in positions.
DRAFT_ROOM = 65
_SERVED_LAYER_TYPES = {"full_attention", "sliding_attention"}
_CHECKED: weakref.WeakSet = weakref.WeakSet()


class UnsupportedModel(ValueError):
    """The model cannot be decoded by tree verification; the message says why."""


def decoder_config(model: PreTrainedModel):
    """The text decoder's configuration (that of the language part for a composite model)."""
    return model.config.get_text_config(decoder=True)


def soft_capped(config) -> bool:
    """Whether attention scores are capped (Gemma 2), which SDPA cannot do and some releases of transformers leave out."""
    return bool(getattr(config.get_text_config(decoder=True), "attn_logit_softcapping", None))


def context_limit(model: PreTrainedModel) -> int | None:
    """Longest sequence the model serves in tokens, None where it states none."""
    return getattr(decoder_config(model), "max_position_embeddings", None)


def exact_length(model: PreTrainedModel) -> int | None:
    """Longest sequence within which every token attends to all before it, at positions that stay as they are.

    That of a sliding window, or where a long-context rotary embedding changes over; None where there is neither.
    """
    config = decoder_config(model)
    bounds = []
    window = getattr(config, "sliding_window", None)
    windowed = "sliding_attention" in (getattr(config, "layer_types", None) or ["sliding_attention"])
    if window and windowed and getattr(config, "use_sliding_window", True):
        bounds.append(window)
    rope = getattr(config, "rope_parameters", None) or {}
    for entry in (rope, *(v for v in rope.values() if isinstance(v, dict))):
        if entry.get("rope_type") == "longrope" and entry.get("original_max_position_embeddings"):
            bounds.append(entry["original_max_position_embeddings"])
    return min(bounds, default=None)


def vocabulary_size(model: PreTrainedModel) -> int:
    """Number of token ids the model embeds."""
    return model.get_input_embeddings().weight.shape[0]


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

    Raises
    ------
    UnsupportedModel
        If tree verification would not compute what the model computes.
    """

    def __init__(self, model: PreTrainedModel, longest: int, capture: Capture = Capture(), capacity: int | None = None):
        _check_kind(model, longest)
        capacity = longest + DRAFT_ROOM if capacity is None else capacity
        self.model = model
        self.device = model.get_input_embeddings().weight.device
        self.layers = decoder_config(model).num_hidden_layers
        self.cache = TreeCache(self.layers, capacity)
        self._additive = model.config._attn_implementation == "eager"
        self._keep = "logits_to_keep" in inspect.signature(model.forward).parameters
        self._strip: torch.Tensor | None = None
        self._positions = torch.arange(capacity, device=self.device)
        self._states: dict[int, torch.Tensor] = {}
        self._hooks: list = []
        self._rows: AttentionRows | None = None
        self._block: list[int] = []
        self._running = False
        try:
            for layer in dict.fromkeys(map(self._layer, capture.layers)):
                self._hook_states(layer)
            if capture.heads:
                self._rows = AttentionRows(model, capture.heads)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Target:
        return self

    def __exit__(self, *exc) -> None:
        self.close()

    def close(self) -> None:
        """Take the hooks off the model."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        if self._rows is not None:
            self._rows.close()

    @property
    def length(self) -> int:
        """Committed positions."""
        return self.cache.length

    def extend(self, tokens: Sequence[int]) -> torch.Tensor:
        """Run and commit tokens that continue the committed ones (prefill, or a draft model's next token).

        Returns
        -------
        tensor, shape (vocabulary,)
            Logits after the last of them.
        """
        for start in range(0, len(tokens), PREFILL_CHUNK):
            chunk = tokens[start: start + PREFILL_CHUNK]
            width, length = len(chunk), self.cache.length
            self._reserve(width)
            # From an empty cache the model's own causal path is right, and lets SDPA skip the mask.
            mask = None if length == 0 else self._chain_mask(width)
            logits = self._forward(chunk, self._positions[length: length + width], mask, last_only=True)
            self._block = []
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
        logits = self._forward(tokens, at, self._as_mask(visible.to(self.device)), last_only=False)
        self._commit(range(len(tokens)))
        return logits

    def verify(self, root: int, tree: DraftTree) -> torch.Tensor:
        """One pass over the root and the tree's nodes, behind the committed positions.

        Parameters
        ----------
        root : int
            The last emitted token, whose keys are not cached yet.
        tree : DraftTree

        Returns
        -------
        tensor, shape (n + 1, vocabulary)
            Logits after the root, then after each node.
        """
        width, length = len(tree) + 1, self.cache.length
        self._reserve(width)
        if tree.is_chain:
            mask, positions = self._chain_mask(width), self._positions[length: length + width]
        else:
            visible = torch.ones((width, length + width), dtype=torch.bool)
            visible[:, length:] = torch.from_numpy(tree.mask())
            mask = self._as_mask(visible.to(self.device))
            positions = torch.tensor([0, *tree.depths], device=self.device) + length
        return self._forward([root, *tree.tokens], positions, mask, last_only=False)

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
        return self._states[layer][self.cache.length - 1]

    def attention(self) -> torch.Tensor:
        """Captured heads' attention of the last committed position over all committed ones, shape (heads, length)."""
        return self._rows.last(self._block, self.cache.length)

    def _commit(self, block: Sequence[int]) -> None:
        length, count = self.cache.length, len(block)
        if block[-1] != count - 1:
            for states in self._states.values():
                states[length: length + count] = states[[length + i for i in block]]
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

    def _as_mask(self, visible: torch.Tensor) -> torch.Tensor:
        if self._additive:
            dtype = self.model.dtype
            visible = torch.zeros(visible.shape, dtype=dtype, device=self.device).masked_fill_(
                ~visible, torch.finfo(dtype).min)
        return visible[None, None]

    def _chain_mask(self, width: int) -> torch.Tensor:
        # Row i of a chain sees columns 0 .. length + i. Every such mask is a window into one strip, whose row i is
        # true up to column capacity + i: no mask is built per step.
        capacity, length = self.cache.capacity, self.cache.length
        if self._strip is None or self._strip.shape[0] < width:
            rows = max(width, 32)
            self._strip = torch.ones((rows, capacity + rows), dtype=torch.bool, device=self.device).tril(capacity)
        window = self._strip[:width, capacity - length: capacity + width]
        return self._as_mask(window) if self._additive else window[None, None]

    def _forward(self, tokens: Sequence[int], positions: torch.Tensor, mask: torch.Tensor | None, last_only: bool):
        kwargs = {"logits_to_keep": 1} if last_only and self._keep else {}
        ids = torch.tensor([tokens], device=self.device)
        if self._rows is not None:
            self._rows.begin(mask, last_only)
        self._running = True
        out = self.model(input_ids=ids, attention_mask=mask, position_ids=positions[None], past_key_values=self.cache,
                         use_cache=True, return_dict=True, **kwargs)
        self._running = False
        return out.logits[0]

    def _layer(self, layer: int) -> int:
        return self.layers if layer == LAST else layer

    def _hook_states(self, layer: int) -> None:
        if not 0 <= layer <= self.layers:
            raise ValueError(f"layer is {layer}; expected 0 (embeddings) to {self.layers} (after the final norm), "
                             f"or LAST ({LAST})")

        def store(states: torch.Tensor) -> None:
            # The model may serve others at the same time, such as a draft that is the target itself.
            if not self._running:
                return
            if layer not in self._states:
                self._states[layer] = states.new_empty((self.cache.capacity, states.shape[-1]))
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


def _check_kind(model: PreTrainedModel, longest: int) -> None:
    name, config = type(model).__name__, decoder_config(model)
    if model.config.is_encoder_decoder:
        raise UnsupportedModel(f"{name} is an encoder-decoder model; expected a decoder-only causal language model")
    if model.training:
        raise UnsupportedModel(f"{name} is in training mode, where dropout changes the output; call model.eval() first")
    odd = sorted(set(getattr(config, "layer_types", None) or []) - _SERVED_LAYER_TYPES)
    if odd:
        raise UnsupportedModel(f"{name} has layers of type {', '.join(odd)}; tree verification needs attention over the "
                               f"whole context ({' or '.join(sorted(_SERVED_LAYER_TYPES))})")
    if model.config._attn_implementation not in ("sdpa", "eager"):
        raise UnsupportedModel(f"{name} uses attn_implementation={model.config._attn_implementation!r}, which takes no tree "
                               "mask; load it with attn_implementation='sdpa' (or 'eager')")
    if model.config._attn_implementation == "sdpa" and soft_capped(model.config):
        raise UnsupportedModel(f"{name} caps its attention scores, which SDPA does not do; load it with "
                               "attn_implementation='eager', as specdec_lib.load_model does")
    if model.config.model_type == "bloom" or any(
            getattr(place, "alibi", False) for place in (config, getattr(config, "attn_config", None))):
        raise UnsupportedModel(f"{name} has ALiBi position biases, which follow the place in the block and not the path "
                               "in the tree; choose a model with rotary or learned positions")
    bound = exact_length(model)
    if bound is not None and longest > bound:
        raise UnsupportedModel(f"{name} attends to the last {bound} tokens only, or changes its positions after so many, but "
                               f"prompt and output may take {longest}; shorten them to fit")


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
    _check_kind(model, 12)
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
