"""Where each token of a known answer was copied from: QuoteSum marks what its answers quote and from which source."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from transformers import PreTrainedTokenizerBase

from specdec_lib.experiments.prompt import Prompt
from specdec_lib.experiments.published_sets import MissingData
from specdec_lib.experiments.recorded_runs import render
from specdec_lib.experiments.tasks import load_task


class Copied(NamedTuple):
    """``length`` characters of the answer from ``answer`` on are those of the user's turn from ``turn``
    on."""

    answer: int
    turn: int
    length: int


def quoted(prompt: Prompt) -> list[Copied]:
    """The quotations of a QuoteSum answer that stand word for word in the source they name, each with its first
    occurrence there."""
    blocks = {k: f"[{k}] {title}\n{text.strip()}" for k, title, text in prompt.meta["sources"]}
    out, written = [], 0
    for source, text in prompt.meta["quotes"]:
        answer = prompt.reference.find(text, written)
        inside = blocks.get(source, "").find(text)
        if answer < 0:
            continue
        written = answer + len(text)
        if inside >= 0:
            out.append(Copied(answer, prompt.text.index(blocks[source]) + inside, len(text)))
    return out


class Alignment(NamedTuple):
    """A prompt, its answer, and for each answer token whether every character was copied and from which prompt token
    (-1 where none covers the same characters)."""

    prompt: list[int]
    answer: list[int]
    copied: np.ndarray
    origin: np.ndarray


def align(prompt: Prompt, tokenizer: PreTrainedTokenizerBase, spans: Sequence[Copied]) -> Alignment:
    """Turn an alignment of characters into one of tokens, for a prompt of one turn and a fast tokenizer with a chat template."""
    if not tokenizer.is_fast:
        raise ValueError(
            f"the tokenizer {type(tokenizer).__name__} does not tell which characters a token covers; "
            "expected a fast one"
        )
    message = [{"role": "user", "content": prompt.text}]
    text = tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True)
    start = text.index(prompt.text)
    asked = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    said = tokenizer(prompt.reference, add_special_tokens=False, return_offsets_mapping=True)
    if asked["input_ids"] != render(prompt, tokenizer):
        raise ValueError(
            f"the tokenizer {tokenizer.name_or_path!r} divides the rendered chat otherwise than its own "
            "template does; its tokens cannot be aligned with characters"
        )
    source = np.full(len(prompt.reference), -1)
    for span in spans:
        source[span.answer : span.answer + span.length] = start + span.turn + np.arange(span.length)
    by_span = {tuple(place): i for i, place in enumerate(asked["offset_mapping"])}
    count = len(said["input_ids"])
    covered, origin = np.zeros(count, bool), np.full(count, -1)
    for i, (a, b) in enumerate(said["offset_mapping"]):
        places = source[a:b]
        covered[i] = b > a and bool((places >= 0).all())
        if covered[i] and bool((np.diff(places) == 1).all()):
            origin[i] = by_span.get((int(places[0]), int(places[-1]) + 1), -1)
    return Alignment(asked["input_ids"], said["input_ids"], covered, origin)


def quotesum(tokenizer: PreTrainedTokenizerBase, count: int, room: int) -> list[Alignment]:
    """At most ``count`` answers of QuoteSum that fit ``room`` tokens with their prompts; none where the set is not there."""
    try:
        prompts = load_task("quotesum", limit=4 * count) if count else []
    except (MissingData, ValueError):
        return []
    aligned = (align(prompt, tokenizer, quoted(prompt)) for prompt in prompts)
    fitting = (one for one in aligned if len(one.prompt) + len(one.answer) <= room)
    return [one for one, _ in zip(fitting, range(count), strict=False)]
