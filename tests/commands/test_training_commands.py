"""The commands that train, find or fit something for a model: what they write and go on with, on tiny models."""

import json
import shlex
from functools import partial

import pytest
import torch

from specdec_lib import generate, load_model, paths
from specdec_lib.cli import main
from specdec_lib.datastores import build_from_texts
from specdec_lib.drafters.merged_tree import FEATURES
from specdec_lib.drafters.pass_costs import MERGING, PassCosts
from specdec_lib.drafters.tree_probabilities import TreeProbabilities
from specdec_lib.experiments import head_training
from specdec_lib.experiments.data.prompt import render
from specdec_lib.experiments.data.tasks import choosing_prompts, load_task
from specdec_lib.experiments.runs.recorded_runs import load_pair
from specdec_lib.experiments.workbench import ModelPair
from specdec_lib.heads.acceptance import AcceptanceHead
from specdec_lib.heads.draft_training import HeadTraining
from specdec_lib.heads.drafting import KINDS, DraftHead
from specdec_lib.heads.induction import InductionHeads, identify
from specdec_lib.methods import METHODS
from specdec_lib.models.fingerprint import fingerprint
from tests.families import build, prompt, save
from tests.interrupted import full, kill, stopped

ROWS = {"medusa": "Medusa", "hydra": "Hydra", "eagle": "EAGLE"}


def test_an_acceptance_head_is_trained_and_training_goes_on_with_its_data(tokenizer, tmp_path, capsys, monkeypatch):
    prompts = [render(p, tokenizer) for p in load_task("short text editing", limit=6)]
    monkeypatch.setattr(head_training, "training_prompts", lambda *arguments: prompts)
    out, data = tmp_path / "heads" / "head.safetensors", tmp_path / "data"
    words = ["train-acceptance-head", "--out", str(out), "--data", str(data), "--task", "short text editing"]
    words += "--task mathematics --prompts 3 --max-new-tokens 12 --epochs 2 --device cpu".split()
    words += "--target pocket --draft pocket-draft".split()
    assert main([*words, "--seeds", "2"]) == 0
    draft, _ = load_model("pocket-draft", "cpu")
    head = AcceptanceHead.load(out, draft)
    assert (head.depth, head.sees_confidence) == (3, False)
    assert head.story["mixing"] == 0.15 and len(head.story["curve"]) == 2 and head.story["data"]["labels"] == "decoding"
    second = AcceptanceHead.load(tmp_path / "heads" / "head-1.safetensors", draft)
    assert (head.story["training"]["seed"], second.story["training"]["seed"]) == (0, 1)
    assert not torch.equal(head.out.weight, second.out.weight)
    before = (data / "shard-00000.safetensors").stat().st_mtime_ns
    assert main([*words, "--mixing", "none", "--sees-confidence"]) == 0
    assert (data / "shard-00000.safetensors").stat().st_mtime_ns == before
    again = AcceptanceHead.load(out, draft)
    assert again.sees_confidence and again.story["mixing"] is None
    assert "written to" in capsys.readouterr().out


@pytest.mark.parametrize("count", [2, 7, 20, 360])
def test_each_response_is_in_one_part_and_both_keep_the_order(count):
    fit, held_out = head_training.split_held_out(range(count))
    assert sorted(fit + held_out) == list(range(count))
    assert fit and held_out and fit == sorted(fit) and held_out == sorted(held_out)
    assert (fit, held_out) == head_training.split_held_out(range(count)), "the same parts each time"


@pytest.mark.parametrize("family", ["llama-gqa", "qwen3", "gemma3"])
def test_heads_of_every_kind_are_trained_for_a_model_of_one_s_own(tmp_path, capsys, monkeypatch, family):
    # A few prompts instead of tasks, which the tokenizers of the tiny models cannot read.
    monkeypatch.setattr(head_training, "training_prompts", lambda *arguments: [prompt(i, 9) for i in range(6)])
    folder, out, data = save(build(family), tmp_path / "model"), tmp_path / "out", tmp_path / "data"
    (folder / "chat_template.jinja").write_text("{% for message in messages %}{{ message.content }}{% endfor %}")
    words = ["train-heads", "--target", str(folder), "--out", str(out), "--data", str(data)]
    words += "--device cpu --epochs 2 --max-new-tokens 8 --batch 2".split()
    assert main(words) == 0
    model, _ = load_model(folder, "cpu")
    plain = generate(model, prompt(1, 9), None, max_new_tokens=12).tokens
    for kind in KINDS:
        heads = DraftHead.load(out / f"{kind}.safetensors", model)
        assert heads.target == fingerprint(model) and len(heads.accuracies) > 1
        drafter = METHODS[ROWS[kind]].drafter(model, heads)
        assert generate(model, prompt(1, 9), drafter, max_new_tokens=12).tokens == plain
    before = (data / "shard-00000.safetensors").stat().st_mtime_ns
    assert main([*words, "--kind", "hydra", "--prefix", "--layers", "2", "--own-vocabulary"]) == 0
    again = DraftHead.load(out / "hydra.safetensors", model)
    assert again.prefix is not None and again.options["vocabulary"] == model.config.vocab_size
    assert (data / "shard-00000.safetensors").stat().st_mtime_ns == before
    assert "first choice right by depth" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("how", [kill, full])
def test_a_training_that_is_killed_or_finds_a_full_disk_leaves_nothing_that_the_next_one_minds(
    how, tmp_path, monkeypatch
):
    """At every fourth step of writing: each file of heads can be read, and the next run ends with the files of a whole one."""
    monkeypatch.setattr(head_training, "training_prompts", lambda *arguments: [prompt(i, 9) for i in range(12)])
    model, asked = build("llama-gqa"), head_training.PromptSettings(["x"], 1, 6)

    def train(folder):
        kinds = {"medusa": {}, "eagle": {"mlp": 8}}
        return head_training.train_kinds(model, None, folder / "data", folder / "out", HeadTraining(1, 4), asked, kinds)

    def left(folder):
        return sorted(path.relative_to(folder) for path in folder.rglob("*"))

    steps = stopped(partial(train, tmp_path / "whole"), -1, how)
    assert steps > 12
    for step in range(1, steps, 4):
        folder = tmp_path / str(step)
        stopped(partial(train, folder), step, how)
        for path in folder.glob("out/*.safetensors"):
            DraftHead.load(path, model)
        assert stopped(partial(train, folder), -1, how) > 0, step
        assert left(folder) == left(tmp_path / "whole"), step


def test_the_file_of_heads_holds_what_identify_finds_and_is_refused_for_another_model(tmp_path, capsys):
    folders = [paths.POCKET / "target", paths.POCKET / "draft"]
    out = tmp_path / "heads.json"

    def call(folder, *more):
        words = ["--task", "short text editing", "--prompts", "2", "--max-new-tokens", "6", "--device", "cpu"]
        return main(["find-heads", "--target", str(folder), "--out", str(out), *words, *more])

    assert call(folders[0]) == 0
    model, tokenizer = load_model(folders[0], "cpu")
    prompts = [render(p, tokenizer) for p in choosing_prompts(["short text editing"], 2)]
    expected = identify(model, prompts, 6, progress=False)
    read = InductionHeads.load(out, model)
    assert read.ranked() == expected.ranked() and read.copied == expected.copied
    assert f"{len(read.ranked())} of {read.peaks.size} heads" in capsys.readouterr().out
    before = out.read_bytes()
    assert call(folders[0]) == 0
    assert "--force identifies them again" in capsys.readouterr().out
    assert call(folders[1]) == 2
    assert "this one is" in capsys.readouterr().err
    assert out.read_bytes() == before
    assert call(folders[1], "--force") == 0
    assert call(tmp_path / "none", "--force") == 2
    assert "no model in" in capsys.readouterr().err


CODE = "def add(total, x):\n    total = total + x\n    return total\n"
SOURCES = ("PLD", "REST", "SuffixDecoding", "SpecDec++")


@pytest.fixture
def answers(tmp_path):
    path = tmp_path / "answers.jsonl"
    rows = [{"prompt": CODE * 2 + str(i), "answer": CODE * 2} for i in range(3)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_any_sources_are_fitted_and_one_tree_drafts_from_those_of_its_weights(answers, tmp_path, capsys):
    fitted = tmp_path / "fit" / "tree.safetensors"
    words = ["--target", "pocket", "--draft", "pocket-draft", "--task", "code editing", "--prompts", "2"]
    words += [word for source in SOURCES for word in ("--source", source)]
    size = ["--max-new-tokens", "24", "--store-tokens", "20000", "--out", str(fitted)]
    assert main(["fit-tree", *(word for word in words if "draft" not in word), *size]) == 2
    assert "the source SpecDec++ needs a draft model" in capsys.readouterr().err and not fitted.exists()
    assert main(["fit-tree", *words, *size]) == 0
    weights = TreeProbabilities.load(fitted)
    assert weights.sources == SOURCES and "code editing" in weights.fitted_on
    moved = abs(weights.weights - TreeProbabilities.unfitted(SOURCES).weights)[: len(SOURCES) * len(FEATURES)]
    assert moved.reshape(len(SOURCES), -1).max(1).min() > 0.01
    pair = ModelPair(*load_pair("pocket", "pocket-draft", "cpu"), store_tokens=20_000, tree_weights=fitted)
    tree = pair.drafters(["One tree"])["One tree"]
    assert tuple(tree.sources) == SOURCES
    assert (tree.probabilities.weights == weights.weights).all()
    build_from_texts(tmp_path / "store", [CODE * 3] * 4, pair.tokenizer, progress=False)
    told, out = {}, tmp_path / "found.json"
    words = ["diagnose", str(answers), "--tokenizer", "pocket", "--store", str(tmp_path / "store"), "--json", str(out)]
    for own in ([], ["--weights", str(fitted)]):
        assert main([*words, *own]) == 0
        found = json.loads(out.read_text())
        (told[bool(own)],) = (one["drafter"] for one in found["methods"] if one["method"] == "One tree")
        assert found["weights"] == (str(fitted) if own else None)
        for name in ("REST", "One tree"):
            asked = json.loads(shlex.split(found["engine_options"][name]["vLLM"])[0].removeprefix("SPECDEC_VLLM="))
            assert asked == {"drafter": name, "store": str(tmp_path / "store")}
    assert "OneTree(PLD, REST;" in told[False] and "OneTree(PLD, REST, SuffixDecoding;" in told[True]


def test_drafting_has_a_cost_and_counts(answers, tmp_path, capsys):
    """What calibrate measures of drafting stands in its file, and lowers what diagnose predicts by as much."""
    path = tmp_path / "costs.json"
    words = ["--target", "pocket", "--source", "PLD", "--context", "64", "--repeats", "2"]
    assert main(["calibrate", *words, "--out", str(path)]) == 0
    costs = PassCosts.load(path)
    assert set(costs.drafting) == {"PLD", "REST", "SuffixDecoding", MERGING}
    assert costs.step > 0 and all(costs.drafting[name] > 0 for name in ("PLD", "REST", "SuffixDecoding"))
    assert costs.drafted_token == 0.0
    found, names = {}, []
    for name in ("free", "paid"):
        own = {each: 0.25 * place for place, each in enumerate(names, start=1)}
        drafting = own | {MERGING: 0.125} if names else {}
        PassCosts({1: 1.0}, step=0.5, name=name, drafting=drafting).save(tmp_path / f"{name}.json")
        out, given = tmp_path / f"{name}-found.json", ["--tokenizer", "pocket", "--costs", f"{tmp_path / name}.json"]
        assert main(["diagnose", str(answers), *given, "--json", str(out)]) == 0
        found[name] = json.loads(out.read_text())
        names = found["free"]["free"]
    assert {"PLD", "SuffixDecoding"} <= set(names) and found["paid"]["free"] == []
    told = f"Drafting counts as free, because these costs have no time for it: {', '.join(names)}."
    assert told in capsys.readouterr().out
    for one in found["free"]["methods"] + found["paid"]["methods"]:
        paid = one in found["paid"]["methods"]
        cost = (own | {"One tree": own["PLD"] + 0.125})[one["method"]] if paid else 0.0  # one tree drafts from PLD
        # Plain decoding pays for the pass and the step's own work: 1.5 a token.
        assert one["speedup"]["value"] == pytest.approx(one["tokens_per_pass"]["value"] * 1.5 / (1.5 + cost))
