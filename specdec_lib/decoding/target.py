"""The target model: prefill, one pass over a draft tree, what is captured on the way, and the trial whether trees are exact."""

from __future__ import annotations

import copy
import sys
import traceback
import weakref
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from transformers import PreTrainedModel

from specdec_lib.decoding import attention
from specdec_lib.decoding.attention import AttentionRows
from specdec_lib.decoding.cache import ChainCache, TreeCache
from specdec_lib.decoding.contract import LAST, Capture
from specdec_lib.decoding.forward import Forward, Mask
from specdec_lib.decoding.runtime import OF_MODEL, Runtime
from specdec_lib.decoding.served_models import (
    SLIDING,
    WITHIN_WINDOW,
    UnsupportedModel,
    base_model,
    check_kind,
    decoder_blocks,
    decoder_config,
    input_device,
    is_compiled,
    last_position,
    recurrent_layers,
    state_of,
    unwrapped,
    vocabulary_size,
    windows,
)
from specdec_lib.decoding.tree import EMPTY, DraftTree

#: Positions of one prefill pass; bounds the memory of its mask and activations.
PREFILL_CHUNK = 4096
#: Tokens of a chain whose mask is cut from one that is kept: drafts, and not the parts of a prompt.
STRIP_ROWS = 32
#: Room for a draft after prompt and output before a buffer has to grow, in positions.
DRAFT_ROOM = 65
#: How each model was when it was checked.
_CHECKED: weakref.WeakKeyDictionary[PreTrainedModel, list[tuple]] = weakref.WeakKeyDictionary()


class Target:
    """A causal language model with its cache, ready to verify drafts of one sequence.

    Parameters
    ----------
    model : PreTrainedModel
    longest : int
        Tokens that prompt and output may reach.
    capture : Capture
    capacity : int, optional
        Positions that the buffers hold at first, by default ``longest`` and a draft; they grow by half when exceeded. Those of a
        ``runtime`` keep its capacity.
    runtime : Runtime or "transformers", optional
        Runs passes over drafts in place. ``"transformers"`` runs transformers' own forward, without the products of
        :mod:`specdec_lib.decoding.small_batch`.

    Raises
    ------
    UnsupportedModel
        If tree verification would not compute what the model computes, or what is to be captured cannot be.

    Examples
    --------
    >>> import torch
    >>> from specdec_lib import DraftTree
    >>> from specdec_lib.decoding.target import Target
    >>> with torch.inference_mode(), Target(model, longest=64) as target:
    ...     logits = target.extend(prompt)
    ...     root = int(logits.argmax())
    ...     logits = target.verify(root, DraftTree.from_drafts([[5, 6], [5, 8]]))
    ...     target.commit([0])
    ...     print(logits.shape, target.length - len(prompt))
    torch.Size([4, 4096]) 2
    """

    def __init__(
        self,
        model: PreTrainedModel,
        longest: int,
        capture: Capture = Capture(),
        capacity: int | None = None,
        runtime: Runtime | Literal["transformers"] | None = None,
    ):
        check_kind(model, longest)
        capacity = longest + DRAFT_ROOM if capacity is None else capacity
        self.model, inner, config = model, unwrapped(model), decoder_config(model)
        self.layers = config.num_hidden_layers
        # The most likely tokens are read off the logits: no pass differs for them.
        self.capture = replace(capture, topk=0, prompt=False)
        reference = runtime == "transformers"
        runtime = None if reference else OF_MODEL.get(inner) if runtime is None else runtime
        # Some runtimes have a forward of their own, others buffers for transformers'.
        makes, runtime = (runtime, None) if hasattr(runtime, "forward") else (None, runtime)
        if not isinstance(runtime, Runtime | None):
            raise ValueError(f"runtime is {runtime!r}; expected a Runtime, 'transformers' or None")
        self.runtime = runtime
        if runtime is not None:
            runtime.take(self, inner, self.capture, longest)
        self.cache: TreeCache
        if any(recurrent := recurrent_layers(model)):
            self.cache = ChainCache(recurrent, capacity)
        else:
            self.cache = TreeCache(self.layers, capacity) if runtime is None else runtime.cache
        capacity = self.cache.capacity
        if makes is None:
            self.forward = Forward(model, self.cache, captures=self.capture != Capture(), reference=reference)
        else:
            self.forward = makes.forward(inner, self.cache, self.capture)
        self.device = self.forward.device
        #: Where the weights lie when they are used.
        self.devices = {self.device, *(w.device for w in model.parameters() if w.device.type != "meta")}
        # Drafts end at the model's last position; auxiliary tokens may not.
        self._last_position = last_position(model, sys.maxsize - 1)
        self._strips: dict[int | None, torch.Tensor] = {}
        self._positions = torch.arange(capacity, device=self.device)
        #: Positions of the committed slots where they are not their indices, after :meth:`extend_rows`.
        self._placed: torch.Tensor | None = None
        self.rows: AttentionRows | None = None
        #: Places in the last pass of the last committed token and of what it attended to there.
        self._seen: list[int] = []
        self._root, self._tree = 0, EMPTY
        #: What takes hooks and functions of ours off the model.
        self._undo: list[Callable[[], None]] = []
        #: Layers whose states no pass has shown yet.
        self._unseen = set(map(self._layer, capture.layers))
        try:
            for layer in sorted(self._unseen):
                self._hook_states(layer)
            if capture.heads:
                self.rows = self.forward.rows = AttentionRows(inner, capture.heads)
                self._undo.append(self.rows.close)
            shared = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
            if makes is None and not self.forward.additive and shared < config.num_attention_heads:
                self._undo.append(attention.install(inner, self))
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Target:
        return self

    def __exit__(self, kind, *exc) -> None:
        self.close(failed=kind is not None)

    def close(self, failed: bool = False) -> None:
        """Take the hooks off the model, and give the runtime back; after a failure its buffers may hold NaN."""
        while self._undo:
            self._undo.pop()()
        if self.runtime is not None:
            self.runtime.give_back(failed)

    @property
    def length(self) -> int:
        """Committed positions."""
        return self.cache.length

    def extend(
        self, tokens: Sequence[int] | torch.Tensor, each: Callable[[torch.Tensor], None] | None = None
    ) -> torch.Tensor:
        """Run and commit tokens that continue the committed ones (prefill, or a draft model's next token).

        Parameters
        ----------
        tokens : sequence of int, or int64 tensor on the model's device, length n
        each : callable, optional
            Gets the logits after all of them, in order, in parts of shape (m, vocabulary).

        Returns
        -------
        float tensor of shape (vocabulary,)
            The logits after the last token.
        """
        for start in range(0, len(tokens), PREFILL_CHUNK):
            chunk = tokens[start : start + PREFILL_CHUNK]
            width, length = len(chunk), self.cache.length
            self._reserve(width)
            if length and self._fits(width) and each is None:
                logits = self.runtime.run(self.forward, self.capture, chunk, None)
            else:
                # From an empty cache the model's own causal path is right, and lets SDPA skip the mask.
                mask = None if length == 0 else self._chain_mask(width)
                logits = self._eager(chunk, self._positions[length : length + width], mask, last_only=each is None)
            if each is not None:
                each(logits)
            if length == 0:
                self._check_shown()
            # Of a prompt's pass the last row alone is kept; a padded pass has rows behind the last token's.
            self._seen = list(range(width)) if self._fits(width) and length else []
            self.cache.commit(range(width))
        return logits[-1]

    def extend_rows(self, tokens: Sequence[int], positions: Sequence[int], visible: torch.Tensor) -> torch.Tensor:
        """Run and commit n tokens that need not continue each other.

        Parameters
        ----------
        tokens, positions : sequence of int, length n
        visible : bool tensor of shape (n, length + n)
            What each attends to of the committed tokens and of these, itself included.

        Returns
        -------
        float tensor of shape (n, vocabulary)
            The logits after each.
        """
        self._check_rows("this asks for several branches at once", "a model with attention alone")
        self._reserve(len(tokens))
        length, at = self.cache.length, torch.as_tensor(positions, device=self.device)
        if self._placed is None:
            self._placed = self._positions.clone()
        self._placed[length : length + len(tokens)] = at
        mask = self.forward.as_mask(visible.to(self.device), at, self._placed[: length + len(tokens)])
        logits = self._eager(tokens, at, mask, last_only=False)
        self.cache.commit(range(len(tokens)))
        return logits

    def verify(self, root: int, tree: DraftTree) -> torch.Tensor:
        """One pass over the root, n nodes and p auxiliary tokens.

        Parameters
        ----------
        root : int
            The last token, which is not committed yet.
        tree : DraftTree

        Returns
        -------
        float tensor of shape (1 + n + p, vocabulary)
            The logits after each.
        """
        width, length = tree.width, self.cache.length
        self._root, self._tree = root, tree
        if not tree.is_causal:
            self._check_rows("the drafter proposes trees", "PromptLookup, PromptLookupHidden or a draft model")
        self._reserve(width)
        if self._fits(width):
            return self.runtime.run(self.forward, self.capture, tree.block(root), tree)
        if tree.is_causal:
            mask, positions = self._chain_mask(width), self._positions[length : length + width]
        else:
            visible = torch.ones((width, length + width), dtype=torch.bool, device="cpu")
            visible[:, length:] = torch.from_numpy(tree.mask())
            positions = torch.tensor(tree.block_depths, device=self.device) + length
            columns = None
            if self._beyond(length + max(tree.block_depths) + 1):
                columns = torch.cat([self._positions[:length], positions])
            mask = self.forward.as_mask(visible.to(self.device), None if columns is None else positions, columns)
            positions = positions.clamp(max=self._last_position)
        return self._eager(tree.block(root), positions, mask, last_only=False)

    def commit(self, path: Sequence[int]) -> None:
        """Keep the root and the nodes ``path`` of the tree last verified, and drop the others."""
        block = [0, *(node + 1 for node in path)]
        if self.rows is not None:
            # What the last token of the path attended to. In a batch of drafts, whose equal prefixes are nodes several times,
            # that need not be what is committed.
            self._seen = [0, *(node + 1 for node in self._tree.path(path[-1] if len(path) else -1))]
        if isinstance(self.cache, ChainCache) and len(block) <= len(self._tree):
            self.cache.rewind()
            self.extend(self._tree.block(self._root)[: len(block)])
        else:
            self.cache.commit(block)

    def truncate(self, length: int) -> None:
        """Forget committed positions from ``length`` on."""
        self.cache.truncate(length)
        if self._placed is not None:
            self._placed[length:] = self._positions[length:]

    def hidden(self, layer: int) -> torch.Tensor:
        """Captured states of the committed positions, shape (length, d)."""
        return self.cache.states[self._layer(layer)][: self.cache.length]

    def last_hidden(self, layer: int) -> torch.Tensor:
        """The last of :meth:`hidden`, shape (d,)."""
        return self.cache.states[self._layer(layer)][self.cache.length - 1]

    def attention(self) -> torch.Tensor:
        """Captured heads' attention of the last committed position over all committed ones, shape (heads, length)."""
        rows = self.rows.last(self._seen, self.cache.length)
        return rows.clone() if rows.is_inference() else rows  # a copy outside of inference mode may be trained on

    def _reserve(self, width: int) -> None:
        self.cache.reserve(width)
        if len(self._positions) < self.cache.capacity:
            self._positions = torch.arange(self.cache.capacity, device=self.device)
            self._strips = {}
            if self._placed is not None:
                self._placed = torch.cat([self._placed, self._positions[len(self._placed) :]])

    def _check_rows(self, what: str, instead: str) -> None:
        if isinstance(self.cache, ChainCache):
            name = type(unwrapped(self.model)).__name__
            raise UnsupportedModel(f"{name} has layers with one state of the whole text, but {what}; use {instead}")

    def _beyond(self, length: int) -> bool:
        """Whether some layer attends to less than all of a sequence."""
        return self.forward.window is not None and length > self.forward.window

    def _fits(self, width: int) -> bool:
        return self.runtime is not None and self.runtime.width_for(width) is not None

    def _chain_mask(self, width: int) -> Mask | None:
        if self.forward.knows_chains:
            return None
        if not self._beyond(self.cache.length + width):
            return self._chain_window(width, None)
        return self.forward.by_window(lambda window: self._chain_window(width, window))

    def _chain_window(self, width: int, window: int | None) -> torch.Tensor | None:
        # One token attends to everything; without a mask SDPA reads grouped keys as they are.
        if width == 1 and window is None:
            return None
        capacity, length = self.cache.capacity, self.cache.length
        if width > STRIP_ROWS:
            return self._causal(width, length, window)
        # Each narrower mask of a chain is a part of one strip, copied as CUDA reads 16 bytes at once (pytorch/pytorch#183484).
        if window not in self._strips:
            self._strips[window] = self._causal(STRIP_ROWS, capacity, window)
        return self._strips[window][..., :width, capacity - length : capacity + width].contiguous()

    def _causal(self, width: int, before: int, window: int | None) -> torch.Tensor:
        """The mask of ``width`` tokens after ``before`` others: row i sees columns 0 to before + i, or the window's."""
        visible = torch.ones((width, before + width), dtype=torch.bool, device=self.device).tril(before)
        return self.forward.as_taken(visible if window is None else visible.triu(before - window + 1))

    def _eager(self, tokens: Sequence[int] | torch.Tensor, positions: torch.Tensor, mask: Mask | None, last_only: bool):
        if self.runtime is not None:
            self.runtime.passes["eager"] += 1
        # By way of numpy, which reads a list three times faster.
        ids = (
            tokens if isinstance(tokens, torch.Tensor) else torch.from_numpy(np.array(tokens, np.int64)).to(self.device)
        )
        return self.forward(ids[None], positions, mask, last_only)

    def _check_shown(self) -> None:
        """After the first pass: what was asked for must have been there to be read."""
        name = type(unwrapped(self.model)).__name__
        if self._unseen:
            raise UnsupportedModel(f"{name} showed no states of layers {sorted(self._unseen)}; use another drafter")
        if self.rows is not None and any(row is None for row in self.rows.held()):
            raise UnsupportedModel(f"{name} has its own attention, whose rows cannot be read; use PromptLookupHidden")

    def _layer(self, layer: int) -> int:
        return self.layers if layer == LAST else layer

    def _hook_states(self, layer: int) -> None:
        if not 0 <= layer <= self.layers:
            raise ValueError(f"layer is {layer}; expected 0 (embeddings) to {self.layers} (final norm), or {LAST}")
        if layer < self.layers and getattr(decoder_config(self.model), "altup_num_inputs", 1) > 1:
            raise UnsupportedModel(f"{type(unwrapped(self.model)).__name__} has several states; capture LAST alone")

        # The model may serve others at the same time: another thread, or a draft that is the target itself. A pass of
        # another thread may find the hook before torch has noted, or after it has forgotten, that it takes ``kwargs``.
        def before_block(module: torch.nn.Module, args: tuple, kwargs: dict | None = None) -> None:
            if self.forward.running:
                store(args[0] if args else kwargs["hidden_states"])

        def after_norm(module: torch.nn.Module, args: tuple, out) -> None:
            if self.forward.running:
                store(out.last_hidden_state)

        def store(states: torch.Tensor) -> None:
            if self._unseen:
                self._unseen.discard(layer)
            self.cache.store(layer, states[0])

        if self.forward.shown is not None:
            self.forward.shown[layer] = store
            return
        if layer == self.layers:
            hook = base_model(self.model).register_forward_hook(after_norm)
        else:
            hook = decoder_blocks(self.model)[layer].register_forward_pre_hook(before_block, with_kwargs=True)
        self._undo.append(hook.remove)


#: How far two computations in float32, or in half precision, may differ: a share of the spread of the logits.
TOLERANCE, TOLERANCE_HALF = 1e-3, 0.15
#: The same for packed weights, whose states are rounded to whole numbers of 16 bits.
TOLERANCE_WHOLE = 1e-2
HALF = (torch.float16, torch.bfloat16)
#: Window for which a windowed model is checked: with so few tokens it is passed soon.
_CHECKED_WINDOW = 3


def check_model(model: PreTrainedModel) -> None:
    """Check that verifying a tree computes what the model computes on each path alone: once, and again when the model was changed.

    Catches what no list of architectures can: position encodings or attention variants that ignore the tree mask. The
    model is run as it is written and in its own precision. One with a sliding window is also run beyond it, on a copy with the
    same weights and a window of a few tokens, and is served within its window alone where that fails.

    Parameters
    ----------
    model : PreTrainedModel

    Raises
    ------
    UnsupportedModel
        If the model cannot run by itself, or the logits differ by more than rounding explains.

    Examples
    --------
    >>> from specdec_lib.decoding.target import check_model
    >>> check_model(model)
    """
    state = state_of(model)
    if _CHECKED.get(model) == state:
        return
    check_kind(model, 12)
    inside = unwrapped(model)
    if inside in OF_MODEL and OF_MODEL[inside].is_current:
        return  # its own forward was compared with transformers' layers when it was loaded
    WITHIN_WINDOW.discard(inside)
    as_written = attention.uncompiled() if is_compiled(inside) else nullcontext()
    with torch.inference_mode(), as_written, torch.autocast(input_device(inside).type, enabled=False):
        _check(inside)
        if getattr(model, "_orig_mod", model) is not inside:
            _check_wrapper(model, inside)
    _CHECKED[model] = state


def _check(model: PreTrainedModel) -> None:
    name, vocabulary = type(model).__name__, vocabulary_size(model)
    prompt = [(7 * i + 3) % vocabulary for i in range(5)]
    root, a, b, c, d, e = ((11 * i + 5) % vocabulary for i in range(6))
    if a == b:
        raise UnsupportedModel(f"{name} has a vocabulary of {vocabulary} tokens; expected 12 or more")
    texts = [*prompt, root, a, c], [*prompt, root, b, d, e]
    failed = f"{name} cannot run: its own forward over {len(texts[1])} tokens, without a draft, fails with"
    if not bool(torch.isfinite(_tried(failed, _own_logits, model, texts[1])).all()):
        raise UnsupportedModel(_why_not_finite(model))
    tree = DraftTree([a, b, c, d], [-1, -1, 0, 1])
    failed = f"{name} cannot run a draft tree under a mask and positions of its own:"
    problem = _tried(failed, _difference, model, texts, len(prompt), tree)
    if problem is not None:
        raise UnsupportedModel(f"{name}: {problem}")
    if windows(model).get(SLIDING) is not None:
        try:
            problem = _tried("", lambda: _difference(_with_window(model, _CHECKED_WINDOW), texts, len(prompt), tree))
        except UnsupportedModel as error:
            problem = str(error)
        if problem is not None:
            WITHIN_WINDOW.add(model)


def _check_wrapper(model: PreTrainedModel, inside: PreTrainedModel) -> None:
    """Reject a wrapper, such as PEFT's, that computes something else than the model inside, which passes are run on."""
    name, text = type(model).__name__, [(7 * i + 3) % vocabulary_size(inside) for i in range(8)]
    own = _tried(f"{name} cannot run:", _own_logits, model, text)
    error = _relative(own, _own_logits(inside, text))
    if not error <= (TOLERANCE_HALF if inside.dtype in HALF else TOLERANCE):
        raise UnsupportedModel(
            f"{name} gives other logits than the {type(inside).__name__} inside, by {error:.2g} of their spread: it does more than "
            "its adapters' weights say; merge the adapter into the model, or use one that changes weights alone, such as LoRA"
        )


def _relative(rows: torch.Tensor, expected: torch.Tensor) -> float:
    """By how much of the spread of the logits they differ, at most; NaN of NaN, which compares as neither larger nor smaller."""
    spread = (expected - expected.mean(-1, keepdim=True)).norm(dim=-1).clamp_min(1e-12)
    return float(((rows - expected).norm(dim=-1) / spread).max())


def _tried(what: str, call: Callable, *arguments):
    """Return the call's result. Any failure but a lack of memory becomes an UnsupportedModel that says what was tried."""
    try:
        return call(*arguments)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        told = f"{type(error).__name__}: {error}"
        if not str(error):
            at = traceback.extract_tb(error.__traceback__)[-1]
            told = f"{type(error).__name__} in {at.name} ({Path(at.filename).name}, line {at.lineno}: {at.line})"
        raise UnsupportedModel(f"{what} {told}") from error


def _own_logits(model: PreTrainedModel, text: list[int]) -> torch.Tensor:
    """Logits after each token, computed without a cache."""
    return model(torch.tensor([text], device=input_device(model)), use_cache=False).logits[0].float()


def _why_not_finite(model: PreTrainedModel) -> str:
    name = type(model).__name__
    for key, weights in model.named_parameters():
        known = weights.device.type != "meta" and weights.dtype in (*HALF, torch.float32, torch.float64)
        if known and not torch.isfinite(weights).all():
            return (
                f"{name} gives logits that are not finite: its weight {key} holds NaN or infinite values; the "
                "checkpoint is damaged, or its values do not fit the type it was loaded in"
            )
    told = "overflows: load it in bfloat16 or float32" if model.dtype in HALF else "gives NaN or infinite values"
    return f"{name} gives logits that are not finite, though its weights are: its arithmetic in {model.dtype} {told}"


def _with_window(model: PreTrainedModel, window: int) -> PreTrainedModel:
    """A copy with the same weights in memory, whose sliding window is another."""
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    other = copy.deepcopy(model, shared)
    # A composite model's parts have configurations of their own.
    before = decoder_config(other).sliding_window
    for config in [decoder_config(other), *(part.config for part in other.modules() if hasattr(part, "config"))]:
        if getattr(config, "sliding_window", None) == before:
            config.sliding_window = window
    return other


def _difference(model: PreTrainedModel, texts: tuple[list[int], list[int]], start: int, tree: DraftTree) -> str | None:
    """Describe how verified drafts differ from the model's own logits; None where rounding explains it.

    ``texts`` are the prompt, of ``start`` tokens, the root and a path of the tree each, the second with the token after it.
    """
    kinds = {weights.dtype for weights in model.parameters()}
    tolerance = TOLERANCE_HALF if kinds & {*HALF} else TOLERANCE_WHOLE if torch.uint8 in kinds else TOLERANCE

    first, second = (_own_logits(model, text) for text in texts)
    error = _relative(_own_logits(model, texts[1][:-2]), second[:-2])
    if not error <= tolerance:
        kind = next((type(module) for module in model.modules() if "quantized" in type(module).__module__), None)
        trained = next((name for name, module in model.named_modules() if module.training), None)
        why = "it is not causal"
        if kind is not None:
            why = (
                f"its {kind.__module__}.{kind.__name__} scales what it rounds by all tokens of a pass; use float weights, or "
                "quantise the weights alone"
            )
        elif trained is not None:
            why = f"its part {trained} is in training mode, where dropout changes the output; call model.eval() first"
        return (
            f"its own logits after a token differ by {error:.2g} of their spread (allowed: {tolerance}) when other tokens "
            f"follow, so that no draft can be verified in one pass: {why}"
        )
    own = "transformers" if model in OF_MODEL else None  # of a changed model, whose runtime says so itself
    with Target(model, 12, runtime=own) as target:
        target.extend(texts[0][:start])
        expected = [first[start], first[start + 1], second[start + 1], first[start + 2], second[start + 2]]
        path = tree.path(3)
        if isinstance(target.cache, ChainCache):
            # The path, and a token after it that is not kept.
            tree, path = DraftTree.chain([*texts[1][start + 1 : -1], texts[0][-1]]), [0, 1]
            expected = [*second[start : start + 3]]
        # A copy: what is verified next may be written to the same memory.
        got = target.verify(texts[0][start], tree)[: len(expected)].clone()
        target.commit(path)
        after = target.verify(texts[1][-1], EMPTY)
    expected = torch.stack([*expected, second[start + 3]])
    error = _relative(torch.cat([got, after]).float().to(expected.device), expected)
    if not error <= tolerance:
        return (
            f"logits of a verified draft differ from the model's own by {error:.2g} of their spread (allowed: "
            f"{tolerance}); its attention or positions do not follow the tree mask"
        )
    return None
