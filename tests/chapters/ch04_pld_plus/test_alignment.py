"""Where quotations were copied from, as characters and as tokens."""

from __future__ import annotations

import pytest

from specdec_lib.chapters.ch04_pld_plus import attribution
from specdec_lib.experiments.prompt import Prompt
from specdec_lib.experiments.tasks import load_task


def quoting() -> Prompt:
    sources = ((1, "Fish", "Cod live in cold water."), (2, "Birds", "Terns fly far. Cod live."))
    text = "Quote.\n\n[1] Fish\nCod live in cold water.\n\n[2] Birds\nTerns fly far. Cod live.\n\nQuestion: where?"
    return Prompt(
        "q",
        "quotesum",
        (text,),
        chat=True,
        reference="Cod live in cold water and terns, Cod live",
        meta={"sources": sources, "quotes": ((1, "Cod live in cold water"), (2, "Cod live"), (2, "gone"))},
    )


def test_quotations_lie_in_the_source_they_name():
    prompt = quoting()
    assert attribution.quoted(prompt) == [
        attribution.Copied(0, prompt.text.index("Cod live in"), 22),
        attribution.Copied(34, prompt.text.rindex("Cod live"), 8),
    ]


def test_tokens_are_copied_where_all_their_characters_are_and_come_from_equal_tokens(tokenizer):
    prompt = quoting()
    found = attribution.align(prompt, tokenizer, attribution.quoted(prompt))
    assert tokenizer.decode(found.answer) == prompt.reference
    done, seen = 0, []
    for token, copied, origin in zip(found.answer, found.copied, found.origin, strict=True):
        end = done + len(tokenizer.decode([token]))
        assert copied == (end <= 22 or done >= 34)
        if origin >= 0:
            assert copied and found.prompt[origin] == token
            seen.append(origin)
        done = end
    assert len(seen) > 5 and len(set(seen)) == len(seen)


@pytest.mark.realdata
def test_nearly_all_quotations_of_quotesum_are_found(tokenizer):
    prompts = load_task("quotesum", limit=100)
    marked = sum(len(prompt.meta["quotes"]) for prompt in prompts)
    spans = [(prompt, span) for prompt in prompts for span in attribution.quoted(prompt)]
    assert len(spans) > 0.9 * marked
    for prompt, span in spans:
        assert prompt.reference[span.answer :][: span.length] == prompt.text[span.turn :][: span.length]
