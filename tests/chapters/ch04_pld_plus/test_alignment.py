"""Where answers were copied from: by hand for each task, and as tokens."""

from __future__ import annotations

import random

import pytest
from transformers import PreTrainedTokenizerFast

from specdec_lib import paths
from specdec_lib.chapters.ch04_pld_plus import alignment
from specdec_lib.experiments import made_tasks
from specdec_lib.experiments.prompt import Prompt
from specdec_lib.experiments.tasks import load_task

CODE = '''def area(width, height):
    """Return width times height."""
    if width < 0:
        raise ValueError(width)
    return width * height


def double(width):
    return 2 * width'''
FUNCTION = CODE.split("\n\n\n")[0]
PROSE = "The parser reads a file. When the file ends the parser stops and the file is closed."


@pytest.fixture(scope="module")
def tokenizer():
    return PreTrainedTokenizerFast.from_pretrained(paths.POCKET / "target")


def made(task, text, seed=0):
    turns, answers = made_tasks.MAKERS[task][0](text, random.Random(seed), ["zebra", "quark"])
    return Prompt("one", task, turns, reference=answers[-1], meta={"answers": answers})


def test_each_kept_character_comes_from_its_own_place_and_each_new_word_from_the_instruction():
    turn = "Rename `width` to `w`.\n\nwidth = 1\nprint(width)"
    prompt = Prompt("one", "rename", (turn,), reference="w = 1\nprint(w)")
    body, name = turn.index("\n\n") + 2, turn.index("`w`") + 1
    expected = [name, *range(body + 5, body + 16), name, body + 21]
    assert source_of(prompt) == expected


def source_of(prompt):
    out = [-1] * len(prompt.reference)
    for span in alignment.copied(prompt):
        for i in range(span.length):
            out[span.answer + i] = span.turn + i
    return out


@pytest.mark.parametrize(
    "task, text",
    [
        ("rename", CODE),
        ("replace-word", PROSE),
        ("remove-docstring", FUNCTION),
        ("quote-lines", CODE),
        ("outline", CODE),
        ("complete", CODE),
    ],
)
@pytest.mark.parametrize("seed", range(4))
def test_every_character_but_joining_line_breaks_has_a_place_that_holds_it(task, text, seed):
    prompt = made(task, text, seed)
    places = source_of(prompt)
    turn, answer = prompt.text, prompt.reference
    body = turn.index("\n\n") + 2
    assert all(turn[p] == c for p, c in zip(places, answer, strict=True) if p >= 0)
    uncovered = "".join(c for p, c in zip(places, answer, strict=True) if p < 0)
    assert uncovered == ("\n" * answer.count("\n") if task in ("quote-lines", "outline") else "")
    from_text = [p for p in places if p >= body]
    assert from_text == sorted(set(from_text))
    if task == "remove-docstring":
        left = "".join(turn[p] for p in range(body, len(turn)) if p not in from_text)
        assert left.strip() == '"""Return width times height."""'
    if task in ("rename", "replace-word"):
        word = turn.split("`")[1]
        left = "".join(turn[p] for p in range(body, len(turn)) if p not in from_text)
        assert left == word * text.count(word)


def test_a_line_that_is_there_twice_is_taken_from_both_places():
    prompt = Prompt(
        "one", "quote-lines", ("Quote the lines with `a`.\n\na = 1\nb = 2\na = 1",), reference="a = 1\na = 1"
    )
    body = prompt.text.index("\n\n") + 2
    assert source_of(prompt) == [*range(body, body + 5), -1, *range(body + 12, body + 17)]


def test_tasks_without_one_origin_and_changed_answers_are_refused():
    with pytest.raises(ValueError, match="task is 'two-turn'"):
        alignment.copied(Prompt("one", "two-turn", ("a", "b"), reference="c"))
    prompt = made("complete", CODE)
    with pytest.raises(ValueError, match="is not what its task asks for"):
        alignment.copied(Prompt("one", "complete", prompt.turns, reference="x" + prompt.reference[1:]))


@pytest.mark.parametrize("task, text", [("rename", CODE), ("quote-lines", CODE), ("replace-word", PROSE)])
def test_tokens_come_from_equal_tokens_at_the_place_of_their_characters(tokenizer, task, text):
    prompt = made(task, text, 1)
    found = alignment.align(prompt, tokenizer, alignment.copied(prompt))
    assert tokenizer.decode(found.answer) == prompt.reference
    before = len(tokenizer.encode("<|user|>", add_special_tokens=False))
    places, done = source_of(prompt), 0
    offsets = [0]
    for token in found.prompt[before:]:
        offsets.append(offsets[-1] + len(tokenizer.decode([token])))
    assert found.copied.any()
    for token, copied, origin in zip(found.answer, found.copied, found.origin, strict=True):
        size = len(tokenizer.decode([token]))
        own = places[done : done + size]
        assert copied == (min(own) >= 0)
        whole = copied and own == list(range(own[0], own[0] + size))
        expected = offsets.index(own[0]) if whole and own[0] in offsets else None
        if origin >= 0:
            assert found.prompt[origin] == token and origin == before + expected
        elif expected is not None:
            assert tokenizer.decode([found.prompt[before + expected]]) != tokenizer.decode([token])
        done += size


def test_quotations_lie_in_the_source_they_name():
    sources = ((1, "Fish", "Cod live in cold water."), (2, "Birds", "Terns fly far. Cod live."))
    text = "Quote.\n\n[1] Fish\nCod live in cold water.\n\n[2] Birds\nTerns fly far. Cod live.\n\nQuestion: where?"
    prompt = Prompt(
        "q",
        "quotesum",
        (text,),
        reference="Cod live in cold water and terns, Cod live",
        meta={"sources": sources, "quotes": ((1, "Cod live in cold water"), (2, "Cod live"), (2, "gone"))},
    )
    assert alignment.quoted(prompt) == [
        alignment.Copied(0, text.index("Cod live in"), 22),
        alignment.Copied(34, text.rindex("Cod live"), 8),
    ]


@pytest.mark.realdata
def test_nearly_all_quotations_of_quotesum_are_found(tokenizer):
    prompts = load_task("quotesum", limit=100)
    marked = sum(len(prompt.meta["quotes"]) for prompt in prompts)
    spans = [(prompt, span) for prompt in prompts for span in alignment.quoted(prompt)]
    assert len(spans) > 0.9 * marked
    for prompt, span in spans:
        assert prompt.reference[span.answer :][: span.length] == prompt.text[span.turn :][: span.length]
