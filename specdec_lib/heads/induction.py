"""Induction heads: which attention heads look at what is about to be copied (PLD+, section 4.2.1).

While the model generates, each new token that also occurs in the prompt is a copy; its origin is the occurrence whose
past agrees longest with the output's. A head is credited where its attention row, at the step that chose the token,
peaks at that origin.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tqdm.auto import tqdm
from transformers import PreTrainedModel

from specdec_lib.decoding.contract import Capture
from specdec_lib.decoding.generate import as_token_list, record
from specdec_lib.decoding.replay import Trace
from specdec_lib.decoding.sampling import Sampling
from specdec_lib.decoding.served_models import context_limit, decoder_config, vocabulary_size
from specdec_lib.files import replacing
from specdec_lib.models.fingerprint import fingerprint

FORMAT = 1


def origin(text: Sequence[int], position: int, prompt_length: int) -> int | None:
    """Where in the prompt the token at ``position`` was copied from.

    Parameters
    ----------
    text : sequence of int
        Prompt and output.
    position : int
        Index of a new token.
    prompt_length : int

    Returns
    -------
    int or None
        The prompt position of the same token with the longest common suffix, the last one among equals; None if the
        prompt does not have the token.
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
    """What was found in a model.

    Attributes
    ----------
    peaks : float array, shape (blocks, heads)
        Share of the copied tokens at whose origin the head's attention row had its maximum.
    attention : float array, shape (blocks, heads)
        Mean attention on the origin (prefix matching).
    copied : int
        Copied tokens looked at.
    fingerprint : str
        Of the model (:func:`specdec_lib.models.fingerprint.fingerprint`).
    """

    peaks: np.ndarray
    attention: np.ndarray
    copied: int
    fingerprint: str

    def ranked(self) -> list[tuple[int, int]]:
        """Heads credited at least once, most often credited first, by mean attention among equals."""
        blocks, heads = self.peaks.shape
        found = [(b, h) for b in range(blocks) for h in range(heads) if self.peaks[b, h] > 0]
        return sorted(found, key=lambda bh: (-self.peaks[bh], -self.attention[bh], bh))

    def top(self, count: int) -> list[tuple[int, int]]:
        """The ``count`` best heads."""
        ranked = self.ranked()
        if not 1 <= count <= len(ranked):
            raise ValueError(f"count is {count}; expected 1 to {len(ranked)}, the heads that were credited")
        return ranked[:count]

    def save(self, path: str | Path) -> None:
        """Write JSON, aside and renamed."""
        text = (
            json.dumps(
                {
                    "format": FORMAT,
                    "fingerprint": self.fingerprint,
                    "copied": self.copied,
                    "peaks": self.peaks.tolist(),
                    "attention": self.attention.tolist(),
                },
                indent=1,
            )
            + "\n"
        )
        with replacing(path) as aside:
            aside.write_text(text)

    @classmethod
    def load(cls, path: str | Path, model: PreTrainedModel) -> InductionHeads:
        """Read what :meth:`save` wrote, for the model it was found in."""
        broken = ValueError(f"{path} does not hold induction heads; expected a file written by InductionHeads.save")
        try:
            about = json.loads(Path(path).read_text())
            version = about["format"]
        except (ValueError, KeyError, TypeError):
            raise broken from None
        if version != FORMAT:
            raise ValueError(
                f"{path} is of format {version}; this version reads format {FORMAT}: identify the heads again"
            )
        try:
            made_for, copied = about["fingerprint"], about["copied"]
            peaks, attention = (np.array(about[name], dtype=float) for name in ("peaks", "attention"))
        except (ValueError, KeyError, TypeError):
            raise broken from None
        if not isinstance(made_for, str) or type(copied) is not int or copied < 1:
            raise broken
        own = fingerprint(model)
        if made_for != own:
            raise ValueError(
                f"{path} was made for another model (fingerprint {made_for[:12]}, this one has "
                f"{own[:12]}): identify the heads of this model"
            )
        config = decoder_config(model)
        shape = (config.num_hidden_layers, config.num_attention_heads)
        if not all(a.shape == shape and np.isfinite(a).all() for a in (peaks, attention)):
            raise broken
        return cls(peaks, attention, copied, own)


def identify(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int = 128,
    sampling: Sampling | None = None,
    progress: bool = True,
) -> InductionHeads:
    """Generate on calibration prompts and credit the heads that look at the origin of what is copied.

    Parameters
    ----------
    model : PreTrainedModel
        Loaded with SDPA attention.
    prompts : sequence of sequences of int
        Token ids; input-guided tasks, whose answers copy.
    max_new_tokens : int
        Fewer where the model's context ends before.
    sampling : Sampling, optional
        Greedy by default.
    progress : bool
        Show a bar.
    """
    if not len(prompts):
        raise ValueError("no prompts; expected at least one calibration prompt")
    texts = [as_token_list(prompt, vocabulary_size(model)) for prompt in prompts]
    limit = context_limit(model)
    for i, text in enumerate(texts):
        if limit is not None and len(text) >= limit:
            raise ValueError(
                f"prompt {i} has {len(text)} tokens and the model's context is {limit}: no room for a new "
                "token; shorten it or leave it out"
            )
    shown = tqdm(texts, desc="induction heads", unit="prompt", disable=not progress)
    return credited(model, (record(model, text, sampling, max_new_tokens, capture=every_head(model)) for text in shown))


def every_head(model: PreTrainedModel) -> Capture:
    """The attention rows of all heads, which :func:`credited` reads."""
    config = decoder_config(model)
    return Capture(
        heads=tuple((b, h) for b in range(config.num_hidden_layers) for h in range(config.num_attention_heads))
    )


def credited(model: PreTrainedModel, traces: Iterable[Trace]) -> InductionHeads:
    """Credit the heads that looked at the origin of what was copied in recorded runs.

    Parameters
    ----------
    model : PreTrainedModel
        Whose runs they are.
    traces : iterable of Trace
        With :func:`every_head` captured, and perhaps more.
    """
    every = every_head(model).heads
    peaks, weight, copied, runs = np.zeros(len(every)), np.zeros(len(every)), 0, 0
    for trace in traces:
        if trace.heads != every:
            raise ValueError(
                f"a run has attention rows of {len(trace.heads)} heads; expected those of all {len(every)}, in order: "
                "record it with capture=every_head(model)"
            )
        runs += 1
        text, length = [*trace.prompt, *trace.tokens], len(trace.prompt)
        for position, rows in enumerate(trace.attention, start=length):
            place = None if text[position] in trace.limits.eos else origin(text, position, length)
            if place is not None:
                peaks += (rows.argmax(-1) == place).numpy()
                weight += rows[:, place].double().numpy()
                copied += 1
    if not copied:
        raise ValueError(f"none of the new tokens of {runs} prompts occurs in its prompt; use input-guided prompts")
    shape = decoder_config(model).num_hidden_layers, -1
    return InductionHeads((peaks / copied).reshape(shape), (weight / copied).reshape(shape), copied, fingerprint(model))
