"""Where each character and each token of a known answer was copied from.

A program builds the answers of the mechanical tasks from their prompts, so the origin of every character is known. QuoteSum
marks what its answers quote and from which source.
"""

from __future__ import annotations

import ast
import re
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


def _substitution(turn: str, verb: str, link: str) -> list[Copied]:
    """Text with one word replaced: its parts come from the text, the new word from the instruction."""
    found = re.match(rf"{verb} `([^`]*)` {link} `([^`]*)`\.\n\n", turn)
    old, new = found.groups()
    start, out, done, written = found.end(), [], found.end(), 0
    for match in re.finditer(rf"\b{re.escape(old)}\b", turn[start:]):
        place = start + match.start()
        out += [Copied(written, done, place - done), Copied(written + place - done, found.start(2), len(new))]
        written, done = written + place - done + len(new), start + match.end()
    return [*out, Copied(written, done, len(turn) - done)]


def _lines(turn: str, wanted: str) -> list[Copied]:
    """Whole lines of the text, joined by line breaks; those match ``wanted``."""
    out, place, written = [], turn.index("\n\n") + 2, 0
    for line in turn[place:].split("\n"):
        if re.search(wanted, line):
            out.append(Copied(written, place, len(line)))
            written += len(line) + 1
        place += len(line) + 1
    return out


def _without_docstring(turn: str) -> list[Copied]:
    """The lines before the docstring and those after it."""
    start = turn.index("\n\n") + 2
    lines = turn[start:].split("\n")
    docstring = ast.parse(turn[start:]).body[0].body[0]
    before = len("\n".join(lines[: docstring.lineno - 1])) + 1
    behind = len("\n".join(lines[: docstring.end_lineno])) + 1
    return [Copied(0, start, before), Copied(before, start + behind, len(turn) - start - behind)]


#: Tasks of one turn whose every character has one origin.
ALIGNED = ("rename", "replace-word", "remove-docstring", "quote-lines", "outline", "complete")


def copied(prompt: Prompt) -> list[Copied]:
    """What the reference of a mechanical prompt takes from its turn, in order; line breaks between quoted lines are covered by
    nothing.

    The task is one of :data:`ALIGNED`: a second turn has two rightful origins, the text and the first answer, and running text
    has none.
    """
    turn, answer = prompt.text, prompt.reference or ""
    match prompt.task:
        case "rename":
            spans = _substitution(turn, "Rename", "to")
        case "replace-word":
            spans = _substitution(turn, "Replace", "by")
        case "remove-docstring":
            spans = _without_docstring(turn)
        case "quote-lines":
            spans = _lines(turn, rf"\b{re.match(r'Quote the lines with `([^`]*)`', turn).group(1)}\b")
        case "outline":
            spans = _lines(turn, r"^\s*(async )?(def|class)\b")
        case "complete":
            spans = [Copied(0, len(turn) - len(answer), len(answer))]
        case _:
            raise ValueError(f"task is {prompt.task!r}; expected one of {', '.join(ALIGNED)}, whose origins are known")
    spans = [span for span in spans if span.length]
    if any(answer[s.answer : s.answer + s.length] != turn[s.turn : s.turn + s.length] for s in spans):
        raise ValueError(f"the reference of prompt {prompt.id!r} is not what its task asks for; was it changed?")
    return spans


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


def mechanical(tokenizer: PreTrainedTokenizerBase, per_task: int, seed: int = 0) -> list[Alignment]:
    """The right answers of ``per_task`` prompts of each task of :data:`ALIGNED`."""
    prompts = [prompt for task in ALIGNED for prompt in load_task(task, limit=per_task, seed=seed)]
    return [align(prompt, tokenizer, copied(prompt)) for prompt in prompts]


def quotesum(tokenizer: PreTrainedTokenizerBase, count: int, room: int) -> list[Alignment]:
    """At most ``count`` answers of QuoteSum that fit ``room`` tokens with their prompts; none where the set is not there."""
    try:
        prompts = load_task("quotesum", limit=4 * count) if count else []
    except (MissingData, ValueError):
        return []
    aligned = (align(prompt, tokenizer, quoted(prompt)) for prompt in prompts)
    fitting = (one for one in aligned if len(one.prompt) + len(one.answer) <= room)
    return [one for one, _ in zip(fitting, range(count), strict=False)]
