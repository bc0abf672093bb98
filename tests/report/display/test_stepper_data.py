"""The data of the viewer are what the run did, and its costs those of the curves; the coloured tokens of a run."""

import json
import re
from html import unescape

import pytest

from specdec_lib import DraftTree, Generation, generate
from specdec_lib.decoding.results import Step
from specdec_lib.drafters import PromptLookup, TokenRecycling
from specdec_lib.drafters.pass_costs import CURVES, PassCosts
from specdec_lib.report.display import stepper
from specdec_lib.report.display.stepper import viewer_data


class Letters:
    """A tokenizer whose token ids are code points."""

    def decode(self, tokens):
        return "".join(map(chr, tokens))


def points(text):
    return [ord(letter) for letter in text]


def run(*steps, first="a"):
    return Generation([*points(first), *(t for s in steps for t in s.tokens)], list(steps), "length", 2, 0.0)


def step(tree, path, tokens):
    return Step(tree, tuple(path), tuple(points(tokens)), 0.0, 0.0, 0.0)


def run_of(*steps, first="a"):
    """A run whose steps are (tree, path, emitted text)."""
    return run(*(step(*one) for one in steps), first=first)


# A chain of three of which one is kept, a fork of which one child is kept, and a pass without a draft.
CHAIN = step(DraftTree.chain(points("bxx")), [0], "bc")
NOTED = DraftTree(points("ydz"), [-1, -1, 1]).annotated(scores=[0.25, 0.5, 0.125], sources=["p", "q", "p"])
FORK = step(NOTED, [1], "de")
BARE = step(DraftTree.chain([]), [], "f")
COSTS = [PassCosts({1: 1.0, 2: 1.0, 4: 3.0}, step=0.5, drafted_token=0.25, name="steep"), CURVES["gpu"]]


def texts(data, places):
    return "".join(data["texts"][place] for place in places)


def output(data, run):
    """The text that the steps of a run emit, as a reader puts it together."""
    tokens = list(run["first"])
    for one in run["steps"]:
        tokens += [one["t"][node] for node in one["a"]] + one["o"]
    return texts(data, tokens)


def test_steps_hold_tree_path_own_token_scores_and_sources():
    data = viewer_data({"PLD": [run(CHAIN, FORK, BARE)]}, Letters(), {"one": points("hi")}, COSTS)
    (example,) = data["examples"]
    (own,) = example["runs"]
    chain, fork, bare = own["steps"]
    assert texts(data, example["prompt"]) == "hi" and output(data, own) == "abcdef"
    assert (texts(data, chain["t"]), chain["a"], texts(data, chain["o"])) == ("bxx", [0], "c") and "p" not in chain
    assert (texts(data, fork["t"]), fork["p"], fork["a"]) == ("ydz", [-1, -1, 1], [1])
    assert fork["s"] == [0.25, 0.5, 0.12] and fork["f"] == ["p", "q", "p"]
    assert bare["t"] == [] and bare["w"] == 1


@pytest.mark.parametrize(
    ("method", "drafting"), [("PLD", [0.5, 0.5, 0.5]), ("SpecDec", [0.75, 0.75, 0.0]), ("plain", None)]
)
def test_costs_are_those_of_the_width_and_of_the_units_of_drafting(method, drafting):
    data = viewer_data({method: [run(CHAIN, FORK, BARE)]}, Letters(), {"one": points("hi")}, COSTS)
    steps = data["examples"][0]["runs"][0]["steps"]
    # Passes over 4, 4 and 1 tokens; a GPU's over 4 is 3/7 of the way to its 1.01 for 8.
    assert [one["c"] for one in steps] == [[3.0, 1.0043], [3.0, 1.0043], [1.0, 1.0]]
    assert [one["d"][0] for one in steps] == drafting if drafting else all("d" not in one for one in steps)


def test_a_wide_draft_and_a_long_prompt_are_cut_and_say_so():
    tokens = list(range(100, 180))
    wide = DraftTree(tokens, [-1] * 79 + [78])
    made = viewer_data(
        {"REST": [run(Step(wide, (78, 79), (178, 179, 5), 0, 0, 0))]}, Letters(), {"one": [7] * 250}, COSTS
    )
    assert len(made["examples"][0]["prompt"]) == stepper.PROMPT and made["examples"][0]["cut"] == 50
    (one,) = made["examples"][0]["runs"][0]["steps"]
    assert len(one["t"]) == stepper.NODES and one["h"] == 80 - stepper.NODES and one["w"] == 81
    assert texts(made, [one["t"][node] for node in one["a"]]) == chr(178) + chr(179)
    assert one["p"][one["a"][1]] == one["a"][0] and all(parent < node for node, parent in enumerate(one["p"]))


def test_the_real_runs_of_the_pocket_target_come_out_token_for_token(pocket):
    target, tokenizer = pocket
    prompt = tokenizer("for name in names:\n    print(name)\nfor name in")["input_ids"]
    drafters = {"PLD": PromptLookup(), "Token Recycling": TokenRecycling(), "plain": None}
    runs = {name: [generate(target, prompt, d, max_new_tokens=24, eos_token_id=())] for name, d in drafters.items()}
    viewer = stepper.stepper(runs, tokenizer, {"one": prompt})
    data = json.loads(viewer.json)
    assert data == viewer.data
    for own in data["examples"][0]["runs"]:
        (done,) = runs[own["method"]]
        assert output(data, own) == "".join(tokenizer.decode([t]) for t in done.tokens)
        assert [one["w"] for one in own["steps"]] == [s.width for s in done.steps]
        told = [*data["examples"][0]["prompt"], *own["first"]]
        for one in own["steps"]:
            if "k" in one:  # the draft stands at the place that it says it was copied from
                assert told[one["k"] : one["k"] + len(one["t"])] == one["t"]
            told += [one["t"][node] for node in one["a"]] + one["o"]
        assert any("k" in one for one in own["steps"]) == (own["method"] == "PLD")


def test_no_text_ends_the_html_early():
    runs = {"PLD": [run(step(DraftTree.chain([]), [], "<"))]}
    html = stepper.stepper(runs, Letters(), {"one": points("</script>")}).to_html()
    assert html.count("<script") == html.count("</script>") == 2 and "\\u003c" in html
    assert not re.search(r"\b(?:src|href|import|fetch)\s*[=(]", html), "it needs nothing else"


@pytest.mark.parametrize(("runs", "prompts", "costs", "words"), [
    ({}, {"one": [1]}, None, "0 methods, 1 prompts"),
    ({"PLD": []}, {}, None, "0 prompts"),
    ({"PLD": [run(BARE)]}, {"one": [1]}, [], "0 costs"),
    ({"PLD": [run(BARE)]}, {"one": [1], "two": [2]}, None, "PLD has 1 runs for 2 prompts"),
    ({"PLD": [run(CHAIN)]}, {"one": [1]}, None, r"have \d+ bytes; expected at most 100: give it fewer prompts"),
])  # fmt: skip
def test_what_cannot_be_shown_is_refused(runs, prompts, costs, words, monkeypatch):
    monkeypatch.setattr(stepper, "LIMIT", 100)
    with pytest.raises(ValueError, match=words):
        stepper.stepper(runs, Letters(), prompts, costs)


def viewed(*steps, first="a", **options):
    """The view of a run (:func:`run_of`), as (fate, title, text) of each token."""
    page = stepper.token_view(run_of(*steps, first=first), Letters(), "PLD", **options)
    return page, re.findall(r'<span class="specdec-(\w+)" title="([^"]*)">(.*?)</span>', page, re.DOTALL)


def chain(text):
    return DraftTree.chain(points(text))


def test_every_token_of_a_run_says_whose_it_is_and_what_became_of_it():
    page, shown = viewed((chain("b\n<>z"), [0, 1], "b\n&"), (chain(""), [], "y"), (chain("zzzzz"), [], "!"))
    assert [(fate, text) for fate, _, text in shown] == [
        ("target", "a"),
        *[("accepted", "b"), ("accepted", "↵\n"), ("rejected", "&lt;"), ("rejected", "&gt;"), ("rejected", "z")],
        *[("target", "&amp;"), ("target", "y"), *[("rejected", "z")] * 3, ("target", "!")],
    ]
    assert shown[1][1] == "step 1: drafted and accepted, proposed by PLD; 2 of 5 accepted"
    assert page.count('class="specdec-step"') == 3


def test_no_text_of_a_view_becomes_markup_and_a_rejected_token_takes_no_line():
    page, shown = viewed((chain("\n"), [], "x"), first="<", prompt="<b>", caption="a & <i>")
    text = unescape(re.sub(r"<style>.*?</style>|<[^>]+>", "", page, flags=re.DOTALL))
    assert "<i>" not in page and "<b><" in text and text.endswith("xa & <i>")
    title = "step 1: drafted and rejected (no part of the text), proposed by PLD; 0 of 1 accepted"
    assert shown[1] == ("rejected", title, "↵")
