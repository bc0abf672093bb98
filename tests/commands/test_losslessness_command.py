"""The command ``losslessness``: counts with where they come from, mismatches, and options that are refused."""

from __future__ import annotations

import json
from importlib import metadata

import pytest

from specdec_lib.cli import main
from specdec_lib.decoding.contract import Drafter
from specdec_lib.decoding.tree import EMPTY
from specdec_lib.experiments import losslessness, recorded_runs
from specdec_lib.experiments.prompt import Prompt
from specdec_lib.methods import Method
from tests.families import build, perturbed, prompt

#: Those that need no datastore: the model of these tests has no tokenizer to build one with.
WITHOUT_STORES = {name: losslessness.METHODS[name] for name in ("PLD", "PLD+ (h)", "SpecDec")}


@pytest.fixture(scope="module")
def pair():
    target = build("llama-gqa")
    return target, perturbed(target)


class Liar(Drafter):
    """Proposes nothing, but the wrong token is slipped into the text it is shown."""

    def propose(self, context, limit):
        if len(context.tokens) == context.prompt_length + 3:
            context.tokens[-1] = (context.tokens[-1] + 1) % 90
        return EMPTY


@pytest.fixture
def command(monkeypatch, pair, tmp_path):
    """The command on the tiny pair; gives exit status and what was written."""
    monkeypatch.setattr(losslessness, "METHODS", WITHOUT_STORES)
    monkeypatch.setattr(recorded_runs, "load_pair", lambda *args: (*pair, None))
    monkeypatch.setattr(
        losslessness.prompts,
        "load",
        lambda half, tasks: [Prompt(f"{tasks[0]}-{i}", tasks[0], (f"{tasks[0]} {i}",)) for i in range(3)],
    )
    monkeypatch.setattr(recorded_runs, "render", lambda one, tokenizer: prompt(sum(map(ord, one.text)) % 50, 12))

    def run(*arguments: str):
        place = tmp_path / "losslessness.json"
        sizes = ["--prompts", "9", "--max-new-tokens", "10", "--seeds", "1"]
        status = main(["losslessness", *sizes, "--output", str(place), *arguments])
        return status, json.loads(place.read_text()) if place.exists() else None

    return run


def test_the_command_writes_counts_with_provenance(command, tmp_path):
    status, written = command()
    assert status == 0 and written["unexplained"] == 0 and written["mismatches"] == []
    assert {row["outputs"] for row in written["counts"]} == {9}
    assert written["provenance"]["versions"]["torch"] == metadata.version("torch")
    assert written["provenance"]["parameters"]["prompts"] == 9
    assert [p.name for p in tmp_path.iterdir()] == ["losslessness.json"]


def test_only_the_named_methods_are_compared(command):
    status, written = command("--method", "PLD", "--method", "PLD (transformers' variant)")
    assert status == 0
    assert {row["method"] for row in written["counts"]} == {"PLD", "PLD (transformers' variant)"}


def test_a_method_that_makes_no_promise_is_not_compared():
    with pytest.raises(ValueError, match="names has 'a rumour'; expected some of PLD"):
        losslessness.compare_all(None, [], [], 1, names=["a rumour"])


def test_the_command_fails_on_a_mismatch_and_says_where(command, monkeypatch, capsys):
    methods = losslessness.METHODS | {
        "lying": Method(
            "lying", "lying", "#000000", "o", "Changes a token.", "lying", "nobody2026", Liar, lambda bench: Liar()
        )
    }
    monkeypatch.setattr(losslessness, "METHODS", methods)
    status, written = command()
    assert status == 1 and written["unexplained"] == len(written["mismatches"]) > 0
    assert {m["method"] for m in written["mismatches"]} == {"lying"}
    assert all(m["position"] >= 3 and not m["explained"] for m in written["mismatches"])
    assert "rounding does not explain" in capsys.readouterr().err
