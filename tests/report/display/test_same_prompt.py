"""The prompt to which every chapter comes back: its passes are those of the loop, and every one of them is shown."""

import re

import method_examples
import pytest

from specdec_lib import Sampling, load_model
from specdec_lib.drafters import DraftModel, PromptLookup, TokenRecycling
from specdec_lib.methods import METHODS
from specdec_lib.report.display import same_prompt, worked_example


def drafted(one):
    """Tokens and accepted ones of a chain, and the target's own, as the worked example has them."""
    return list(one["words"][: len(one["path"]) + 1]), len(one["path"]), one["own"]


def in_example(one):
    """The same of a pass of the worked example."""
    return one["drafted"][: one["accepted"] + 1], one["accepted"], one["own"]


@pytest.fixture(scope="module")
def models():
    model, tokenizer = load_model("pocket")
    return model, load_model("pocket-draft")[0], tokenizer


def test_a_draft_model_is_verified_as_in_the_worked_example(models):
    (model, draft, tokenizer), compared = models, 0
    for seed in range(3):
        story = method_examples.STORY | {"sampling": Sampling(temperature=1.0, seed=seed)}
        example = method_examples.worked(model, draft, tokenizer, **story, passes=3)
        found = method_examples.under(model, {"SpecDec": DraftModel(draft, 4)}, tokenizer, **story, passes=3)["SpecDec"]
        found = [one for one in found if one["own"] is not None]  # the worked example goes on where a text ends
        compared += len(found)
        assert list(map(drafted, found)) == list(map(in_example, example["passes"][: len(found)]))
    assert compared


def test_drafts_change_how_many_passes_it_takes_and_not_the_text(models):
    model, _, tokenizer = models
    drafters = {"PLD": PromptLookup(2, 4, variant="transformers"), "Token Recycling": TokenRecycling((3, 3))}
    passes = method_examples.under(model, drafters, tokenizer, **method_examples.STORY, passes=6)
    written = {
        name: "".join("".join(one["words"][node] for node in one["path"]) + (one["own"] or "") for one in own)
        for name, own in passes.items()
    }
    shorter, longer = sorted(written.values(), key=len)
    assert shorter and longer.startswith(shorter)
    assert any(one["path"] for own in passes.values() for one in own)


def test_the_answer_is_written_as_given_and_a_pass_begins_where_it_ends(models):
    model, _, tokenizer = models
    answer = tokenizer(method_examples.STORY["begun"])["input_ids"]
    (found,) = method_examples.under(
        model, {"PLD": PromptLookup(1, 8, variant="transformers")}, tokenizer, **method_examples.STORY, passes=1
    ).values()
    assert found[0]["root"] == tokenizer.decode(answer[-1:])


@pytest.mark.skipif(not same_prompt.FILE.is_file(), reason="make examples ARGS=same-prompt has not been run")
def test_what_is_kept_has_every_method_and_agrees_with_the_worked_example():
    kept, example = same_prompt.load(), worked_example.load()
    assert kept["question"] == same_prompt.QUESTION and kept["text"] == example["text"]
    assert set(METHODS) <= set(kept["passes"])
    # The committed models are SmolLM2's, and so are the coins.
    assert list(map(drafted, kept["passes"]["SpecDec"][:2])) == list(map(in_example, example["passes"]))


def test_each_pass_is_shown_with_its_tokens_and_counts(monkeypatch):
    chain = {
        "parents": [-1, 0, 1],
        "words": ["a", "b", "c"],
        "root": "+",
        "path": [0],
        "own": "x<",
        "hidden": 2,
        "drafted": 5,
    }
    tree = {
        "parents": [-1, -1, 1],
        "words": ["a", "b", "c"],
        "root": "x",
        "path": [1, 2],
        "own": "d",
        "hidden": 1,
        "drafted": 4,
    }
    whole = {"parents": [-1], "words": ["a"], "root": "d", "path": [0], "own": "b", "hidden": 0, "drafted": 1}
    none = {"parents": [], "words": [], "root": "b", "path": [], "own": "c", "hidden": 0, "drafted": 0}
    ended = whole | {"own": None}
    kept = {"text": "y +", "passes": {"PLD": [chain, tree, whole, none, ended]}}
    monkeypatch.setattr(same_prompt, "load", lambda: kept)
    html = same_prompt.same_prompt("PLD", passes=5).data
    assert "5 tokens are drafted, 1 accepted. The target adds “x&lt;”, so the pass emits 2." in html
    assert "and 2 more drafted tokens<" in html and "and 1 more drafted token<" in html
    assert "1 token is drafted, 1 accepted. The target adds “b”, the bonus token." in html
    assert "Nothing is drafted. The target writes “c”" in html
    rows = re.findall(r"<pre>(.*?)</pre>", html)
    # The accepted branch stands first, then the other one.
    assert re.findall(r'class="(\w+)">(\w)', rows[3]) == [("kept", "b"), ("kept", "c")]
    assert re.findall(r'class="(\w+)">(\w)', rows[4]) == [("lost", "a")]
    assert re.findall(r'class="(\w+)">(\w)', rows[0]) == [("kept", "a"), ("lost", "b"), ("open", "c")]
    assert "1 token is drafted, 1 accepted. The text ends inside the draft." in html
    assert html.count("Pass ") == 5 and same_prompt.same_prompt("PLD").data.count("Pass ") == 2
    with pytest.raises(ValueError, match="no pass of 'REST' is kept; expected some of PLD"):
        same_prompt.same_prompt("REST")
