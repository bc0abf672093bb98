"""Attribution by copying (PLD+, appendix D): which tokens of an output were copied, and from where.

A draft that the target accepts was copied from a known position. Accepted spans of at least a given length attribute their
tokens to that position; all other tokens are taken to be the model's own. The truth is QuoteSum's, which marks what its answers
quote and from which source.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from specdec_lib.decoding.contract import Drafter
from specdec_lib.decoding.replay import replay
from specdec_lib.decoding.results import Generation
from specdec_lib.decoding.teacher_forcing import record_known
from specdec_lib.experiments.prompt import Prompt
from specdec_lib.experiments.published_sets import MissingData
from specdec_lib.experiments.recorded_runs import render
from specdec_lib.experiments.tasks import load_task

#: What scores are the ratio of (:func:`specdec_lib.experiments.results.rate`): whether copied tokens are told from others, and
#: the share of the found ones that are attributed to their origin.
PRECISION, RECALL, F1 = ("found", "attributed"), ("found", "copied"), ("found", "either")
RIGHT_PLACE = ("exact", "located")


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


def attributed(run: Generation, least: int) -> np.ndarray:
    """Prompt position of each output token that was copied in an accepted span of ``least`` tokens or more; -1 where
    nothing is attributed, or it was copied from the output itself.

    ValueError for the run of a drafter that does not say where its drafts come from.
    """
    out = np.full(len(run.tokens), -1)
    place = 1  # the first token comes from the prefill
    for step in run.steps:
        source = step.tree.copied_from
        if source is None and len(step.tree):
            raise ValueError(f"{step.tree} does not say where it was copied from; expected a run of PLD or PLD+")
        if source is not None and step.accepted >= least:
            positions = source + np.arange(step.accepted)
            out[place : place + step.accepted] = np.where(positions < run.prompt_length, positions, -1)
        place += len(step.tokens)
    return out


def count(truth: Alignment, positions: np.ndarray) -> dict[str, int]:
    """Compare the positions of :func:`attributed` with the truth, in numbers of tokens of the answer.

    ``copied``; ``attributed`` to a position; ``found``, those that are both; ``located``, found ones whose one origin is known;
    ``exact``, located ones that are attributed to it. An end token after the answer is left out.
    """
    if len(positions) < len(truth.answer):
        raise ValueError(
            f"{len(positions)} positions for an answer of {len(truth.answer)} tokens; expected one for each"
        )
    positions = np.asarray(positions)[: len(truth.answer)]
    said, found = positions >= 0, (positions >= 0) & truth.copied
    located = found & (truth.origin >= 0)
    return {
        "copied": int(truth.copied.sum()),
        "attributed": int(said.sum()),
        "found": int(found.sum()),
        "located": int(located.sum()),
        "exact": int((located & (positions == truth.origin)).sum()),
    }


def count_each(
    model: PreTrainedModel, truths: Mapping[str, Sequence[Alignment]], drafter: Drafter, least: Sequence[int]
) -> pd.DataFrame:
    """Attribute known answers at each least span: a row per answer and ``least``, with the counts of :func:`count`.

    The model is made to say each answer. ``task`` is the name of the set of answers in ``truths``, ``prompt`` the number of the
    answer.
    """
    rows = []
    for task, answers in truths.items():
        for number, truth in enumerate(answers):
            drafter.reset()  # cold: an answer is not attributed by what another one taught
            said = record_known(model, truth.prompt, truth.answer, "length", None, len(truth.answer), drafter.capture)
            run = replay(said.trace, drafter)
            for span in least:
                counts = count(truth, attributed(run, span))
                either = (counts["attributed"] + counts["copied"]) / 2
                rows.append({"task": task, "prompt": number, "least": span, **counts, "either": either})
    return pd.DataFrame(rows)
