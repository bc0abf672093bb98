"""The commands of one tree: any sources are fitted and priced, and a fit of one's own is what the tree drafts by."""

import json

import pytest

from specdec_lib.cli import main
from specdec_lib.datastores import build_from_texts
from specdec_lib.drafters.merged_tree import FEATURES
from specdec_lib.drafters.pass_prices import MERGING, PassPrices
from specdec_lib.drafters.tree_probabilities import TreeProbabilities
from specdec_lib.experiments.recorded_runs import load_pair
from specdec_lib.experiments.workbench import ModelPair

CODE = "def add(total, x):\n    total = total + x\n    return total\n"
SOURCES = ("PLD", "REST", "SuffixDecoding", "SpecDec++")


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """Weights of other sources than the shipped ones."""
    path = tmp_path_factory.mktemp("fit") / "tree.safetensors"
    words = ["--target", "pocket", "--draft", "pocket-draft"]
    words += [word for source in SOURCES for word in ("--source", source)]
    few = ["--task", "code editing", "--prompts", "2", "--max-new-tokens", "24", "--store-tokens", "20000"]
    assert main(["fit-tree", *words, *few, "--out", str(path)]) == 0
    return path


@pytest.fixture
def answers(tmp_path):
    path = tmp_path / "answers.jsonl"
    rows = [{"prompt": CODE * 2 + str(i), "answer": CODE * 2} for i in range(3)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_any_sources_are_fitted_and_one_tree_drafts_from_those_of_its_weights(fitted, answers, tmp_path):
    weights = TreeProbabilities.load(fitted)
    assert weights.sources == SOURCES and "code editing" in weights.fitted_on
    moved = abs(weights.weights - TreeProbabilities.unfitted(SOURCES).weights)
    assert moved.reshape(len(SOURCES), len(FEATURES)).max(1).min() > 0.01
    pair = ModelPair(*load_pair("pocket", "pocket-draft", "cpu"), store_tokens=20_000, tree_weights=fitted)
    tree = pair.drafters(["One tree"])["One tree"]
    assert tuple(tree.sources) == SOURCES
    assert (tree.probabilities.weights == weights.weights).all()
    build_from_texts(tmp_path / "store", [CODE * 3] * 4, pair.tokenizer, progress=False)
    told = {}
    for own in ([], ["--weights", str(fitted)]):
        out = tmp_path / "found.json"
        assert main(["diagnose", str(answers), *own, "--store", str(tmp_path / "store"), "--json", str(out)]) == 0
        found = json.loads(out.read_text())
        (told[bool(own)],) = (one["drafter"] for one in found["methods"] if one["method"] == "One tree")
        assert found["weights"] == (str(fitted) if own else None)
    assert "OneTree(PLD, REST;" in told[False] and "OneTree(PLD, REST, SuffixDecoding;" in told[True]


def test_a_source_that_needs_a_draft_model_is_refused_without_one(tmp_path, capsys):
    out = tmp_path / "tree.safetensors"
    words = "fit-tree --target pocket --source PLD --source SpecDec --task mathematics --prompts 1".split()
    assert main([*words, "--max-new-tokens", "8", "--out", str(out)]) == 2
    assert "the source SpecDec needs a draft model" in capsys.readouterr().err
    assert not out.exists()


def test_drafting_is_priced_and_counts(answers, tmp_path, capsys):
    """What calibrate measures of drafting stands in its file, and lowers what diagnose predicts by as much."""
    path = tmp_path / "prices.json"
    words = ["--target", "pocket", "--source", "PLD", "--context", "64", "--repeats", "2"]
    assert main(["calibrate", *words, "--out", str(path)]) == 0
    prices = PassPrices.load(path)
    assert set(prices.drafting) == {"PLD", "REST", "SuffixDecoding", MERGING}
    assert prices.step > 0 and all(prices.drafting[name] > 0 for name in ("PLD", "REST", "SuffixDecoding"))
    assert prices.drafted_token == 0.0
    found = {}
    for name, drafting in (("free", {}), ("paid", {"PLD": 0.25, "SuffixDecoding": 0.5, MERGING: 0.125})):
        PassPrices({1: 1.0}, step=0.5, name=name, drafting=drafting).save(tmp_path / f"{name}.json")
        out, given = tmp_path / f"{name}-found.json", ["--prices", str(tmp_path / f"{name}.json")]
        assert main(["diagnose", str(answers), *given, "--json", str(out)]) == 0
        found[name] = json.loads(out.read_text())
    assert found["free"]["free"] == ["PLD", "SuffixDecoding"] and found["paid"]["free"] == []
    told = "Drafting counts as free, because these prices have no time for it: PLD, SuffixDecoding."
    assert told in capsys.readouterr().out
    for one in found["free"]["methods"] + found["paid"]["methods"]:
        paid = one in found["paid"]["methods"]
        own = {"PLD": 0.25, "SuffixDecoding": 0.5, "One tree": 0.375}[one["method"]] if paid else 0.0
        # Plain decoding pays for the pass and the step's own work: 1.5 a token.
        assert one["speedup"]["value"] == pytest.approx(one["tokens_per_pass"]["value"] * 1.5 / (1.5 + own))
