"""The ledger of claims: its form, its rule, and that the shipped one is whole."""

import itertools
import random

import pytest
import yaml

from specdec_lib import paths
from specdec_lib.experiments.published_numbers import ClaimError, published
from specdec_lib.report.claims import rules
from specdec_lib.report.claims.rules import judge, load_claims

ROW = {
    "id": "a-claim",
    "paper": "rest",
    "where": "Table 1",
    "claim": "It is faster.",
    "notebook": "03_x",
    "ours": ["fast"],
    "rule": "Holds if faster.",
    "test": [["fast", ">", "slow"]],
}


def ledger(tmp_path, *rows):
    path = tmp_path / "claims.yml"
    path.write_text(yaml.safe_dump(list(rows)), encoding="utf-8")
    return path


PARTS = {"rule": "Holds if faster; in part if on some."}


@pytest.mark.parametrize("truths", list(itertools.product([True, False], repeat=3)))
@pytest.mark.parametrize("partly", [None, "some", "first", "either", "both"])
def test_what_is_not_wholly_true_is_in_part_only_where_the_row_says_so(tmp_path, truths, partly):
    conditions = [[name if truth else "low", ">", 0.5] for name, truth in zip("abc", truths, strict=True)]
    cases = {
        "some": "some",
        "first": {"all": conditions[:1]},
        "either": {"any": conditions[:2]},
        "both": {"all": conditions[:2]},
    }
    row = ROW | {"test": conditions} | (PARTS | {"partly": cases[partly]} if partly else {})
    (claim,) = load_claims(ledger(tmp_path, row))
    first, second, third = truths
    in_part = {None: False, "some": any(truths), "first": first, "either": first or second, "both": first and second}[
        partly
    ]
    expected = rules.HOLDS if all(truths) else rules.PARTLY if in_part else rules.FAILS
    assert judge(claim, {"fast": 1, "a": 0.9, "b": 0.8, "c": 0.7, "low": 0.1}).verdict == expected


@pytest.mark.parametrize(
    "left, word, right, truth",
    [
        ("x", ">", "y", False),
        ("x", "<", "y", True),
        ("x", ">=", 2, True),
        ("x", "<=", 1.9, False),
        ("x", "==", 2, True),
        ([2, "x"], ">", "y", True),
        ("y", "<", [1.5, "x"], False),
    ],
)
def test_conditions_are_the_comparisons_they_read_as(tmp_path, left, word, right, truth):
    (claim,) = load_claims(ledger(tmp_path, ROW | {"ours": [], "test": [[left, word, right]]}))
    assert judge(claim, {"x": 2, "y": 3.5}).conditions[0][1] is truth


def test_a_value_without_a_number_decides_nothing(tmp_path):
    row = ROW | {"test": [["fast", ">", "slow"], ["fast", ">", 1]]}
    (strict,), (lenient,) = (load_claims(ledger(tmp_path, row | more)) for more in ({}, PARTS | {"partly": "some"}))
    unknown = {"slow": "not available"}
    # A false condition decides that it does not hold, a true one of 'some' that it holds in part; the rest is open.
    assert judge(strict, {"fast": 2} | unknown).verdict == rules.UNTESTABLE
    assert judge(strict, {"fast": 0.5} | unknown).verdict == rules.FAILS
    assert judge(lenient, {"fast": 2} | unknown).verdict == rules.PARTLY
    assert judge(lenient, {"fast": 0.5} | unknown).verdict == rules.UNTESTABLE
    assert judge(lenient, {"fast": "not available", "slow": 1}).verdict == rules.UNTESTABLE


def test_a_claim_that_cannot_be_tested_needs_no_records(tmp_path):
    row = {key: ROW[key] for key in ("id", "paper", "where", "claim")} | {"untestable": "The weights are not public."}
    (claim,) = load_claims(ledger(tmp_path, row))
    assert judge(claim, {}).verdict == rules.UNTESTABLE


def test_a_missing_record_is_named(tmp_path):
    (claim,) = load_claims(ledger(tmp_path, ROW))
    with pytest.raises(ClaimError, match="'a-claim' needs slow, which 03_x did not record"):
        judge(claim, {"fast": 2})


@pytest.mark.parametrize(
    "change, message",
    [
        ({"paper": "nature"}, "paper is 'nature'"),
        ({"where": ""}, "where is ''"),
        ({"id": "A claim"}, "small letters"),
        ({"rules": "x"}, "unknown field 'rules'"),
        ({"test": []}, "either conditions"),
        ({"untestable": "no"}, "either"),
        ({"test": [["fast", "is", "slow"]]}, "condition"),
        ({"test": [["__import__('os')", ">", 1]]}, "operand"),
        ({"test": [[True, ">", 1]]}, "operand"),
        ({"rule": ""}, "rule in words"),
        ({"notebook": None}, "a notebook"),
        ({"partly": "some"}, "the rule in words lacks a case 'in part'"),
        (PARTS, "the field 'partly' is missing"),
        (PARTS | {"partly": "some"}, "'some' of 1 conditions"),
        (PARTS | {"partly": "most"}, "partly is 'most'"),
        (PARTS | {"partly": {"all": []}}, "partly is"),
        (PARTS | {"partly": {"all": [], "any": []}}, "partly is"),
        (PARTS | {"partly": {"none": [["fast", ">", 1]]}}, "partly is"),
        (PARTS | {"partly": {"all": [["fast"]]}}, "condition"),
        (PARTS | {"partly": {"any": [["fast", ">", "slower"], 1]}}, "condition"),
    ],
)
def test_a_malformed_row_is_refused_by_name(tmp_path, change, message):
    with pytest.raises(ClaimError, match=message):
        load_claims(ledger(tmp_path, ROW | change))


def test_ids_do_not_repeat(tmp_path):
    with pytest.raises(ClaimError, match="two claims have the id 'a-claim'"):
        load_claims(ledger(tmp_path, ROW, ROW))


@pytest.mark.parametrize(
    "line, message",
    [("t1,Table 1,,,M,about 2,,,", "expected a number"), ("t1,Table 1,,,M,1,,,\nt1,Table 1,,,M,2,,,", "repeats")],
)
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


#: How the words of a rule name the partial case in which some condition, whichever, is true.
SOME = (
    "in part if on some",
    "in part if on one",
    "in part if one",
    "in part if some",
    "in part if with one",
    "in part if in some",
    "in part if only one does",
    "in part if above some",
    "in part if at one",
    "in part if more than some",
)
#: Rows whose rule defines another partial case: the values that decide, and what the words make of each.
CASES = {
    "rest-table-2": (
        ("size_first_code_greedy", "size_last_code_greedy", "size_increases", "size_steps"),
        [((1, 2, 4, 4), "holds"), ((1, 2, 3, 4), "part"), ((2, 1, 4, 4), "not"), ((2, 1, 3, 4), "not")],
    ),
    "rest-figure-13": (
        ("share_short", "share_long"),
        [((0.9, 0.1), "holds"), ((0.9, 0.01), "part"), ((0.3, 0.7), "not"), ((0.3, 0.01), "not")],
    ),
    "dresd-acceptance": (
        ("gain_rate_rest", "gain_rate_as_run"),
        [((50, 60), "holds"), ((60, 49), "part"), ((1, -5), "part"), ((-5, 80), "part"), ((0, -1), "not")],
    ),
    "dresd-lead": (
        ("dresd_leads", "dresd_settings"),
        [((12, 12), "holds"), ((7, 12), "part"), ((6, 12), "not"), ((0, 12), "not")],
    ),
    "dresd-storage": (("storage_off",), [((1,), "holds"), ((1.2,), "part"), ((1.3,), "not")]),
    "dresd-best-shapes": (
        ("shape_deep_greedy", "shape_rest_greedy", "shape_wide_nucleus", "shape_rest_nucleus"),
        [
            ((1.5, 1, 1.2, 1), "holds"),
            ((1.1, 1, 1.05, 1), "part"),
            ((1.5, 1, 1.05, 1), "part"),
            ((1.5, 1, 0.9, 1), "not"),
            ((0.9, 1, 1.2, 1), "not"),
            ((0.9, 1, 0.9, 1), "not"),
        ],
    ),
    "specdec-pp-throughput-error": (
        ("cost_error_largest", "cost_error_median"),
        [((0.05, 0.01), "holds"), ((0.2, 0.06), "part"), ((0.2, 0.07), "not")],
    ),
    "specdec-pp-lemma-oracle": (
        ("head_oracle_beaten", "head_lemma_off", "head_lemma_wrong"),
        [
            ((0, 0, 0), "holds"),
            ((0, 0, 2), "holds"),
            ((0, 5, 0), "part"),
            ((0, 5, 5), "not"),
            ((3, 0, 0), "not"),
            ((3, 5, 0), "not"),
            ((3, 5, 5), "not"),
        ],
    ),
    "specdec-pp-oracle-speedup": (
        ("cost_oracle_speedup", "cost_best_fixed_speedup"),
        [((2.6, 2), "holds"), ((2.1, 2), "part"), ((2, 2), "not")],
    ),
    "specdec-pp-threshold-policy": (
        ("mdp_single_share", "mdp_best_threshold_mean"),
        [((1, 0), "holds"), ((1, 0.02), "holds"), ((0.9, 0.01), "part"), ((0.9, 0.02), "not")],
    ),
    "specdec-pp-adaptive-beats-fixed": (
        ("mdp_threshold_wins", "mdp_best_threshold_mean", "mdp_best_fixed_mean"),
        [((1, 0, 0), "holds"), ((0.9, 0.1, 0.2), "part"), ((0.9, 0.3, 0.2), "not")],
    ),
    "specdec-pp-optimal-threshold-value": (
        ("mdp_theorem_over_threshold", "mdp_theorem_rule_mean", "mdp_best_fixed_mean"),
        [((0.01, 0.1, 0.2), "holds"), ((0.01, 0.3, 0.2), "holds"), ((0.1, 0.1, 0.2), "part"), ((0.1, 0.3, 0.2), "not")],
    ),
    "specdec-pp-one-setting": (("head_single_share",), [((0.993,), "holds"), ((0.96,), "part"), ((0.9,), "not")]),
    "specdec-pp-balance": (
        ("balance_faults", "balance_ended"),
        [((0, 0), "holds"), ((0, 4), "part"), ((2, 0), "not"), ((2, 4), "not")],
    ),
    "specdec-pp-parallel": (
        ("step_ratio_eager_w8_w1", "step_ratio_eager_w32_w1"),
        [((1, 1.1), "holds"), ((1.1, 1.5), "part"), ((1.5, 1), "not"), ((1.5, 2), "not")],
    ),
}
SHIPPED = [claim for claim in load_claims() if claim.test]
VERDICT = {"holds": rules.HOLDS, "part": rules.PARTLY, "not": rules.FAILS}


def values_for(claim, truths, seed: int) -> dict[str, float] | None:
    """Values under which each condition of ``test`` is as true as asked for; None where none were found."""
    rng = random.Random(seed)
    values = {name: rng.choice([0.5, 1.0, 2.0, 40.0]) for name in claim.names}
    for _ in range(3000):
        wrong = [c for c, truth in zip(claim.test, truths, strict=True) if c.holds(values) != truth]
        if not wrong:
            return values
        # Set one side of a condition that is not as wanted to the other side, or to one side of it.
        condition = rng.choice(wrong)
        (left, right), side = [
            [o if isinstance(o, tuple) else (1.0, o) for o in (condition.left, condition.right)],
            rng.randrange(2),
        ]
        free, other = ((left, right), (right, left))[side]
        if isinstance(free[1], str):
            at = other[0] * (values[other[1]] if isinstance(other[1], str) else other[1])
            values[free[1]] = at / free[0] * rng.choice([1, 1, 0.8, 0.5, 1.25, 2]) + rng.choice([0, 0, -1, 1])
    return None


@pytest.mark.parametrize("claim", [c for c in SHIPPED if c.id not in CASES], ids=lambda claim: claim.id)
def test_the_verdict_of_a_shipped_row_follows_the_words_of_its_rule(claim):
    words = " ".join(claim.rule.split())
    some = any(part in words for part in SOME)
    assert some == ("in part" in words), f"{claim.id}: say in CASES what its partial case is"
    count, partial = len(claim.test), 0
    vectors = {tuple(i == true for i in range(count)) for true in range(count)}
    vectors |= {tuple(i != false for i in range(count)) for false in range(count)}
    for truths in sorted({*vectors, (True,) * count, (False,) * count}):
        values = values_for(claim, truths, 0)
        if values is None:
            assert any(truths) and not all(truths), f"{claim.id}: all conditions, or none, must be possible"
            continue
        expected = rules.HOLDS if all(truths) else rules.PARTLY if some and any(truths) else rules.FAILS
        partial += any(truths) and not all(truths)
        assert judge(claim, values).verdict == expected, (claim.id, values)
    assert partial or count == 1


@pytest.mark.parametrize("name", CASES)
def test_the_verdict_of_a_row_with_a_partial_case_of_its_own_follows_its_words(name):
    claim = next(c for c in SHIPPED if c.id == name)
    names, table = CASES[name]
    assert {n for c in claim.conditions for n in c.names} == set(names)
    assert {verdict for _, verdict in table} == set(VERDICT)
    for numbers, verdict in table:
        values = dict.fromkeys(claim.names, 1.0) | dict(zip(names, numbers, strict=True))
        assert judge(claim, values).verdict == VERDICT[verdict], (name, values)
