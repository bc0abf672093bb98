"""One decoder layer with a cache of its own: what EAGLE drafts with, and the prefix layer of Hydra++."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from specdec_lib.lazy import former_names

__getattr__ = former_names(__name__, rotated="rotary_embedding")

#: Keys and values of the tokens read so far, each of shape (b, heads, n, width of a head).
Past = tuple[torch.Tensor, torch.Tensor]
#: Base of the rotary frequencies.
THETA = 10000.0


def rotary_embedding(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Rotary position embedding (Su et al. 2021), halves paired as in Llama.

    Parameters
    ----------
    x : float tensor of shape (b, heads, n, width)
    positions : int tensor of shape (n,)

    Returns
    -------
    float tensor of shape (b, heads, n, width)

    Examples
    --------
    >>> import torch
    >>> from specdec_lib.heads.layer import rotary_embedding
    >>> x = torch.randn(1, 2, 3, 8)
    >>> torch.equal(rotary_embedding(x, torch.zeros(3, dtype=torch.long)), x)
    True
    """
    half = x.shape[-1] // 2
    frequencies = THETA ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
    angles = positions[:, None].float() * frequencies
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


class DecoderLayer(nn.Module):
    """A decoder layer of the kind of Llama's: attention with rotary positions, then a gated network.

    Parameters
    ----------
    width : int
        Values of a state.
    heads : int
        Attention heads; ``width`` is an even multiple of them.
    mlp : int
        Inner width of the network.
    input_norm : bool
        Normalise before the attention; EAGLE's layer does not.

    Examples
    --------
    Tokens read in two parts give what they give at once:

    >>> import torch
    >>> from specdec_lib.heads.layer import DecoderLayer
    >>> layer, x, positions = DecoderLayer(width=8, heads=2, mlp=16), torch.randn(1, 4, 8), torch.arange(4)
    >>> whole, _ = layer(x, positions)
    >>> first, past = layer(x[:, :3], positions[:3])
    >>> last, _ = layer(x[:, 3:], positions[3:], past)
    >>> torch.allclose(torch.cat([first, last], dim=1), whole, atol=1e-5)
    True
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
        """Read tokens after those read before.

        Parameters
        ----------
        x : float tensor of shape (b, n, width)
        positions : int64 tensor of shape (n,)
        past : pair of float tensors, optional
            Keys and values of the ``p`` tokens read before.
        visible : bool tensor of shape (n, p + n), optional
            What each token attends to of those in ``past`` and of these; without it, all before it and itself.

        Returns
        -------
        float tensor of shape (b, n, width)
        pair of float tensors
            The past with the new tokens at the end.
        """
        b, n, width = x.shape
        read = self.norm(x)
        queries, keys, values = (
            layer(read).view(b, n, self.heads, -1).transpose(1, 2) for layer in (self.queries, self.keys, self.values)
        )
        queries, keys = (rotary_embedding(part, positions) for part in (queries, keys))
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

    Parameters
    ----------
    width, heads, mlp
        As for :class:`DecoderLayer`.
    norm : bool

    Examples
    --------
    >>> import torch
    >>> from specdec_lib.heads.layer import PrefixLayer
    >>> states = torch.randn(1, 3, 8)
    >>> read, past = PrefixLayer(width=8, heads=2, mlp=16, norm=False)(states, torch.arange(3))
    >>> torch.equal(read, states)
    True
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
