"""Names of version 1.0 that are other ones now still work, and warn with the new one."""

from importlib import import_module

import numpy as np
import pytest

import specdec_lib
from specdec_lib import AuxiliaryTokens, DraftTree, Outputs
from specdec_lib.commands.diagnose import diagnose
from specdec_lib.drafters import PromptLookup
from specdec_lib.drafters.one_tree import OneTree
from specdec_lib.drafters.pass_costs import CURVES
from specdec_lib.methods import METHODS, Method
from specdec_lib.report import params


@pytest.mark.parametrize(("module", "old", "home", "new"), [
    ("", "Passengers", "decoding.tree", "AuxiliaryTokens"),
    ("decoding.tree", "Passengers", "decoding.tree", "AuxiliaryTokens"),
    ("decoding.checks", "whole", "decoding.checks", "whole_number"),
    ("decoding.generate", "kept", "decoding.generate", "to_cpu"),
    ("decoding.served_models", "know_tokenizer", "decoding.served_models", "remember_tokenizer"),
    ("decoding.teacher_forcing", "Forced", "decoding.teacher_forcing", "TeacherForced"),
    ("drafters.eagle2", "reranked", "drafters.eagle2", "rerank"),
    ("drafters.merged_tree", "judged", "drafters.merged_tree", "visit_emitted"),
    ("drafters.one_tree", "WorthItsPrice", "drafters.one_tree", "WorthItsCost"),
    ("drafters.pass_prices", "CURVES", "drafters.pass_costs", "CURVES"),
    ("drafters.pass_prices", "MERGING", "drafters.pass_costs", "MERGING"),
    ("drafters.pass_prices", "PassPrices", "drafters.pass_costs", "PassCosts"),
    ("drafters.tree_probabilities", "Judged", "drafters.tree_probabilities", "NodeOutcomes"),
    ("heads.answers", "kept", "heads.answers", "record_or_load"),
    ("heads.draft_training", "read_by", "heads.draft_training", "texts_with_states"),
    ("heads.grown_tree", "grown", "heads.grown_tree", "best_tree_shape"),
    ("heads.induction", "credited", "heads.induction", "induction_heads"),
    ("heads.layer", "rotated", "heads.layer", "rotary_embedding"),
])  # fmt: skip
def test_a_former_name_is_the_new_one_and_says_so(module, old, home, new):
    place = import_module(f"specdec_lib.{module}".rstrip("."))
    with pytest.warns(DeprecationWarning, match=rf"{old} is now .*{new}; .* version 1\.2"):
        found = getattr(place, old)
    assert found is getattr(import_module(f"specdec_lib.{home}"), new)


@pytest.mark.parametrize("module", [specdec_lib, import_module("specdec_lib.drafters.pass_prices")])
def test_other_names_are_unknown(module):
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        module.nothing  # noqa: B018


def test_former_keywords_and_attributes_work():
    riding = AuxiliaryTokens([9], [2], np.array([[True, True, True]]))
    with pytest.warns(DeprecationWarning, match=r"annotated\(passengers=\) is now .*annotated\(auxiliary=\)"):
        tree = DraftTree.chain([5]).annotated(passengers=riding)
    with pytest.warns(DeprecationWarning, match=r"DraftTree\.auxiliary"):
        assert tree.passengers is riding is tree.auxiliary
    outputs = Outputs(*(np.full((2, 1), number) for number in range(4)), 7)
    for old, number in (("passenger_tokens", 2), ("passenger_logprobs", 3)):
        with pytest.warns(DeprecationWarning, match=rf"{old} is now Outputs\.auxiliary_"):
            assert (getattr(outputs, old) == number).all()


def test_prices_are_costs():
    with pytest.warns(DeprecationWarning, match=r"OneTree\(prices=\) is now OneTree\(costs=\)"):
        drafter = OneTree({"PLD": PromptLookup()}, prices=CURVES["gpu"])
    assert drafter.costs is CURVES["gpu"]
    with pytest.warns(DeprecationWarning, match=r"OneTree\.costs"):
        drafter.prices = CURVES["cpu"]
    assert drafter.costs is CURVES["cpu"]
    row = METHODS["SpecDec"]
    with pytest.warns(DeprecationWarning, match=r"Method\(cost_per=\)"):
        own = Method("mine", "Drafts.", row.drafter, row.make, price="level")
    assert own.cost_per == "level"


def test_a_former_option_and_a_former_parameter_work(tmp_path, capsys):
    with pytest.raises(ValueError, match="--costs is 'dear'"):
        diagnose(tmp_path / "a.jsonl", former_prices="dear")
    assert "--prices is now --costs" in capsys.readouterr().err
    assert params.current_name("head_price", {"head_cost": 1}) == "head_cost"
    assert "head_price is now head_cost" in capsys.readouterr().err
    assert params.current_name("head_price", {"tasks": 1}) == "head_price" and params.current_name("x", {}) == "x"
    assert capsys.readouterr().err == ""
