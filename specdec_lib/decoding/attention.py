"""The attention that targets run under SDPA: grouped keys are not copied, and rows of chosen heads are read.

SDPA returns no attention weights, and eager attention on every layer is slow; so the rows of the chosen heads alone
are computed again from the queries and keys that SDPA was given.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from specdec_lib.decoding.cache import on_device

NAME = "specdec_sdpa"
_USERS: weakref.WeakKeyDictionary[PreTrainedModel, set] = weakref.WeakKeyDictionary()
# Of the same thread too, where the end of a user is met while another one is installed.
_CHANGING = threading.RLock()


class _Running(threading.local):
    """The :class:`Forward` whose call this thread runs; other threads' passes are ignored."""

    forward = None


RUNNING = _Running()


class _Setting:
    """A setting of the whole process: its first user turns it on, the last one restores what was before."""

    def __init__(self, make: Callable[[], AbstractContextManager]):
        self._make, self._lock, self._users, self._made = make, threading.Lock(), 0, nullcontext()

    @contextmanager
    def __call__(self) -> Iterator[None]:
        with self._lock:
            if not self._users:
                self._made = self._make()
                self._made.__enter__()
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if not self._users:
                    self._made.__exit__(None, None, None)


@_Setting
@contextmanager
def _without_cudnn() -> Iterator[None]:
    before = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(False)
    yield
    torch.backends.cuda.enable_cudnn_sdp(before)


#: Runs what ``torch.compile`` wraps as it is, hooks and all.
uncompiled = _Setting(lambda: torch.compiler.set_stance("force_eager"))


@contextmanager
def settings(device: torch.device, as_written: bool = False) -> Iterator[None]:
    """Switch cuDNN's attention off on a GPU and, if ``as_written``, run what ``torch.compile`` wraps eagerly.

    From torch 2.11 on cuDNN's attention is the first choice of a Hopper GPU. It makes a plan for each new number of
    keys, tens of milliseconds of the host's time, and in decoding nearly every pass has one.
    """
    with _without_cudnn() if device.type == "cuda" else nullcontext(), uncompiled() if as_written else nullcontext():
        yield


def rows_of_groups(mask: torch.Tensor, groups: int) -> torch.Tensor:
    """A mask of n queries for query heads that are stacked as rows of one head.

    Parameters
    ----------
    mask : tensor of shape (1, 1, n, length)
    groups : int
        Query heads that share a key head.

    Returns
    -------
    tensor of shape (1, 1, groups * n, length)

    Examples
    --------
    >>> import torch
    >>> from specdec_lib.decoding.attention import rows_of_groups
    >>> rows_of_groups(torch.zeros(1, 1, 3, 8), groups=2).shape
    torch.Size([1, 1, 6, 8])
    """
    width, length = mask.shape[2:]
    return mask.expand(1, groups, width, length).reshape(1, 1, groups * width, length)


def grouped_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor, scaling: float | None
) -> torch.Tensor:
    """Attention of grouped queries under a mask, the queries of a group as more rows of one head, so that keys are not copied.

    Parameters
    ----------
    query : float tensor of shape (1, heads, n, d)
    key, value : float tensor of shape (1, key heads, length, d)
    mask : float tensor of shape (1, 1, n, length), or as :func:`rows_of_groups` gives it
    scaling : float or None
        Factor of the scores; None is 1 / sqrt(d).

    Returns
    -------
    float tensor of shape (1, n, heads, d)

    Examples
    --------
    >>> import torch
    >>> from specdec_lib.decoding.attention import grouped_attention
    >>> query, key = torch.randn(1, 4, 3, 8), torch.randn(1, 2, 5, 8)
    >>> mask = torch.zeros(1, 1, 3, 5)
    >>> own = grouped_attention(query, key, key, mask, None)
    >>> copied = key.repeat_interleave(2, dim=1)
    >>> torchs = torch.nn.functional.scaled_dot_product_attention(query, copied, copied, attn_mask=mask)
    >>> torch.allclose(own, torchs.transpose(1, 2), atol=1e-6)
    True
    """
    _, heads, width, size = query.shape
    shared = key.shape[1]
    groups = heads // shared
    rows = query.reshape(1, shared, groups * width, size)
    seen = rows_of_groups(mask, groups) if mask.shape[2] == width else mask
    out = scaled_dot_product_attention(rows, key, value, attn_mask=seen, scale=scaling)
    return out.reshape(1, heads, width, value.shape[-1]).transpose(1, 2).contiguous()


def _attention(module, query, key, value, attention_mask, scaling=None, **kwargs):
    # A compiled pass captures nothing.
    forward = None if torch.compiler.is_compiling() else RUNNING.forward
    if forward is not None and forward.rows is not None:
        forward.rows.read(module, query, key, attention_mask, scaling)
    plain = kwargs.get("position_bias") is None and kwargs.get("softcap") is None and not kwargs.get("dropout")
    if (
        plain
        and attention_mask is not None
        and attention_mask.shape[1] == 1
        and query.shape[0] == 1
        and query.shape[1] > key.shape[1]
    ):
        groups, length = query.shape[1] // key.shape[1], key.shape[2]
        if forward is None:
            seen = rows_of_groups(attention_mask[..., :length], groups)
        else:
            seen = forward.stacked(attention_mask, groups, length)
        return grouped_attention(query, key, value, seen, scaling), None
    return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **kwargs)


AttentionInterface.register(NAME, _attention)
AttentionMaskInterface.register(NAME, sdpa_mask)


def install(model: PreTrainedModel, user: object) -> Callable[[], None]:
    """Let a model that uses SDPA run this module's function until the returned call, or until ``user`` is gone."""
    with _CHANGING:
        if model.config._attn_implementation != NAME:
            model.set_attn_implementation(NAME)
        place = object()
        _USERS.setdefault(model, set()).add(place)
    leave = weakref.finalize(user, _leave, weakref.ref(model), place)
    leave.atexit = False
    return leave


def _leave(model: weakref.ref[PreTrainedModel], place: object) -> None:
    model = model()
    if model is None:
        return
    with _CHANGING:
        _USERS[model].discard(place)
        if not _USERS[model] and model.config._attn_implementation == NAME:
            model.set_attn_implementation("sdpa")


class AttentionRows:
    """Keeps the attention rows of chosen heads, as the newest pass of a model under SDPA computes them, until it is closed.

    A head is a pair (block, head), both counted from 0.
    """

    def __init__(self, model: PreTrainedModel, heads: Sequence[tuple[int, int]]):
        self.heads = list(heads)
        self.close: Callable[[], None] = lambda: None
        name, used = type(model).__name__, model.config._attn_implementation
        instead = "they cannot be captured on this model: use PLD+ (h), PromptLookupHidden, which reads hidden states"
        config = model.config.get_text_config(decoder=True)
        if used not in ("sdpa", NAME):
            if getattr(config, "attn_logit_softcapping", None):
                instead = f"which cannot cap attention scores as {name} does; {instead}"
            elif not getattr(model, "_supports_sdpa", False):
                instead = f"which {name} does not have; {instead}"
            else:
                instead = f"not {used!r}; load it with attn_implementation='sdpa'"
            raise ValueError(f"attention rows are read under SDPA, {instead}")
        modules = {
            m.layer_idx: m for m in model.modules() if hasattr(m, "layer_idx") and "Attention" in type(m).__name__
        }
        count = config.num_attention_heads
        by_block: dict[int, list[int]] = {}
        for place, (block, head) in enumerate(self.heads):
            if block not in modules:
                raise ValueError(f"head ({block}, {head}): expected a block from 0 to {len(modules) - 1}")
            if not 0 <= head < count:
                raise ValueError(f"head ({block}, {head}): expected a head from 0 to {count - 1}")
            by_block.setdefault(block, []).append(place)
        self._rows: list[torch.Tensor | None] = [None] * len(self.heads)
        #: Whether the pass about to run keeps the last query's rows alone.
        self.last_only = False
        self._indices: dict[tuple, list[torch.Tensor]] = {}
        self._places = {modules[block]: places for block, places in by_block.items()}
        self.close = install(model, self)

    def held(self) -> list[torch.Tensor | None]:
        """The rows of the pass last run, as :meth:`take` wants them; None of heads that no pass has shown."""
        return list(self._rows)

    def take(self, rows: list[torch.Tensor]) -> None:
        """Have ``rows`` instead of those read: a replayed pass computes them without reading."""
        self._rows = list(rows)

    def read(
        self,
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        mask: torch.Tensor | None,
        scaling: float | None,
    ) -> None:
        """Keep the rows of a block's chosen heads, as its attention is about to compute them; shapes as SDPA is given.

        There is no mask where each query sees all keys, or is the prompt's last.
        """
        places = self._places.get(module)
        if places is None:
            return
        chosen = [self.heads[p][1] for p in places]
        groups = query.shape[1] // key.shape[1]
        # On the device once: a recorded pass may copy nothing from the host.
        key_of = (tuple(chosen), groups, query.device)
        if key_of not in self._indices:
            self._indices[key_of] = [
                torch.tensor(index, device=query.device) for index in (chosen, [h // groups for h in chosen])
            ]
        heads, shared = self._indices[key_of]
        q = query[0].index_select(0, heads)
        q = q[:, -1:] if self.last_only else q
        k = key[0].index_select(0, shared)
        scores = (q @ k.mT).float() * (query.shape[-1] ** -0.5 if scaling is None else scaling)
        if mask is not None:
            seen = mask[0] if mask.shape[1] == 1 else mask[0].index_select(0, heads)
            seen = (seen[:, -1:] if self.last_only else seen)[..., : scores.shape[-1]].to(scores.device)
            # Passes give an additive mask, made once for all layers. Its rows are those of a boolean one bit for bit:
            # each token sees itself, so that what the least number of the type is added to has probability 0.
            scores = scores.masked_fill(~seen, -torch.inf) if seen.dtype == torch.bool else scores + seen
        rows = scores.softmax(-1)
        for place, row in zip(places, rows, strict=True):
            self._rows[place] = row

    def last(self, block: Sequence[int], length: int) -> torch.Tensor:
        """The last committed position's rows, (heads, length); ``block``: its ancestors' and its own places in the last pass."""
        device = self._rows[0].device  # blocks of a model spread over several devices leave theirs where they are
        rows = torch.stack([r[block[-1] if block else -1].to(device) for r in self._rows])
        prefix = length - len(block)
        if not block or block[-1] == len(block) - 1:
            # The path's columns already lie behind the prefix in order.
            return rows[:, :length]
        columns = on_device([prefix + i for i in block], rows.device)
        return torch.cat([rows[:, :prefix], rows[:, columns]], dim=1)
