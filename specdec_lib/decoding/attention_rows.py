"""Attention rows of chosen heads under SDPA.

SDPA returns no attention weights, and eager attention on every layer is slow; so the rows of the chosen heads alone
are computed again from the queries and keys that SDPA was given.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import PreTrainedModel

from specdec_lib.decoding import attention
from specdec_lib.decoding.cache import on_device
from specdec_lib.decoding.served_models import soft_capped


class AttentionRows:
    """Keeps the last block's attention rows of chosen heads.

    Parameters
    ----------
    model : PreTrainedModel
        Loaded with ``attn_implementation="sdpa"``; its setting is restored by :meth:`close`.
    heads : sequence of (int, int)
        (block, head), both from 0.

    Raises
    ------
    ValueError
        If a block or head does not exist, or the model does not use SDPA or cannot.
    """

    def __init__(self, model: PreTrainedModel, heads: Sequence[tuple[int, int]]):
        self.model, self.heads = model, list(heads)
        self._installed = False
        if model.config._attn_implementation not in ("sdpa", attention.NAME):
            name = type(model).__name__
            if soft_capped(model.config):
                raise ValueError(
                    f"attention rows are read under SDPA, which cannot cap attention scores as {name} does; they "
                    "cannot be captured on this model: use PLD+ (h), PromptLookupHidden, which reads hidden states"
                )
            if not getattr(model, "_supports_sdpa", False):
                raise ValueError(
                    f"attention rows are read under SDPA, which {name} does not have; they cannot be captured on "
                    "this model: use PLD+ (h), PromptLookupHidden, which reads hidden states"
                )
            raise ValueError(
                f"attention rows are read under SDPA, but the model uses "
                f"{model.config._attn_implementation!r}; load it with attn_implementation='sdpa'"
            )
        modules = {
            m.layer_idx: m for m in model.modules() if hasattr(m, "layer_idx") and "Attention" in type(m).__name__
        }
        count = model.config.get_text_config(decoder=True).num_attention_heads
        by_block: dict[int, list[int]] = {}
        for place, (block, head) in enumerate(self.heads):
            if block not in modules:
                raise ValueError(f"head ({block}, {head}): expected a block from 0 to {len(modules) - 1}")
            if not 0 <= head < count:
                raise ValueError(f"head ({block}, {head}): expected a head from 0 to {count - 1}")
            by_block.setdefault(block, []).append(place)
        self._rows: list[torch.Tensor | None] = [None] * len(self.heads)
        self._last_only = False
        self._indices: dict[tuple, list[torch.Tensor]] = {}
        self._places = {modules[block]: places for block, places in by_block.items()}
        attention.install(model, self)
        self._installed = True

    def close(self) -> None:
        """Give the model its own attention back."""
        if self._installed:
            attention.uninstall(self.model, self)
        self._installed = False

    def begin(self, last_only: bool) -> None:
        """Prepare for the pass about to run; ``last_only`` keeps the last query's rows alone."""
        self._last_only = last_only

    def held(self) -> list[torch.Tensor]:
        """The rows of the pass last run, as :meth:`take` wants them."""
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
        """Keep the rows of a block's chosen heads, as its attention is about to compute them.

        Parameters
        ----------
        module : Module
            The block's attention; nothing is kept of one without chosen heads.
        query, key : tensor, shapes (1, heads, n, d) and (1, key heads, length, d)
        mask : bool or float tensor, shape (1, 1 or heads, n, length), optional
            What SDPA is given; None where each query sees all keys, or is the prompt's last.
        scaling : float, optional
            Factor of the scores; 1 / sqrt(d) by default.
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
        q = q[:, -1:] if self._last_only else q
        k = key[0].index_select(0, shared)
        scores = (q @ k.mT).float() * (query.shape[-1] ** -0.5 if scaling is None else scaling)
        if mask is not None:
            seen = mask[0] if mask.shape[1] == 1 else mask[0].index_select(0, heads)
            seen = (seen[:, -1:] if self._last_only else seen)[..., : scores.shape[-1]].to(scores.device)
            # Passes give an additive mask, made once for all layers. Its rows are those of a boolean one bit for bit:
            # each token sees itself, so that what the least number of the type is added to has probability 0.
            scores = scores.masked_fill(~seen, -torch.inf) if seen.dtype == torch.bool else scores + seen
        rows = scores.softmax(-1)
        for place, row in zip(places, rows, strict=True):
            self._rows[place] = row

    def last(self, block: Sequence[int], length: int) -> torch.Tensor:
        """Rows of the last committed position, shape (heads, length); ``block``: places of its ancestors and
        itself in the last pass, empty after prefill."""
        device = self._rows[0].device  # blocks of a model spread over several devices leave theirs where they are
        rows = torch.stack([r[block[-1] if block else -1].to(device) for r in self._rows])
        prefix = length - len(block)
        if not block or block[-1] == len(block) - 1:
            # The path's columns already lie behind the prefix in order.
            return rows[:, :length]
        columns = on_device([prefix + i for i in block], rows.device)
        return torch.cat([rows[:, :prefix], rows[:, columns]], dim=1)
