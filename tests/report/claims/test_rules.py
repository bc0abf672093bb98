"""The ledger of claims: its form, its rule, and that the shipped one is whole."""

import itertools
import random

import pytest
import yaml

from specdec_lib import paths
from specdec_lib.experiments.published_numbers import ClaimError, published
from specdec_lib.report.claims import rules
from specdec_lib.report.claims.published_tables import published_value
from specdec_lib.report.claims.rules import Case, Size, Truth, judge, load_claims

ROW = {
    "id": "a-claim",
    "paper": "rest",
    "where": "Table 1",
    "claim": "It is faster.",
    "notebook": "03_x",
    "ours": {"fast": "speed of one", "slow": "speed of the other"},
    "rule": "Holds if faster.",
    "test": [["fast", ">", "slow"]],
    "exact": "Counted.",
}


def ledger(tmp_path, *rows):
    path = tmp_path / "claims.yml"
    path.write_text(yaml.safe_dump(list(rows)), encoding="utf-8")
    return path


PARTS = {"rule": "Holds if faster; in part if on some."}


def interval(low, high=None):
    high = low if high is None else high
    return {"value": (low + high) / 2, "low": low, "high": high}


@pytest.mark.parametrize("truths", list(itertools.product([True, False], repeat=3)))
@pytest.mark.parametrize("partly", [None, "some", "first", "either", "both"])
def test_what_is_not_wholly_true_is_in_part_only_where_the_row_says_so(tmp_path, truths, partly):
    conditions = [[name if truth else "low", ">", 0] for name, truth in zip("abc", truths, strict=True)]
    cases = {
        "some": "some",
        "first": {"all": conditions[:1]},
        "either": {"any": conditions[:2]},
        "both": {"all": conditions[:2]},
    }
    row = (
        ROW
        | {"test": conditions, "ours": dict.fromkeys(["a", "b", "c", "low"], "a value")}
        | (PARTS | {"partly": cases[partly]} if partly else {})
    )
    (claim,) = load_claims(ledger(tmp_path, row))
    first, second, third = truths
    in_part = {None: False, "some": any(truths), "first": first, "either": first or second, "both": first and second}[
        partly
    ]
    expected = rules.HOLDS if all(truths) else rules.PARTLY if in_part else rules.FAILS
    assert judge(claim, {"a": 0.9, "b": 0.8, "c": 0.7, "low": -0.1}).verdict == expected


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
    more = {
        "ours": {"x": "one", "y": "another"},
        "threshold": "1.5, 1.9 and 2 are small.",
        "test": [[left, word, right]],
    }
    (claim,) = load_claims(ledger(tmp_path, ROW | more))
    assert judge(claim, {"x": 2, "y": 3.5}).conditions[0][1] is (Truth.TRUE if truth else Truth.FALSE)


@pytest.mark.parametrize(
    "read", [lambda low, high: interval(low, high), lambda low, high: type("I", (), interval(low, high))]
)
@pytest.mark.parametrize(
    "low, word, high, truth",
    [
        (1.01, ">", 1.2, Truth.TRUE),
        (0.8, ">", 0.99, Truth.FALSE),
        (0.99, ">", 1.01, Truth.OPEN),
        (1.0, ">", 1.2, Truth.OPEN),
        (1.0, ">=", 1.2, Truth.TRUE),
        (0.8, "<", 0.99, Truth.TRUE),
        (0.8, "<", 1.0, Truth.OPEN),
        (0.8, "<=", 1.0, Truth.TRUE),
        (1.01, "<=", 1.02, Truth.FALSE),
    ],
)
def test_an_interval_is_on_one_side_only_if_all_of_it_is(read, low, word, high, truth, tmp_path):
    """Oracle: the comparison at many points of the interval."""
    (claim,) = load_claims(ledger(tmp_path, ROW | {"test": [["fast", word, 1]], "exact": ""}))
    points = {rules._OPERATORS[word](low + (high - low) * k / 100, 1) for k in range(101)}
    assert {Truth.TRUE: {True}, Truth.FALSE: {False}, Truth.OPEN: {True, False}}[truth] == points
    assert judge(claim, {"fast": read(low, high)}).conditions[0][1] is truth


YES, NO, MAYBE = (1.1, 1.2), (0.8, 0.9), (0.9, 1.1)


@pytest.mark.parametrize(
    "first, second, partly, verdict",
    [
        (YES, YES, "some", rules.HOLDS),
        (YES, MAYBE, "some", rules.PARTLY),
        (YES, NO, "some", rules.PARTLY),
        (MAYBE, MAYBE, "some", rules.UNRESOLVED),
        (MAYBE, NO, "some", rules.UNRESOLVED),
        (NO, NO, "some", rules.FAILS),
        (YES, MAYBE, None, rules.UNRESOLVED),
        (MAYBE, NO, None, rules.FAILS),
        (YES, MAYBE, {"all": [["a", ">", 1]]}, rules.PARTLY),
        (MAYBE, YES, {"all": [["a", ">", 1]]}, rules.UNRESOLVED),
        (NO, MAYBE, {"all": [["a", ">", 1]]}, rules.FAILS),
    ],
)
def test_what_an_interval_leaves_open_is_not_resolved(tmp_path, first, second, partly, verdict):
    row = ROW | {"exact": "", "ours": {"a": "one", "b": "two"}, "test": [["a", ">", 1], ["b", ">", 1]]}
    (claim,) = load_claims(ledger(tmp_path, row | (PARTS | {"partly": partly} if partly else {})))
    assert judge(claim, {"a": interval(*first), "b": interval(*second)}).verdict == verdict


def test_a_plain_number_decides_an_order_only_if_it_is_a_count_or_the_row_says_why(tmp_path):
    row = ROW | {"test": [["fast", ">", 1], ["slow", "==", 0.5]]}
    exact, inexact = (
        load_claims(ledger(tmp_path, row | {"threshold": "0.5", "exact": why}))[0] for why in ("Counted.", "")
    )
    assert judge(exact, {"fast": 1.2, "slow": 0.5}).verdict == rules.HOLDS
    assert judge(inexact, {"fast": 1.2, "slow": 0.5}).verdict == rules.NO_NUMBER
    assert judge(inexact, {"fast": 2, "slow": 0.5}).verdict == rules.HOLDS
    assert judge(inexact, {"fast": interval(1.1, 1.3), "slow": 0.5}).verdict == rules.HOLDS


@pytest.mark.parametrize("test", [["fast", ">", "slow"], ["fast", "==", 1]])
def test_two_intervals_are_not_compared_and_none_is_equal_to_a_number(tmp_path, test):
    (claim,) = load_claims(ledger(tmp_path, ROW | {"test": [test]}))
    with pytest.raises(ClaimError, match="paired ratio"):
        judge(claim, {"fast": interval(1.1, 1.2), "slow": interval(1.0, 1.05)})


@pytest.mark.parametrize(
    "value, published, off",
    [
        (interval(1.5, 1.7), (1.6, 1.6), 1),
        (interval(1.5, 1.7), (1.7, 1.7), 1),
        (interval(1.5, 1.7), (3.2, 3.2), 0.5),
        (interval(1.5, 1.7), (0.8, 0.8), 2),
        (interval(1.5, 1.7), (1.65, 2.0), 1),
        (interval(1.5, 1.7), (1.0, 1.28), 1.25),
        (interval(1.5, 1.7), (3.2, 4.0), 0.5),
        (2.0, (4.0, 4.0), 0.5),
        ("not available", (1.0, 1.0), None),
        (None, (1.0, 1.0), None),
    ],
)
def test_a_size_is_met_by_the_interval_or_off_by_a_ratio(value, published, off):
    assert Size("fast", "a", "b").off(value, *published) == (off if off is None else pytest.approx(off))


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


def test_a_value_that_no_notebook_recorded_is_awaited(tmp_path):
    row = ROW | {"test": [["fast", ">", "slow"], ["fast", ">", 1]]}
    (claim,) = load_claims(ledger(tmp_path, row))
    verdict = judge(claim, {"fast": 2})
    assert verdict.verdict == rules.NO_NUMBER and verdict.ours == {"fast": 2, "slow": None}
    # Even where another condition is false: what is awaited may be what the paper's sentence is about.
    assert judge(claim, {"fast": 0}).verdict == rules.NO_NUMBER


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
        ({"test": [["fast", ">", 1.05]]}, "'threshold' does not say why 1.05 was chosen"),
        ({"test": [["fast", ">", 1.05]], "threshold": "11.05 and 1.055."}, "does not say why 1.05"),
        ({"test": [["fast", ">", [0.95, "slow"]]]}, "does not say why 0.95"),
        ({"ours": ["fast", "slow"]}, "ours is"),
        ({"ours": {"fast": "speed", "slow": ""}}, "ours is"),
        ({"ours": {"fast": "speed"}}, "'slow' is used and has no words"),
        ({"items": ["Table 1"]}, "items is"),
        ({"size": [["fast"]], "why": "x"}, "size"),
        ({"size": [["fast", 2.3]], "why": "x"}, "size"),
        ({"size": [["quick", "rest-t1"]], "why": "x"}, "'quick' is used and has no words"),
        ({"size": [["fast", "rest-t1"]]}, "'size' without 'why'"),
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


def test_every_published_size_can_be_worked_out_and_is_a_range():
    for claim in load_claims():
        for size in claim.size:
            low, high = (published_value(text, published(claim.paper)) for text in (size.low, size.high))
            assert low <= high, (claim.id, size)


def test_every_headline_with_a_number_asks_how_large_it_is():
    """A headline: what the abstract says, where the paper prints a number for it and a rule decides."""
    headlines = [claim for claim in load_claims() if "bstract" in claim.where and claim.published and claim.test]
    assert len(headlines) >= 6
    assert [claim.id for claim in headlines if not claim.size] == []


ITEMS = {"rest": 30, "dresd": 41, "pld_plus": 34, "specdec_pp": 30}
"""How many sentences, tables and figures of each paper can be tested, as counted in its text."""


def test_every_item_of_the_papers_has_a_row():
    items = [(claim.paper, where) for claim in load_claims() for where in claim.items]
    assert {paper: sum(p == paper for p, _ in items) for paper in rules.PAPERS} == ITEMS
    assert len(set(items)) == len(items)


#: How the words of a rule name the partial case in which some condition, whichever, is true.
SOME = tuple(
    f"in part if {words}"
    for words in (
        "on some",
        "on one",
        "one",
        "some",
        "in one",
        "in some",
        "at one",
        "with some",
        "than some",
        "than one",
    )
) + ("in part if more than some", "in part if than with some")
#: Rows whose rule defines another partial case: conditions by their place in the row, true (1) or false (0), and what
#: the words make of each.
CASES = {
    "rest-table-2": {(1, 1): "holds", (0, 1): "part", (0, 0): "not"},
    "rest-figure-13": {(1, 1, 1): "holds", (1, 0, 1): "part", (0, 1, 1): "part", (0, 1, 0): "not"},
    "rest-figure-12-time": {
        (1, 1, 1): "holds",
        (1, 0, 1): "part",
        (1, 1, 0): "part",
        (0, 1, 1): "not",
        (0, 0, 1): "not",
    },
    "dresd-lead": {(1, 1, 1): "holds", (0, 1, 1): "part", (1, 0, 1): "part", (0, 0, 0): "not", (1, 0, 0): "not"},
    "dresd-retrieval": {(1, 1, 1): "holds", (1, 1, 0): "part", (1, 0, 1): "not", (0, 1, 0): "not"},
    "dresd-response-alignment": {
        (1,) * 5: "holds",
        (1, 1, 1, 1, 0): "part",
        (1, 0, 0, 0, 0): "part",
        (0,) * 5: "not",
        (0, 0, 0, 0, 1): "not",
    },
    "dresd-sampling-alignment": {
        (1, 1, 1): "holds",
        (0, 1, 1): "part",
        (1, 0, 1): "part",
        (1, 1, 0): "holds",
        (0, 1, 0): "not",
    },
    "dresd-alignments-multiply": {
        (1,) * 5: "holds",
        (1, 1, 1, 0, 1): "part",
        (1, 1, 1, 1, 0): "part",
        (1, 1, 0, 1, 1): "not",
        (0, 0, 0, 0, 1): "not",
    },
    "dresd-storage": {(1, 1): "holds", (0, 1): "part", (0, 0): "not"},
    "pld-plus-conversation": {
        (1,) * 5: "holds",
        (0, 1, 1, 1, 1): "part",
        (1, 0, 1, 1, 1): "part",
        (1, 1, 0, 1, 1): "not",
        (1, 1, 1, 0, 1): "not",
        (0, 1, 1, 1, 0): "not",
    },
    "pld-plus-table-1-copying": {
        (1,) * 10: "holds",
        (1,) * 5 + (0,) * 5: "part",
        (0,) + (1,) * 9: "not",
        (0,) * 10: "not",
    },
    "pld-plus-table-2": {(1,) * 20: "holds", (1,) * 18 + (0, 1): "part", (0,) + (1,) * 19: "not", (0,) * 20: "not"},
    "pld-plus-order-editing": {
        (1,) * 7: "holds",
        (1, 1, 0, 0, 0, 0, 0): "part",
        (0,) + (1,) * 6: "not",
        (0,) * 7: "not",
    },
    "pld-plus-order-temperature": {(1,) * 4: "holds", (0, 0, 1, 1): "part", (1, 1, 0, 1): "not", (0,) * 4: "not"},
    "pld-plus-table-10-models": {(1, 1): "holds", (0, 1): "part", (0, 0): "not"},
    "specdec-pp-throughput-error": {(1, 1): "holds", (0, 1): "part", (0, 0): "not"},
    "specdec-pp-lemma-oracle": {
        (1, 1, 1): "holds",
        (1, 1, 0): "holds",
        (1, 0, 1): "part",
        (1, 0, 0): "not",
        (0, 1, 1): "not",
    },
    "specdec-pp-oracle-speedup": {(1, 1): "holds", (0, 1): "part", (0, 0): "not"},
    "specdec-pp-one-setting": {(1, 1): "holds", (0, 1): "part", (0, 0): "not"},
    "specdec-pp-threshold-policy": {(1, 1): "holds", (1, 0): "holds", (0, 1): "part", (0, 0): "not"},
    "specdec-pp-adaptive-beats-fixed": {(1, 1): "holds", (0, 1): "part", (0, 0): "not"},
    "specdec-pp-optimal-threshold-value": {(1, 1): "holds", (1, 0): "holds", (0, 1): "part", (0, 0): "not"},
    "specdec-pp-balance": {(1, 1): "holds", (1, 0): "part", (0, 0): "not", (0, 1): "not"},
    "specdec-pp-parallel": {(1, 1): "holds", (1, 0): "part", (0, 1): "not", (0, 0): "not"},
}
SHIPPED = [claim for claim in load_claims() if claim.test]
VERDICT = {"holds": rules.HOLDS, "part": rules.PARTLY, "not": rules.FAILS}


def values_for(claim, conditions, truths, seed: int):
    """Values under which each condition is as true as asked for; None where none were found."""
    rng = random.Random(seed)
    values = {name: rng.choice([0.5, 1.0, 2.0, 40.0]) for name in claim.ours}
    wanted = [Truth.TRUE if truth else Truth.FALSE for truth in truths]
    for _ in range(4000):
        wrong = [c for c, truth in zip(conditions, wanted, strict=True) if c.holds(values) is not truth]
        if not wrong:
            # A width of zero: an interval that decides as its value does.
            return {name: interval(value) if isinstance(value, float) else value for name, value in values.items()}
        # Set one side of a condition that is not as wanted to the other side, or to one side of it.
        condition = rng.choice(wrong)
        (left, right), side = [
            [o if isinstance(o, tuple) else (1.0, o) for o in (condition.left, condition.right)],
            rng.randrange(2),
        ]
        free, other = ((left, right), (right, left))[side]
        if isinstance(free[1], str):
            at = other[0] * (values[other[1]] if isinstance(other[1], str) else other[1])
            values[free[1]] = at / free[0] * rng.choice([1, 1, 0.999, 0.8, 0.5, 1.001, 1.25, 2]) + rng.choice(
                [0, 0, -1, 1]
            )
    return None


@pytest.mark.parametrize("claim", [c for c in SHIPPED if c.id not in CASES], ids=lambda claim: claim.id)
def test_the_verdict_of_a_shipped_row_follows_the_words_of_its_rule(claim):
    words = " ".join(claim.rule.split())
    some = any(part in words for part in SOME)
    assert some == ("in part" in words), f"{claim.id}: say in CASES what its partial case is"
    assert claim.partly == (Case("any", claim.test) if some else None)
    count, verdicts = len(claim.test), set()
    vectors = {tuple(i == true for i in range(count)) for true in range(count)}
    vectors |= {tuple(i != false for i in range(count)) for false in range(count)}
    for truths in sorted({*vectors, (True,) * count, (False,) * count}):
        values = values_for(claim, claim.test, truths, 0)
        if values is None:
            assert not all(truths), f"{claim.id}: all conditions must be possible"
            continue
        expected = rules.HOLDS if all(truths) else rules.PARTLY if some and any(truths) else rules.FAILS
        verdicts.add(expected)
        assert judge(claim, values).verdict == expected, (claim.id, values)
    assert verdicts == {rules.HOLDS, rules.FAILS} | ({rules.PARTLY} if some else set()), claim.id


@pytest.mark.parametrize("name", CASES)
def test_the_verdict_of_a_row_with_a_partial_case_of_its_own_follows_its_words(name):
    claim = next(c for c in SHIPPED if c.id == name)
    assert set(CASES[name].values()) == set(VERDICT)
    for truths, verdict in CASES[name].items():
        values = values_for(claim, claim.conditions, truths, 0)
        assert values is not None, (name, truths)
        assert judge(claim, values).verdict == VERDICT[verdict], (name, truths, values)


def compares_intervals(claim) -> bool:
    """Whether measured values decide the row, not counts and exact values alone."""
    ordered = [condition for condition in claim.conditions if condition.operator != "=="]
    return bool(ordered) and not claim.exact and all(len(condition.names) == 1 for condition in ordered)


@pytest.mark.parametrize("claim", [claim for claim in SHIPPED if compares_intervals(claim)], ids=lambda claim: claim.id)
def test_a_row_whose_intervals_tell_nothing_is_not_resolved(claim):
    ordered = {name for c in claim.conditions if c.operator != "==" for name in c.names}
    values = {name: interval(-1e6, 1e6) if name in ordered else 0 for name in claim.ours}
    assert all(c.holds(values) is Truth.OPEN for c in claim.conditions if c.operator != "==")
    # A count that is not as asked for may decide beside them.
    counted = [c.holds(values) for c in claim.conditions if c.operator == "=="]
    assert judge(claim, values).verdict == (rules.FAILS if Truth.FALSE in counted else rules.UNRESOLVED)
