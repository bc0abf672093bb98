"""Induction heads: which attention heads look at what is about to be copied (PLD+, section 4.2.1).

While the model generates, each new token that also occurs in the prompt is a copy; its origin is the occurrence whose
past agrees longest with the output's. A head is credited where its attention row, at the step that chose the token,
peaks at that origin.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
from tqdm.auto import tqdm
from transformers import PreTrainedModel

from specdec_lib.decoding.checks import whole_number
from specdec_lib.decoding.contract import Capture
from specdec_lib.decoding.generate import as_token_lists, record
from specdec_lib.decoding.loop import Trace
from specdec_lib.decoding.served_models import decoder_config
from specdec_lib.files import named, write_json
from specdec_lib.lazy import former_names
from specdec_lib.models.fingerprint import fingerprint

__getattr__ = former_names(__name__, credited="induction_heads")

FORMAT = 1


def origin(text: Sequence[int], position: int, prompt_length: int) -> int | None:
    """The place in the prompt that a token was copied from (PLD+, section 4.2.1).

    Parameters
    ----------
    text : sequence of int
        Prompt and output.
    position : int
        Of the token.
    prompt_length : int

    Returns
    -------
    int or None
        The place of the same token with the longest common suffix, the last among equals; None without one.

    Examples
    --------
    >>> from specdec_lib.heads.induction import origin
    >>> origin([5, 6, 7, 9, 6, 5, 6], position=6, prompt_length=5)
    1
    """
    best, longest = None, 0
    for place in range(prompt_length):
        if text[place] != text[position]:
            continue
        overlap = 1
        while overlap <= place and text[place - overlap] == text[position - overlap]:
            overlap += 1
        if overlap >= longest:
            best, longest = place, overlap
    return best


@dataclass(frozen=True)
class InductionHeads:
    """Which heads of a model look at what is about to be copied.

    Parameters
    ----------
    peaks : float array of shape (blocks, heads)
        Share of the copied tokens at whose origin the head's attention row had its maximum.
    attention : float array of shape (blocks, heads)
        Mean attention on the origin (prefix matching).
    copied : int
        Copied tokens.
    fingerprint : str
        The model's.

    Examples
    --------
    >>> from specdec_lib import generate
    >>> from specdec_lib.drafters import PromptLookupAttention
    >>> from specdec_lib.heads.induction import identify
    >>> found = identify(model, [prompt], max_new_tokens=12, progress=False)
    >>> drafter = PromptLookupAttention(found.top(2), num_tokens=10)
    >>> run = generate(model, prompt, drafter, max_new_tokens=12)
    >>> run.tokens == generate(model, prompt, max_new_tokens=12).tokens
    True
    """

    peaks: np.ndarray
    attention: np.ndarray
    copied: int
    fingerprint: str

    def ranked(self) -> list[tuple[int, int]]:
        """Heads credited at least once, most often credited first, by mean attention among equals."""
        found = [bh for bh in np.ndindex(self.peaks.shape) if self.peaks[bh] > 0]
        return sorted(found, key=lambda bh: (-self.peaks[bh], -self.attention[bh], bh))

    def top(self, count: int) -> list[tuple[int, int]]:
        """The ``count`` best heads."""
        ranked = self.ranked()
        if not 1 <= count <= len(ranked):
            raise ValueError(f"count is {count}; expected 1 to {len(ranked)}, the heads that were credited")
        return ranked[:count]

    def save(self, path: str | Path) -> None:
        """Write JSON, aside and renamed."""
        arrays = {name: getattr(self, name).tolist() for name in ("peaks", "attention")}
        about = {"format": FORMAT, "fingerprint": self.fingerprint, "copied": self.copied} | arrays
        write_json(path, about)

    @classmethod
    def load(cls, path: str | Path, model: PreTrainedModel) -> InductionHeads:
        """Read what :meth:`save` wrote.

        Parameters
        ----------
        path : path
        model : PreTrainedModel
            The one that the heads were found in.

        Returns
        -------
        InductionHeads

        Raises
        ------
        ValueError
            If the file holds something else, or heads of another model.
        """
        config = decoder_config(model)
        shape = (config.num_hidden_layers, config.num_attention_heads)
        try:
            about = json.loads(named(path).read_text(encoding="utf-8"))
            if about["format"] != FORMAT:
                raise ValueError(f"its format is {about['format']}, this version reads {FORMAT}")
            made_for, copied = about["fingerprint"], whole_number("copied", about["copied"], 1)
            peaks, attention = (np.array(about[name], dtype=float) for name in ("peaks", "attention"))
            if not isinstance(made_for, str):
                raise ValueError(f"its fingerprint is {made_for!r}")
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ValueError(
                f"{path} holds no induction heads ({type(error).__name__}: {error}); identify the heads again"
            ) from None
        own = fingerprint(model)
        if made_for != own:
            raise ValueError(f"{path} is for model {made_for[:12]}, this one is {own[:12]}; identify its heads")
        if not all(a.shape == shape and np.isfinite(a).all() for a in (peaks, attention)):
            raise ValueError(f"{path} holds no induction heads of {shape} blocks and heads; identify them again")
        return cls(peaks, attention, copied, own)


def identify(
    model: PreTrainedModel, prompts: Sequence[Sequence[int]], max_new_tokens: int = 128, progress: bool = True
) -> InductionHeads:
    """Generate on calibration prompts, whose answers copy, and credit the heads that look at the origin of what is copied.

    Parameters
    ----------
    model : PreTrainedModel
    prompts : sequence of sequences of int
    max_new_tokens : int
    progress : bool
        Show a bar.

    Returns
    -------
    InductionHeads

    Raises
    ------
    ValueError
        If nothing was copied.

    Examples
    --------
    >>> from specdec_lib.heads.induction import identify
    >>> found = identify(model, [prompt], max_new_tokens=12, progress=False)
    >>> found.peaks.shape == (model.config.num_hidden_layers, model.config.num_attention_heads)
    True
    """
    texts = as_token_lists(prompts, model)
    shown = tqdm(texts, desc="induction heads", unit="prompt", disable=not progress)
    return induction_heads(
        model, (record(model, text, None, max_new_tokens, capture=every_head(model)) for text in shown)
    )


def every_head(model: PreTrainedModel) -> Capture:
    """The attention rows of all heads, which :func:`induction_heads` reads.

    Parameters
    ----------
    model : PreTrainedModel

    Returns
    -------
    Capture

    Examples
    --------
    >>> from specdec_lib.heads.induction import every_head
    >>> len(every_head(model).heads) == model.config.num_hidden_layers * model.config.num_attention_heads
    True
    """
    config = decoder_config(model)
    return Capture(heads=tuple(product(range(config.num_hidden_layers), range(config.num_attention_heads))))


def credits(trace: Trace) -> tuple[np.ndarray, np.ndarray, int]:
    """What a recorded run credits each head with.

    Parameters
    ----------
    trace : Trace

    Returns
    -------
    peaks : float array of shape (heads,)
        How many copied tokens each is credited with.
    attention : float array of shape (heads,)
        The sum of its attention on their origins.
    copied : int
        How many tokens were copied.

    Examples
    --------
    >>> from specdec_lib import record
    >>> from specdec_lib.heads.induction import credits, every_head
    >>> trace = record(model, prompt, max_new_tokens=8, capture=every_head(model))
    >>> peaks, attention, copied = credits(trace)
    >>> bool(peaks.max() <= copied)
    True
    """
    peaks, weight, copied = np.zeros(len(trace.heads)), np.zeros(len(trace.heads)), 0
    text, length = [*trace.prompt, *trace.tokens], len(trace.prompt)
    for position, rows in enumerate(trace.attention, start=length):
        place = None if text[position] in trace.limits.eos else origin(text, position, length)
        if place is not None:
            peaks += (rows.argmax(-1) == place).numpy()
            weight += rows[:, place].double().numpy()
            copied += 1
    return peaks, weight, copied


def induction_heads(model: PreTrainedModel, traces: Iterable[Trace]) -> InductionHeads:
    """Credit the heads that looked at the origin of what was copied in recorded runs.

    Parameters
    ----------
    model : PreTrainedModel
    traces : iterable of Trace
        With the rows of :func:`every_head`.

    Returns
    -------
    InductionHeads

    Examples
    --------
    >>> from specdec_lib import record
    >>> from specdec_lib.heads.induction import induction_heads, every_head
    >>> trace = record(model, prompt, max_new_tokens=8, capture=every_head(model))
    >>> 0 < induction_heads(model, [trace]).copied <= 8
    True
    """
    every, found = every_head(model).heads, []
    for trace in traces:
        if trace.heads != every:
            raise ValueError(f"a run has rows of {len(trace.heads)} heads, not all {len(every)}: use every_head(model)")
        found.append(credits(trace))
    copied = sum(own for _, _, own in found)
    if not copied:
        raise ValueError(
            f"none of the new tokens of {len(found)} prompts occurs in its prompt; use input-guided prompts"
        )
    peaks, weight = (sum(own[i] for own in found) / copied for i in range(2))
    shape = decoder_config(model).num_hidden_layers, -1
    return InductionHeads(peaks.reshape(shape), weight.reshape(shape), copied, fingerprint(model))
