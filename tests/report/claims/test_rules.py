"""The ledger of claims: its form, its rule, and that the shipped one is whole."""
import itertools

import pytest
import yaml

from specdec_lib import paths
from specdec_lib.report.claims import rules
from specdec_lib.experiments.published_numbers import ClaimError, published
from specdec_lib.report.claims.rules import judge, load_claims

ROW = {"id": "a-claim", "paper": "rest", "where": "Table 1", "claim": "It is faster.", "notebook": "03_x",
       "ours": ["fast"], "rule": "Holds if faster.", "test": [["fast", ">", "slow"]]}


def ledger(tmp_path, *rows):
    path = tmp_path / "claims.yml"
    path.write_text(yaml.safe_dump(list(rows)), encoding="utf-8")
    return path


@pytest.mark.parametrize("truths", list(itertools.product([True, False], repeat=3)))
def test_all_conditions_hold_some_in_part_none_not(tmp_path, truths):
    row = ROW | {"test": [["high" if truth else "low", ">", 0.5] for truth in truths]}
    (claim,) = load_claims(ledger(tmp_path, row))
    expected = {3: rules.HOLDS, 0: rules.FAILS}.get(sum(truths), rules.PARTLY)
    assert judge(claim, {"fast": 1, "high": 0.9, "low": 0.1}).verdict == expected


@pytest.mark.parametrize("left, word, right, truth", [
    ("x", ">", "y", False), ("x", "<", "y", True), ("x", ">=", 2, True), ("x", "<=", 1.9, False),
    ("x", "==", 2, True), ([2, "x"], ">", "y", True), ("y", "<", [1.5, "x"], False)])
def test_conditions_are_the_comparisons_they_read_as(tmp_path, left, word, right, truth):
    (claim,) = load_claims(ledger(tmp_path, ROW | {"ours": [], "test": [[left, word, right]]}))
    assert judge(claim, {"x": 2, "y": 3.5}).conditions[0][1] is truth


def test_a_value_without_a_number_decides_nothing(tmp_path):
    (claim,) = load_claims(ledger(tmp_path, ROW | {"test": [["fast", ">", "slow"], ["fast", ">", 1]]}))
    assert judge(claim, {"fast": 2, "slow": "not available"}).verdict == rules.PARTLY
    assert judge(claim, {"fast": "not available", "slow": 1}).verdict == rules.UNTESTABLE


def test_a_claim_that_cannot_be_tested_needs_no_records(tmp_path):
    row = {key: ROW[key] for key in ("id", "paper", "where", "claim")} | {"untestable": "The weights are not public."}
    (claim,) = load_claims(ledger(tmp_path, row))
    assert judge(claim, {}).verdict == rules.UNTESTABLE


def test_a_missing_record_is_named(tmp_path):
    (claim,) = load_claims(ledger(tmp_path, ROW))
    with pytest.raises(ClaimError, match="'a-claim' needs slow, which 03_x did not record"):
        judge(claim, {"fast": 2})


@pytest.mark.parametrize("change, message", [
    ({"paper": "nature"}, "paper is 'nature'"), ({"where": ""}, "where is ''"), ({"id": "A claim"}, "small letters"),
    ({"rules": "x"}, "unknown field 'rules'"), ({"test": []}, "either conditions"), ({"untestable": "no"}, "either"),
    ({"test": [["fast", "is", "slow"]]}, "condition"), ({"test": [["__import__('os')", ">", 1]]}, "operand"),
    ({"test": [[True, ">", 1]]}, "operand"), ({"rule": ""}, "rule in words"), ({"notebook": None}, "a notebook")])
def test_a_malformed_row_is_refused_by_name(tmp_path, change, message):
    with pytest.raises(ClaimError, match=message):
        load_claims(ledger(tmp_path, ROW | change))


def test_ids_do_not_repeat(tmp_path):
    with pytest.raises(ClaimError, match="two claims have the id 'a-claim'"):
        load_claims(ledger(tmp_path, ROW, ROW))


@pytest.mark.parametrize("line, message", [
    ("t1,Table 1,,,M,about 2,,,", "expected a number"), ("t1,Table 1,,,M,1,,,\nt1,Table 1,,,M,2,,,", "repeats")])
def test_a_published_number_is_a_number_with_an_id_of_its_own(tmp_path, line, message):
    header = "id,where,setting,method,quantity,value,spread,unit,note"
    (tmp_path / "rest.csv").write_text(f"{header}\n{line}\n", encoding="utf-8")
    with pytest.raises(ClaimError, match=message):
        published("rest", tmp_path)


def test_the_shipped_ledger_names_only_published_numbers_and_notebooks_that_exist():
    for claim in load_claims():
        unknown = set(claim.published) - set(published(claim.paper)) if claim.published else set()
        assert not unknown, (claim.id, unknown)
        assert claim.notebook is None or (paths.root() / "notebooks" / f"{claim.notebook}.ipynb").is_file(), claim.id
