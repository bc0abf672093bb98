"""The attention function that targets run under SDPA: grouped keys are not copied, chosen heads can be read."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

NAME = "specdec_sdpa"
_USERS: weakref.WeakKeyDictionary[PreTrainedModel, weakref.WeakSet] = weakref.WeakKeyDictionary()
# Of the same thread too, where the end of a user is met while another one is installed.
_CHANGING = threading.RLock()


class _Running(threading.local):
    """The :class:`Forward` whose call this thread runs; what other threads run on the model is none of its."""

    forward = None


RUNNING = _Running()


class _Backends:
    """How many are within :func:`backends`, in all threads, and what torch had been set to before the first."""

    def __init__(self):
        self.lock, self.users, self.before = threading.Lock(), 0, False


_BACKENDS = _Backends()


def backends(device: torch.device, cudnn: bool = False) -> AbstractContextManager[None]:
    """Choose the attention kernels of a GPU for the time of the context, for every model of the process.

    From torch 2.11 on cuDNN's attention is the first choice of a Hopper GPU. It makes a plan for each new number of
    keys, tens of milliseconds of the host's time, and in decoding nearly every pass has one. Without it torch takes
    flash attention where there is no mask, and memory-efficient attention where there is one.

    Parameters
    ----------
    device : device
        Nothing is set for one that is no GPU.
    cudnn : bool
        Whether cuDNN's attention may be chosen. Of contexts within each other the outermost decides.
    """
    return _chosen(cudnn) if device.type == "cuda" else nullcontext()


@contextmanager
def _chosen(cudnn: bool) -> Iterator[None]:
    state = _BACKENDS
    with state.lock:
        if not state.users:
            state.before = torch.backends.cuda.cudnn_sdp_enabled()
            torch.backends.cuda.enable_cudnn_sdp(cudnn)
        state.users += 1
    try:
        yield
    finally:
        with state.lock:
            state.users -= 1
            if not state.users:
                torch.backends.cuda.enable_cudnn_sdp(state.before)


def rows_of_groups(mask: torch.Tensor, groups: int) -> torch.Tensor:
    """A mask of n queries, shape (1, 1, n, length), for ``groups`` query heads stacked: (1, 1, groups * n, length)."""
    width, length = mask.shape[2:]
    return mask.expand(1, groups, width, length).reshape(1, 1, groups * width, length)


def grouped_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor, scaling: float | None
) -> torch.Tensor:
    """Attention of grouped queries under a mask, the queries of a group as more rows of one head.

    Transformers copies the keys and values once for each query head of a group as soon as a mask is given. A row of
    queries attends for itself alone, so the heads that share keys can be stacked instead.

    Parameters
    ----------
    query : tensor, shape (1, heads, n, d)
    key, value : tensor, shape (1, key heads, length, d)
    mask : bool or float tensor, shape (1, 1, n, length)
        Or that of :func:`rows_of_groups`.
    scaling : float, optional
        Factor of the scores; 1 / sqrt(d) by default.

    Returns
    -------
    tensor, shape (1, n, heads, d)
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


def install(model: PreTrainedModel, user: object) -> None:
    """Let a model that uses SDPA run this module's function for ``user``, until :func:`uninstall` or its end."""
    with _CHANGING:
        if model.config._attn_implementation != NAME:
            model.set_attn_implementation(NAME)
        users = _USERS.setdefault(model, weakref.WeakSet())
        if user not in users:
            users.add(user)
            weakref.finalize(user, _restore, weakref.ref(model)).atexit = False


def uninstall(model: PreTrainedModel, user: object) -> None:
    """Take back :func:`install`; with the last user gone the model has its own attention again."""
    with _CHANGING:
        _USERS[model].discard(user)
        _restore(weakref.ref(model))


def _restore(model: weakref.ref[PreTrainedModel]) -> None:
    model = model()
    with _CHANGING:
        # A set of weak references may still count one that is just gone; going through it finds those that are there.
        if model is not None and not list(_USERS.get(model, ())) and model.config._attn_implementation == NAME:
            model.set_attn_implementation("sdpa")
