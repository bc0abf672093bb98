"""One call of the model over a cache: what eager passes and passes with buffers in place have in common."""
from __future__ import annotations

import inspect
from collections.abc import Callable

import torch
from transformers import PreTrainedModel

from .attention_rows import AttentionRows
from .cache import TreeCache


class Forward:
    """Calls a model over a cache.

    Parameters
    ----------
    model : PreTrainedModel
    cache : TreeCache
    device : device
        Where masks are made.

    Attributes
    ----------
    rows : AttentionRows, optional
        The reader of the captured heads.
    running : bool
        Whether a call is under way: the model may serve others at other times.
    """

    def __init__(self, model: PreTrainedModel, cache: TreeCache, device: torch.device):
        self.model, self.cache, self.device = model, cache, device
        self.additive = model.config._attn_implementation == "eager"
        self.rows: AttentionRows | None = None
        self.running = False
        self._keep = "logits_to_keep" in inspect.signature(model.forward).parameters

    def as_mask(self, visible: torch.Tensor) -> torch.Tensor:
        """What the model takes to attend to ``visible``, bool of shape (n, length)."""
        if self.additive:
            dtype = self.model.dtype
            visible = torch.zeros(visible.shape, dtype=dtype, device=self.device).masked_fill_(
                ~visible, torch.finfo(dtype).min)
        return visible[None, None]

    def __call__(self, call: Callable, ids: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor | None,
                last_only: bool) -> torch.Tensor:
        """Run ``call``, the model or what stands for it, over the cache.

        Parameters
        ----------
        call : callable
        ids : int64 tensor, shape (1, n)
        positions : int64 tensor, shape (n,)
        mask : tensor, optional
            Of :meth:`as_mask`.
        last_only : bool
            Only the last token's logits are needed.

        Returns
        -------
        tensor, shape (n or 1, vocabulary)
        """
        kwargs = {"logits_to_keep": 1} if last_only and self._keep else {}
        if self.rows is not None:
            self.rows.begin(mask, last_only)
        self.running = True
        out = call(input_ids=ids, attention_mask=mask, position_ids=positions[None], past_key_values=self.cache,
                   use_cache=True, return_dict=True, **kwargs)
        self.running = False
        return out.logits[0]
