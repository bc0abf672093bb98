"""A key-value cache whose buffers are allocated once and written in place.

Transformers' dynamic cache concatenates at each step and its ``crop`` changed meaning in 5.20; this one needs neither.
A verified block is written after the committed length; committing moves the accepted path's rows into place. Which rows a
commit keeps is decided here alone, for keys, values and captured states. :class:`ChainCache` adds layers without rows, whose one
state holds the whole text.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin, LinearAttentionLayer


def on_device(values: Sequence[float], device: torch.device, dtype: torch.dtype | None = None) -> torch.Tensor:
    """A tensor of numbers of the host, queued for a GPU from pinned memory so that the host does not wait for it.

    Parameters
    ----------
    values : sequence of float
    device : torch.device
    dtype : torch.dtype, optional

    Returns
    -------
    tensor of shape (len(values),)

    Examples
    --------
    >>> import torch
    >>> from specdec_lib.decoding.cache import on_device
    >>> on_device([3, 5], torch.device("cpu"))
    tensor([3, 5])
    """
    # Made on the host, whatever the caller's default device is.
    tensor = torch.tensor(values, dtype=dtype, device="cpu")
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def _trainable(states: torch.Tensor, rows: int) -> torch.Tensor:
    """A buffer for so many states, which a drafter may train on, unlike what passes allocate in inference mode."""
    with torch.inference_mode(False):
        return states.new_empty((rows, states.shape[-1]))


class _Slots(CacheLayerMixin):
    """Keys and values of one layer: views into buffers owned by the cache."""

    is_sliding = False
    is_compileable = False

    def __init__(self, owner: TreeCache, index: int):
        super().__init__()
        # The cache holds its layers: a reference back would keep the buffers until a garbage collection.
        self.owner, self.index = weakref.proxy(owner), index

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.keys, self.values = self.owner.allocate(self.index, key_states, value_states)
        self.is_initialized = True

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args, **kwargs):
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        if self.owner.slots is not None:
            self.keys.index_copy_(2, self.owner.slots, key_states)
            self.values.index_copy_(2, self.owner.slots, value_states)
            return self.keys, self.values
        start = self.owner.length
        end = start + key_states.shape[-2]
        self.keys[:, :, start:end] = key_states
        self.values[:, :, start:end] = value_states
        return self.keys[:, :, :end], self.values[:, :, :end]

    def get_seq_length(self, *args) -> int:
        # Under slots nothing may depend on the step; positions and mask are given to the model then.
        return self.owner.length if self.owner.slots is None else 0

    def get_mask_sizes(self, query) -> tuple[int, int]:
        if self.owner.slots is not None:
            return self.owner.capacity, 0
        # transformers 5.17 hands over the query's positions, later releases its length.
        width = query.shape[0] if isinstance(query, torch.Tensor) else query
        return self.owner.length + width, 0

    def get_max_length(self) -> int:
        return self.owner.capacity

    get_max_cache_shape = get_max_length


class TreeCache(Cache):
    """Preallocated cache of every layer, with in-place commit of an accepted path.

    ``length`` positions are committed; a forward pass writes after them. ``slots``, int64 (width,), are where the next pass
    writes, attending over the whole buffers; None, the default, is right after the committed positions.

    Parameters
    ----------
    layers : int
    capacity : int
        Positions that the buffers hold.
    static : bool
        Whether the buffers stay where they are and begin as zeros, because a pass over slots reads all of them.

    Examples
    --------
    A draft of two branches after one token: 1 continues the root, 2 does so too, and 3 continues 2. The path 2, 3 is accepted:

    >>> import torch
    >>> from specdec_lib.decoding.cache import TreeCache
    >>> cache = TreeCache(layers=1, capacity=8)
    >>> keys = torch.tensor([0.0, 1.0, 2.0, 3.0]).reshape(1, 1, 4, 1)
    >>> written = cache.update(keys, -keys, layer_idx=0)
    >>> cache.commit([0, 2, 3])
    >>> cache.length, cache.layers[0].keys[0, 0, :3, 0]
    (3, tensor([0., 2., 3.]))
    """

    def __init__(self, layers: int, capacity: int, static: bool = False):
        super().__init__(layers=[_Slots(self, i) for i in range(layers)])
        self.length = 0
        self.capacity = capacity
        #: How many layers have keys and values.
        self._rows_in = layers
        self.slots: torch.Tensor | None = None
        self._static = static
        # Keys and values of all layers of one shape lie in one buffer, so that a commit is one operation.
        self._arenas: dict[tuple, torch.Tensor] = {}
        self._members: dict[tuple, list[tuple[int, str]]] = {}
        #: Captured states by layer, (capacity, d): a row per position, as keys and values have.
        self.states: dict[int, torch.Tensor] = {}

    def allocate(self, index: int, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Make the buffers of a layer.

        Parameters
        ----------
        index : int
            The layer.
        keys, values : tensors of shape (1, heads, n, d)
            Its first ones, whose heads, widths, dtype and device the buffers take.

        Returns
        -------
        keys, values : tensors of shape (1, heads, capacity, d)
            Views into the buffers.
        """
        views = []
        for name, states in (("keys", keys), ("values", values)):
            key = (states.shape[1], states.shape[3], states.dtype, states.device)
            members = self._members.setdefault(key, [])
            arena = self._arenas.get(key)
            if arena is None:
                make = torch.zeros if self._static else torch.empty
                arena = self._arenas[key] = make(
                    (2 * self._rows_in, 1, states.shape[1], self.capacity, states.shape[3]),
                    dtype=states.dtype,
                    device=states.device,
                )
            views.append(arena[len(members)])
            members.append((index, name))
        return views[0], views[1]

    @property
    def arena(self) -> torch.Tensor:
        """The buffer of all layers, where their keys and values are of one shape: (2 * layers, 1, heads, capacity, d)."""
        (arena,) = self._arenas.values()
        return arena

    def store(self, layer: int, states: torch.Tensor) -> None:
        """Write captured states of a pass where its keys and values are written.

        Parameters
        ----------
        layer : int
        states : tensor of shape (width, d)
        """
        if layer not in self.states:
            self.states[layer] = _trainable(states, self.capacity)
        if self.slots is not None:
            self.states[layer].index_copy_(0, self.slots, states)
        else:
            self.states[layer][self.length : self.length + len(states)] = states

    def reserve(self, width: int) -> None:
        """Make room after the committed positions.

        Parameters
        ----------
        width : int
            Positions.

        Raises
        ------
        ValueError
            If the buffers are static and too small.
        """
        need = self.length + width
        if need <= self.capacity:
            return
        if self._static:
            raise ValueError(f"{need} positions are needed, the buffers hold {self.capacity}; make a larger runtime")
        self.capacity = max(need, self.capacity + self.capacity // 2)
        for key, old in self._arenas.items():
            arena = torch.empty((*old.shape[:3], self.capacity, old.shape[4]), dtype=old.dtype, device=old.device)
            arena[:, :, :, : self.length] = old[:, :, :, : self.length]
            self._arenas[key] = arena
            for place, (layer, name) in enumerate(self._members[key]):
                setattr(self.layers[layer], name, arena[place])
        for layer, old in self.states.items():
            self.states[layer] = _trainable(old, self.capacity)
            self.states[layer][: self.length] = old[: self.length]

    def commit(self, block: Sequence[int]) -> None:
        """Keep some tokens of the last pass, which then stand right after the positions that were committed before.

        Parameters
        ----------
        block : sequence of int
            Their places in the pass, ascending. Place 0 is the token before the draft; place ``i + 1`` is node ``i`` of the draft
            tree.
        """
        count = len(block)
        if count and block[-1] != count - 1:
            source = [self.length + i for i in block]
            for rows, axis in self._rows():
                kept = rows.index_select(axis, on_device(source, rows.device))
                rows.narrow(axis, self.length, count).copy_(kept)
        self.length += count

    def _rows(self) -> Iterator[tuple[torch.Tensor, int]]:
        """Every buffer that has a row per position, and its axis of positions."""
        yield from ((arena, 3) for arena in self._arenas.values())
        yield from ((states, 0) for states in self.states.values())

    @torch.inference_mode()  # in which they were made
    def clear(self) -> None:
        """Forget everything, and zero the buffers, which may hold NaN after a failed pass."""
        self.length = 0
        for arena in self._arenas.values():
            arena.zero_()

    def truncate(self, length: int) -> None:
        """Forget the committed positions from ``length`` on.

        Parameters
        ----------
        length : int
            Positions to keep.

        Raises
        ------
        ValueError
            If so many are not committed.
        """
        if not 0 <= length <= self.length:
            raise ValueError(f"length is {length}; expected 0 to {self.length}, the positions that are committed")
        self.length = length


class ChainCache(TreeCache):
    """Cache of a model with recurrent layers, whose drafts are chains.

    Such layers, convolutions and linear attention, keep one state of the whole text, not a row for each token. A rejected token
    cannot be dropped from their state, so that is copied before each pass. Where a commit keeps a part of the pass,
    the target goes back to the copy (:meth:`rewind`) and runs that part alone.

    Parameters
    ----------
    recurrent : sequence of bool
        For each layer whether it is of this kind.
    capacity : int
        Positions that the buffers of the others hold at first.

    Examples
    --------
    A pass over three tokens, of which the first is kept. Here the state is the last token's number:

    >>> import torch
    >>> from specdec_lib.decoding.cache import ChainCache
    >>> cache = ChainCache([True, False], capacity=8)
    >>> def run(*numbers):
    ...     cache.reserve(len(numbers))
    ...     states = cache.update_conv_state(torch.tensor([[numbers]]), layer_idx=0, conv_kernel_size=1)
    >>> run(5)
    >>> cache.commit([0])
    >>> run(6, 7, 8)
    >>> cache.rewind()
    >>> cache.get_conv_state(0)
    tensor([[[5]]])
    >>> run(6)
    >>> cache.commit([0])
    >>> cache.length, cache.get_conv_state(0)
    (2, tensor([[[6]]]))
    """

    def __init__(self, recurrent: Sequence[bool], capacity: int):
        super().__init__(len(recurrent), capacity)
        self.layers = [LinearAttentionLayer() if own else self.layers[i] for i, own in enumerate(recurrent)]
        self._rows_in -= sum(recurrent)
        #: The states before the pass under way.
        self._before: list[dict[str, Any]] = []

    def reserve(self, width: int) -> None:
        super().reserve(width)
        self._before = [_copied(vars(layer)) for layer in self._states()]

    def rewind(self) -> None:
        """Go back to where the last pass began."""
        for layer, before in zip(self._states(), self._before, strict=True):
            vars(layer).update(_copied(before))

    def truncate(self, length: int) -> None:
        if length != self.length:
            raise ValueError(f"length is {length}; expected {self.length}: a state of the whole text cannot be cut")

    def _states(self) -> list[LinearAttentionLayer]:
        return [layer for layer in self.layers if isinstance(layer, LinearAttentionLayer)]


def _copied(value: Any) -> Any:
    """A layer's notes, its tensors copied: a pass writes into them."""
    if isinstance(value, dict):
        return {name: _copied(each) for name, each in value.items()}
    return value.clone() if isinstance(value, torch.Tensor) else value
