"""One call of the model over a cache: what eager passes and passes with buffers in place have in common."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial

import torch
from transformers import PreTrainedModel

from specdec_lib.decoding import attention
from specdec_lib.decoding.cache import TreeCache
from specdec_lib.decoding.served_models import SLIDING, input_device, is_compiled, unwrapped, windows

#: One mask, or by kind of layer; as the models of transformers take them.
Mask = torch.Tensor | dict[str, torch.Tensor | None]


def in_window(visible: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor, window: int | None) -> torch.Tensor:
    """Restrict what tokens may attend to to a sliding window.

    A token attends to itself and the ``window - 1`` positions before it. It goes by position: a node of a tree has that of its
    depth, wherever it lies in the block.

    Parameters
    ----------
    visible : bool tensor of shape (n, length)
        What each token may attend to, itself included.
    rows : int tensor of shape (n,)
        Positions of the tokens.
    columns : int tensor of shape (length,)
        Positions of what they may attend to.
    window : int or None
        In tokens; None restricts nothing.

    Returns
    -------
    bool tensor of shape (n, length)

    Examples
    --------
    >>> import torch
    >>> from specdec_lib.decoding.forward import in_window
    >>> places = torch.arange(4)
    >>> in_window(torch.ones(4, 4, dtype=torch.bool).tril(), places, places, window=2).int()
    tensor([[1, 0, 0, 0],
            [1, 1, 0, 0],
            [0, 1, 1, 0],
            [0, 0, 1, 1]], dtype=torch.int32)
    """
    return visible if window is None else visible & (columns > rows[:, None] - window)


def last_logits_argument(model: PreTrainedModel, last: int) -> dict[str, int]:
    """The argument that asks a model for the logits of its last positions alone.

    Parameters
    ----------
    model : PreTrainedModel
    last : int

    Returns
    -------
    dict of str to int
        Empty where the model has no such argument.

    Examples
    --------
    >>> from specdec_lib.decoding.forward import last_logits_argument
    >>> last_logits_argument(model, 1)
    {'logits_to_keep': 1}
    """
    named = "logits_to_keep" in inspect.signature(unwrapped(model).forward).parameters
    return {"logits_to_keep": last} if named else {}


class Forward:
    """Calls a model over a cache.

    Passes over a few tokens use the products of :mod:`specdec_lib.decoding.small_batch` where these are faster.

    Parameters
    ----------
    model : PreTrainedModel
    cache : TreeCache
    captures : bool
        Run what ``torch.compile`` wraps as it is, hooks and all.
    reference : bool
        Run what transformers computes.

    Examples
    --------
    >>> import torch
    >>> from specdec_lib.decoding.cache import TreeCache
    >>> from specdec_lib.decoding.forward import Forward
    >>> forward = Forward(model, TreeCache(model.config.num_hidden_layers, capacity=64))
    >>> with torch.inference_mode():
    ...     logits = forward(torch.tensor([prompt]), torch.arange(len(prompt)), mask=None, last_only=True)
    >>> logits.shape
    torch.Size([1, 4096])
    """

    #: Whether tokens without a mask are a chain after the committed ones.
    knows_chains = False
    #: By layer, what takes its states; None where hooks on the model read them.
    shown = None

    def __init__(self, model: PreTrainedModel, cache: TreeCache, captures: bool = False, reference: bool = False):
        self.model, self.cache, self.device = model, cache, input_device(model)
        self.additive = model.config._attn_implementation == "eager"
        self.rows: attention.AttentionRows | None = None
        self._stacked: dict[tuple[int, int], tuple[torch.Tensor, torch.Tensor]] = {}
        self._windows = windows(model)
        self.window = self._windows.get(SLIDING)
        self._last_only = last_logits_argument(model, 1)
        # Its name is ``cache`` since transformers 5.24.
        takes = inspect.signature(type(unwrapped(model)).forward).parameters
        self._cache_argument = "cache" if "cache" in takes else "past_key_values"
        #: Settings that a pass runs within; none on a CPU, as each context takes time.
        self._within = nullcontext
        if self.device.type == "cuda" or (captures and is_compiled(model)):
            self._within = partial(attention.settings, self.device, captures and is_compiled(model))
        elif not reference:
            from specdec_lib.decoding import small_batch  # numba takes most of a second

            fits = small_batch.fits_small_batch(unwrapped(model))
            if fits and small_batch.product_is_faster(torch.get_num_threads()):
                self._within = small_batch.SmallBatchLinear

    @property
    def running(self) -> bool:
        """Whether this thread runs one of its calls: the model may serve others at the same time."""
        return attention.RUNNING.forward is self

    def stacked(self, mask: torch.Tensor, groups: int, length: int) -> torch.Tensor:
        """The mask of grouped heads (:func:`~specdec_lib.decoding.attention.rows_of_groups`), made once a pass."""
        key = (id(mask), groups)
        if key not in self._stacked:
            # The mask is held as well: its id stays its own.
            self._stacked[key] = mask, attention.rows_of_groups(mask[..., :length], groups)
        return self._stacked[key][1]

    def as_mask(
        self, visible: torch.Tensor, rows: torch.Tensor | None = None, columns: torch.Tensor | None = None
    ) -> Mask:
        """Turn ``visible``, shape (n, length), into what the model takes: one mask, or one for each kind of layer.

        ``rows`` and ``columns`` are the positions of the tokens and of what they attend to, for layers with a sliding window.
        """
        if rows is None or self.window is None:
            return self.as_taken(visible)
        return self.by_window(lambda window: self.as_taken(in_window(visible, rows, columns, window)))

    def as_taken(self, visible: torch.Tensor) -> torch.Tensor:
        """A mask of shape (1, 1, n, length) that is added to the scores: SDPA's kernels take no other."""
        dtype = self.model.dtype
        mask = torch.zeros(visible.shape, dtype=dtype, device=self.device)
        return mask.masked_fill_(~visible, torch.finfo(dtype).min)[None, None]

    def by_window(self, make: Callable[[int | None], torch.Tensor | None]) -> Mask:
        """The masks that ``make`` gives for each window; of one kind of layer the mask alone."""
        masks = {window: make(window) for window in self._windows.values()}
        if len(self._windows) == 1:
            return masks[self.window]
        return {kind: masks[window] for kind, window in self._windows.items()}

    def __call__(
        self, ids: torch.Tensor, positions: torch.Tensor, mask: Mask | None, last_only: bool = False
    ) -> torch.Tensor:
        """Run the model on ids (1, n) at positions (n,); logits of shape (n, vocabulary), or of the last token alone."""
        kwargs = {self._cache_argument: self.cache, **(self._last_only if last_only else {})}
        if self.rows is not None:
            self.rows.last_only = last_only
        attention.RUNNING.forward = self
        try:
            with self._within():
                out = self.model(
                    input_ids=ids,
                    attention_mask=mask,
                    position_ids=positions[None],
                    use_cache=True,
                    return_dict=True,
                    **kwargs,
                )
        finally:
            attention.RUNNING.forward = None
            self._stacked.clear()
        return out.logits[0]
