"""From logits to tokens: a sampled token is a function of (seed, prompt, position).

``Sampling`` gives one uniform number for each absolute position and a token is found by inverting the cumulative
distribution at it. A verified run then emits the very tokens that plain decoding emits with the same seed, for every
drafter that proposes tokens without probabilities. The seed is first bound to the prompt (:meth:`Sampling.for_prompt`).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from numbers import Real

import numpy as np
import torch

from specdec_lib.decoding.cache import on_device
from specdec_lib.decoding.checks import whole_number

_MASK = (1 << 64) - 1
#: Independent sequences of uniforms under one seed.
TARGET, DRAFT, ACCEPT, RESIDUAL = range(4)


def _mix(x: int) -> int:
    """The finaliser of SplitMix64 (Steele, Lea and Flood, 2014): a bijection of 64-bit integers that scrambles bits."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


@dataclass(frozen=True)
class Sampling:
    """How the next token follows from the target's logits.

    None stands for a temperature of 1, and for no filter, as in a ``generation_config`` of transformers. Filters are applied in
    its order: temperature, top-k, top-p. All tokens that tie with the ``top_k``-th stay. Where tokens tie at the
    edge of the nucleus, those with the largest ids stay, as many as ``top_p`` needs; which ones transformers keeps depends on
    torch's sort.

    Raises
    ------
    ValueError
        If a setting is no number, or outside its range.

    Examples
    --------
    A sampled output depends on seed and prompt alone, not on the drafter:

    >>> from specdec_lib import Sampling, generate
    >>> from specdec_lib.drafters import PromptLookup
    >>> sampling = Sampling(temperature=0.7, top_p=0.9, seed=1)
    >>> plain = generate(model, prompt, sampling=sampling, max_new_tokens=12)
    >>> fast = generate(model, prompt, PromptLookup(), sampling, max_new_tokens=12)
    >>> fast.tokens == plain.tokens
    True
    """

    #: 0 takes the most likely token; otherwise logits are divided by it.
    temperature: float | None = 0.0
    #: Nucleus: the smallest set of most likely tokens whose probabilities reach ``top_p``. 1 keeps all.
    top_p: float | None = 1.0
    #: Keep the ``top_k`` most likely tokens. 0 keeps all.
    top_k: int | None = 0
    #: The same seed and prompt give the same tokens, whatever drafter is used.
    seed: int = 0

    def __post_init__(self) -> None:
        for name, nothing in (("temperature", 1.0), ("top_p", 1.0), ("top_k", 0)):
            if getattr(self, name) is None:
                object.__setattr__(self, name, nothing)
        for name in ("temperature", "top_p"):
            value = getattr(self, name)
            if not isinstance(value, Real | torch.Tensor):
                raise ValueError(f"{name} is {value!r}; expected a number")
            object.__setattr__(self, name, float(value))
        if not 0.0 <= self.temperature < float("inf"):
            raise ValueError(f"temperature is {self.temperature}; expected a finite number, 0 (greedy) or more")
        if not 0.0 < self.top_p <= 1.0:
            raise ValueError(f"top_p is {self.top_p}; expected a number in (0, 1], 1 to keep every token")
        object.__setattr__(self, "top_k", whole_number("top_k", self.top_k, 0, "0 to keep every token"))
        object.__setattr__(self, "seed", whole_number("seed", self.seed))

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is taken."""
        return self.temperature == 0.0

    def for_prompt(self, prompt: Sequence[int]) -> Sampling:
        """These settings with a seed of the prompt's own, a hash of this seed and the prompt's tokens.

        :func:`specdec_lib.generate`, :func:`specdec_lib.record` and :func:`specdec_lib.custom_generate` call it with their
        prompt. Code that draws by itself with :meth:`uniform` calls it first.

        Examples
        --------
        >>> from specdec_lib import Sampling
        >>> one, other = (Sampling(0.7, seed=1).for_prompt(prompt) for prompt in ([5, 6], [5, 7]))
        >>> one.uniform(2) == other.uniform(2)
        False
        """
        text = f"{self.seed}:".encode() + np.asarray(prompt, dtype="<i8").tobytes()
        digest = hashlib.blake2b(text, digest_size=8).digest()
        return replace(self, seed=int.from_bytes(digest, "little"))

    def uniform(self, position: int, stream: int = TARGET, salt: int = 0) -> float:
        """The uniform number in [0, 1) of a token's position in prompt and output together.

        Parameters
        ----------
        position : int
        stream : int
            One of the independent sequences :data:`TARGET`, :data:`DRAFT`, :data:`ACCEPT` and :data:`RESIDUAL`.
        salt : int
            Tells repeated draws at one position apart.

        Returns
        -------
        float

        Examples
        --------
        >>> from specdec_lib import Sampling
        >>> bound = Sampling(1.0, seed=3).for_prompt([5, 6])
        >>> bound.uniform(2) == bound.uniform(2), bound.uniform(2) == bound.uniform(3)
        (True, False)
        """
        state = _mix((self.seed + 0x9E3779B97F4A7C15) & _MASK)
        for part in (stream, position, salt):
            state = _mix((state + part * 0x9E3779B97F4A7C15 + 0x9E3779B97F4A7C15) & _MASK)
        return (state >> 11) * 2.0**-53


def most_likely(logits: torch.Tensor) -> list[int]:
    """Token of the largest logit in each row.

    Parameters
    ----------
    logits : float tensor of shape (n, vocabulary)

    Returns
    -------
    list of int, length n

    Raises
    ------
    FloatingPointError
        If a row holds NaN, or nothing but -infinity.

    Examples
    --------
    >>> import torch
    >>> from specdec_lib.decoding.sampling import most_likely
    >>> most_likely(torch.tensor([[1.0, 3.0, 2.0], [0.5, 0.0, 0.0]]))
    [1, 0]
    """
    # NaN counts as largest. On a CPU numpy finds it several times faster than torch.
    if logits.device.type == "cpu" and logits.dtype == torch.float32:
        values = logits.detach().numpy()
        best = values.argmax(-1).tolist()
        if not all(values[row, token] > -math.inf for row, token in enumerate(best)):
            raise not_numbers()
        return best
    largest, tokens = logits.max(-1)
    return _read(tokens, largest)


def on_gpu(values: torch.Tensor) -> bool:
    """Whether reading a value makes the host wait for a queue of work.

    Parameters
    ----------
    values : tensor

    Returns
    -------
    bool

    Examples
    --------
    >>> import torch
    >>> from specdec_lib.decoding.sampling import on_gpu
    >>> on_gpu(torch.zeros(2, device="cpu"))
    False
    """
    return values.is_cuda


def _read(tokens: torch.Tensor, numbers: torch.Tensor) -> list[int]:
    """The tokens of several rows, unless one of the numbers that stand for the rows is NaN or -infinity."""
    if on_gpu(tokens):  # one read, for which the host waits; on a CPU two reads take less time than the operation
        read = torch.where(numbers > -torch.inf, tokens, -1).tolist()
        broken = min(read) < 0
    else:
        read, broken = tokens.tolist(), not all(number > -math.inf for number in numbers.tolist())
    if broken:
        raise not_numbers()
    return read


def not_numbers(what: str = "the model's logits hold NaN, infinity or no possible token") -> FloatingPointError:
    """The error for what a model computed, from which no token can be chosen.

    Parameters
    ----------
    what : str

    Returns
    -------
    FloatingPointError

    Examples
    --------
    >>> from specdec_lib.decoding.sampling import not_numbers
    >>> print(not_numbers("the states hold NaN"))
    the states hold NaN: weights may be damaged, or too large for their type (try dtype='bfloat16' or 'float32')
    """
    return FloatingPointError(
        f"{what}: weights may be damaged, or too large for their type (try dtype='bfloat16' or 'float32')"
    )


def distribution(logits: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """Probabilities of the next token after temperature, top-k and top-p.

    Parameters
    ----------
    logits : float tensor of shape (..., vocabulary)
    sampling : Sampling
        With a temperature above 0.

    Returns
    -------
    float64 tensor of shape (..., vocabulary)

    Raises
    ------
    FloatingPointError
        If a row holds NaN or +infinity, or nothing but -infinity.

    Examples
    --------
    >>> import torch
    >>> from specdec_lib import Sampling
    >>> from specdec_lib.decoding.sampling import distribution
    >>> logits = torch.tensor([0.5, 0.25, 0.25]).log()
    >>> distribution(logits, Sampling(temperature=1.0, top_k=1))
    tensor([1., 0., 0.], dtype=torch.float64)
    """
    probabilities = unchecked_distribution(logits, sampling)
    if bool(probabilities[..., 0].isnan().any()):  # one such number makes its whole row NaN
        raise not_numbers()
    return probabilities


def unchecked_distribution(logits: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """:func:`distribution` with nothing read back from a GPU.

    Parameters
    ----------
    logits, sampling
        As for :func:`distribution`.

    Returns
    -------
    float64 tensor of shape (..., vocabulary)
        A row that is no distribution holds NaN.

    Examples
    --------
    >>> import torch
    >>> from specdec_lib import Sampling
    >>> from specdec_lib.decoding.sampling import unchecked_distribution
    >>> unchecked_distribution(torch.tensor([1.0, torch.nan]), Sampling(temperature=1.0))
    tensor([nan, nan], dtype=torch.float64)
    """
    scores = logits.double() / sampling.temperature
    vocabulary = scores.shape[-1]
    if 0 < sampling.top_k < vocabulary:
        # Comparisons with NaN are false: NaN stays, and so do scores equal to the k-th.
        scores = scores.masked_fill(scores < scores.topk(sampling.top_k, dim=-1).values[..., -1:], -torch.inf)
    probabilities = scores.softmax(-1)
    if sampling.top_p < 1.0:
        # A row with NaN must be NaN as a whole.
        broken = probabilities[..., :1].isnan()
        probabilities = torch.where(broken, torch.nan, _nucleus(scores, probabilities, sampling.top_p))
    return probabilities


def _nucleus(scores: torch.Tensor, probabilities: torch.Tensor, top_p: float) -> torch.Tensor:
    # The nucleus rarely has more than a few dozen tokens: on a CPU look at the most likely ones before sorting all.
    vocabulary = probabilities.shape[-1]
    count = vocabulary if probabilities.is_cuda else min(64, vocabulary)
    while True:
        best, index = probabilities.topk(count, dim=-1)
        before = best.cumsum(-1) - best
        if count == vocabulary or not bool((before[..., -1] + best[..., -1] < top_p).any()):
            break
        count = min(count * 16, vocabulary)
    inside = before < top_p - 1e-12  # sums of probabilities round: ten of 0.1 each, and 0.8 needs eight
    # topk orders ties as it likes. Take what lies above the least likely token inside, and of its ties as many as fit.
    size = inside.sum(-1, keepdim=True).clamp_(min=1)
    edge = scores.gather(-1, index.gather(-1, size - 1))
    above, tied = scores > edge, scores == edge
    room = size - above.sum(-1, keepdim=True)
    if probabilities.is_cuda or bool((tied.sum(-1, keepdim=True) > room).any()):
        tied &= tied.flip(-1).cumsum(-1).flip(-1) <= room
    inside = torch.where(above | tied, probabilities, 0.0)
    return inside / inside.sum(-1, keepdim=True)


def invert_cdf(probabilities: torch.Tensor, uniform: float) -> int:
    """Token drawn by inverting the cumulative distribution.

    Parameters
    ----------
    probabilities : float tensor of shape (vocabulary,)
    uniform : float
        In [0, 1).

    Returns
    -------
    int
        The smallest token id whose cumulative probability exceeds ``uniform``.

    Examples
    --------
    >>> import torch
    >>> from specdec_lib.decoding.sampling import invert_cdf
    >>> invert_cdf(torch.tensor([0.25, 0.5, 0.25]), 0.3)
    1
    """
    return int(invert_cdfs(probabilities[None], [uniform])[0])


def invert_cdfs(probabilities: torch.Tensor, uniforms: Sequence[float]) -> torch.Tensor:
    """:func:`invert_cdf` of each of n rows; nothing is read back from the device.

    Parameters
    ----------
    probabilities : float tensor of shape (n, vocabulary)
    uniforms : sequence of float, length n

    Returns
    -------
    int64 tensor of shape (n,)

    Examples
    --------
    >>> import torch
    >>> from specdec_lib.decoding.sampling import invert_cdfs
    >>> invert_cdfs(torch.tensor([[0.25, 0.5, 0.25], [0.25, 0.5, 0.25]]), [0.3, 0.8])
    tensor([1, 2])
    """
    cumulative = probabilities.cumsum(-1)
    at = on_device(uniforms, cumulative.device, cumulative.dtype)
    # Rounding can leave the total below 1; scaling by it keeps the last token with any probability reachable.
    tokens = torch.searchsorted(cumulative, at[:, None] * cumulative[:, -1:], right=True)[:, 0]
    return tokens.clamp_(max=probabilities.shape[-1] - 1)


def choose_each(logits: torch.Tensor, sampling: Sampling, positions: Sequence[int]) -> list[int]:
    """:func:`choose` for several rows at a temperature above 0, read back from the device at once.

    Parameters
    ----------
    logits : float tensor of shape (n, vocabulary)
    sampling : Sampling
    positions : sequence of int, length n

    Returns
    -------
    list of int, length n

    Examples
    --------
    >>> import torch
    >>> from specdec_lib import Sampling
    >>> from specdec_lib.decoding.sampling import choose, choose_each
    >>> logits, sampling = torch.eye(3), Sampling(temperature=1.0)
    >>> choose_each(logits, sampling, [7, 8, 9]) == [choose(logits[i], sampling, 7 + i) for i in range(3)]
    True
    """
    rows = unchecked_distribution(logits, sampling)
    tokens = invert_cdfs(rows, [sampling.uniform(position) for position in positions])
    return _read(tokens, rows[:, 0])


def choose(logits: torch.Tensor, sampling: Sampling, position: int) -> int:
    """The token that follows from one row of logits.

    Parameters
    ----------
    logits : float tensor of shape (vocabulary,)
    sampling : Sampling
        Bound to the prompt (:meth:`Sampling.for_prompt`).
    position : int
        Index of the token in prompt and output together.

    Returns
    -------
    int

    Raises
    ------
    FloatingPointError
        As for :func:`most_likely` and :func:`distribution`.

    Examples
    --------
    >>> import torch
    >>> from specdec_lib import Sampling
    >>> from specdec_lib.decoding.sampling import choose
    >>> choose(torch.tensor([1.0, 3.0, 2.0]), Sampling(), position=7)
    1
    """
    if sampling.greedy:
        return most_likely(logits[None])[0]
    return invert_cdf(distribution(logits, sampling), sampling.uniform(position))
