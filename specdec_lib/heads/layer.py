"""One decoder layer with a cache of its own: what EAGLE drafts with, and the prefix layer of Hydra++."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

#: Keys and values of the tokens read so far, each of shape (b, heads, n, width of a head).
Past = tuple[torch.Tensor, torch.Tensor]
#: Base of the rotary frequencies.
THETA = 10000.0


def rotated(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Rotary position embedding (Su et al. 2021), halves paired as in Llama, of x (b, heads, n, width) at positions (n,)."""
    half = x.shape[-1] // 2
    frequencies = THETA ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
    angles = positions[:, None].float() * frequencies
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


class DecoderLayer(nn.Module):
    """A decoder layer of the kind of Llama's: attention with rotary positions, then a gated network of inner width ``mlp``.

    ``input_norm`` normalises before the attention; EAGLE's layer does not.
    """

    def __init__(self, width: int, heads: int, mlp: int, input_norm: bool = True):
        super().__init__()
        if heads < 1 or width % (2 * heads):
            raise ValueError(f"heads is {heads} for states of width {width}; expected heads of a whole, even width")
        self.heads = heads
        self.norm = nn.RMSNorm(width, eps=1e-6) if input_norm else nn.Identity()
        self.queries, self.keys, self.values, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.second_norm = nn.RMSNorm(width, eps=1e-6)
        self.gate, self.up = (nn.Linear(width, mlp, bias=False) for _ in range(2))
        self.down = nn.Linear(mlp, width, bias=False)

    def forward(
        self, x: torch.Tensor, positions: torch.Tensor, past: Past | None = None, visible: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, Past]:
        """Read ``n`` tokens, float (b, n, width), at int64 positions (n,), after those in ``past``.

        ``visible``, bool (n, p + n), is what each token attends to of the ``p`` in ``past`` and of these; without it, all before it
        and itself. Gives the output, float (b, n, width), and the past with the new tokens at the end.
        """
        b, n, width = x.shape
        read = self.norm(x)
        queries, keys, values = (
            layer(read).view(b, n, self.heads, -1).transpose(1, 2) for layer in (self.queries, self.keys, self.values)
        )
        queries, keys = (rotated(part, positions) for part in (queries, keys))
        if past is not None:
            keys, values = torch.cat([past[0], keys], dim=2), torch.cat([past[1], values], dim=2)
        if visible is None:
            total = keys.shape[2]
            visible = torch.ones((n, total), dtype=torch.bool, device=x.device).tril(total - n)
        mixed = F.scaled_dot_product_attention(queries, keys, values, attn_mask=visible)
        x = x + self.out(mixed.transpose(1, 2).reshape(b, n, width))
        read = self.second_norm(x)
        return x + self.down(F.silu(self.gate(read)) * self.up(read)), (keys, values)


class PrefixLayer(DecoderLayer):
    """Hydra++'s layer over the target's states, with a norm at the end, as the released one of transformers has.

    It begins as what it reads; :meth:`scale_to` gives the norm the size of the states, so that this holds with the norm too.
    """

    def __init__(self, width: int, heads: int, mlp: int, norm: bool):
        super().__init__(width, heads, mlp)
        self.last_norm = nn.RMSNorm(width, eps=1e-6) if norm else nn.Identity()
        for layer in (self.out, self.down):
            nn.init.zeros_(layer.weight)

    @torch.no_grad()
    def scale_to(self, states: torch.Tensor) -> None:
        """Set the norm's weights to the root mean square of states, of shape (..., width)."""
        if isinstance(self.last_norm, nn.RMSNorm):
            self.last_norm.weight.fill_(states.float().square().mean().sqrt())

    def forward(self, x, positions, past=None, visible=None):
        read, past = super().forward(x, positions, past, visible)
        return self.last_norm(read), past
