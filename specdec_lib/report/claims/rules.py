"""The ledger of claims: what the papers say, what was measured here, and the rule that decides.

A row of ``data/claims.yml`` names a claim, the published numbers it rests on (rows of ``data/published/<paper>.csv``),
the notebook and the values it recorded, and asks up to two questions of them.

*Direction* is the verdict. A recorded value is an interval, a count (a whole number) or, in a row that says under
``exact`` why it has no interval, another plain number. A condition is true if the whole interval lies on its side of the
threshold, false if the whole interval lies on the other, and open if the interval holds the threshold. If all conditions
of ``test`` are true the claim holds. If that is not so and the case that ``partly`` describes is true, it holds in part;
a row without ``partly`` has no such case. If what is open decides, the claim is not resolved. Otherwise it does not hold
here. ``test`` and ``partly`` say what ``rule`` says in words.

*Size* compares magnitudes: each line of ``size`` is a recorded value and what the paper prints for it.

``headline`` holds the rows of the figure "What reproduces" that belong to a claim.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import yaml

from specdec_lib import paths
from specdec_lib.experiments.published_numbers import ClaimError

PAPERS = ("rest", "dresd", "pld_plus", "specdec_pp")
HOLDS, PARTLY, FAILS = "holds", "holds in part", "does not hold here"
UNRESOLVED, UNTESTABLE, NO_NUMBER = "not resolved", "not testable here", "no number yet"
PRICES = {
    "here": "this machine",
    "gpu": "published GPU price",
    "rest": "REST's own cost, store of this book",
    "rest-carried": "REST's own cost, store carried on to the paper's size",
    "specdec-pp": "SpecDec++'s own times",
    "counts": "counts, no price of a pass",
}
"""What a headline's number was priced by, in the order of the figure."""
_SAID = {">": "is above", ">=": "is at least", "<": "is below", "<=": "is at most", "==": "is"}
_OPERATORS = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le, "==": operator.eq}
_FIELDS = {
    "id",
    "paper",
    "where",
    "claim",
    "items",
    "published",
    "notebook",
    "ours",
    "rule",
    "test",
    "partly",
    "size",
    "headline",
    "threshold",
    "exact",
    "why",
    "untestable",
    "behaviour",
    "shape",
    "note",
}

Operand = float | str | tuple[float, str]


class Truth(Enum):
    """What came of a condition, or of several."""

    TRUE = "true"
    FALSE = "false"
    OPEN = "not resolved"
    UNKNOWN = "no number"


def bounds(value: Any) -> tuple[float, float] | None:
    """Return the ends of a recorded value, which are equal for a plain number; None for one without a number.

    Parameters
    ----------
    value : number, mapping or object
        An interval is a mapping with ``value``, ``low`` and ``high``, or has them as attributes.
    """
    if isinstance(value, Mapping):
        return (value["low"], value["high"]) if {"value", "low", "high"} <= set(value) else None
    if hasattr(value, "low") and hasattr(value, "high"):
        return value.low, value.high
    return (value, value) if isinstance(value, (bool, int, float)) else None


def centre(value: Any) -> float | None:
    """Return the estimate that a recorded value holds; None for one without a number."""
    if bounds(value) is None:
        return None
    return value["value"] if isinstance(value, Mapping) else getattr(value, "value", value)


@dataclass(frozen=True)
class Condition:
    """``left operator right``; an operand is a number, a recorded name, or a recorded name times a factor."""

    left: Operand
    operator: str
    right: Operand

    def __str__(self) -> str:
        return f"{_shown(self.left, {})} {self.operator} {_shown(self.right, {})}"

    def words(self, labels: Mapping[str, str]) -> str:
        """The condition for readers, with the labels of its names."""
        return f"{_shown(self.left, labels)} {_SAID[self.operator]} {_shown(self.right, labels)}"

    @property
    def names(self) -> tuple[str, ...]:
        """Recorded names it needs."""
        named = (o[1] if isinstance(o, tuple) else o for o in (self.left, self.right))
        return tuple(name for name in named if isinstance(name, str))

    @property
    def thresholds(self) -> tuple[float, ...]:
        """Numbers in it that somebody chose: all but a comparison with 0 or 1 and a factor of 1."""
        numbers = (o[0] if isinstance(o, tuple) else o for o in (self.left, self.right) if not isinstance(o, str))
        return tuple(number for number in numbers if number not in (0, 1))

    def holds(self, values: Mapping[str, Any], exact: bool = True) -> Truth:
        """Whether it is true of every value that its intervals hold.

        Without ``exact`` an order that rests on plain numbers other than counts is unknown: nothing says how far off
        they may be.

        Raises
        ------
        ClaimError
            It compares two intervals, or asks whether an interval is equal to something.
        """
        sides = [_bounds(self.left, values), _bounds(self.right, values)]
        if None in sides:
            return Truth.UNKNOWN
        wide = [low != high for low, high in sides]
        if all(wide) or (any(wide) and self.operator == "=="):
            raise ClaimError(
                f"{self}: {'two intervals' if all(wide) else 'an interval and =='}; record their paired ratio or "
                "difference as one interval, or compare a count"
            )
        if self.operator != "==" and not exact and any(isinstance(values[name], float) for name in self.names):
            return Truth.UNKNOWN
        answers = {_OPERATORS[self.operator](left, right) for left in sides[0] for right in sides[1]}
        return Truth.OPEN if len(answers) == 2 else Truth.TRUE if answers == {True} else Truth.FALSE

    def lead(self, values: Mapping[str, Any]) -> tuple[float, float, float] | None:
        """How far the claimed side is ahead: estimate and ends of the ratio of the two sides, which is above 1 where the
        condition is true. None without an interval, for an equality, and where a side is not positive."""
        sides = [_bounds(self.left, values), _bounds(self.right, values)]
        if None in sides or self.operator == "==" or all(low == high for low, high in sides):
            return None
        if min(low for low, _ in sides) <= 0:
            return None
        ahead, behind = (0, 1) if self.operator in (">", ">=") else (1, 0)
        middle = [_centre(operand, values) for operand in (self.left, self.right)]
        return middle[ahead] / middle[behind], sides[ahead][0] / sides[behind][1], sides[ahead][1] / sides[behind][0]


@dataclass(frozen=True)
class Case:
    """A case of a rule: ``all`` or ``any`` of its conditions are true."""

    how: str
    conditions: tuple[Condition, ...]

    def holds(self, values: Mapping[str, Any], exact: bool = True) -> Truth:
        """Whether it is true: one condition decides (a false one of all, a true one of any), else what is unknown, else
        what is open."""
        truths = [condition.holds(values, exact) for condition in self.conditions]
        deciding, other = (Truth.TRUE, Truth.FALSE) if self.how == "any" else (Truth.FALSE, Truth.TRUE)
        return next((truth for truth in (deciding, Truth.UNKNOWN, Truth.OPEN) if truth in truths), other)


@dataclass(frozen=True)
class Size:
    """A recorded value and what the paper prints for it: one number, or the smallest and the largest of several, as
    expressions over published numbers (:func:`specdec_lib.report.claims.published_tables.published_value`)."""

    name: str
    low: str
    high: str

    def off(self, value: Any, low: float, high: float) -> float | None:
        """How far off the published number is: 1 if our interval meets the published range, else our estimate
        over the end of the range that is nearer; None without a number."""
        ends = bounds(value)
        if ends is None:
            return None
        if ends[1] < low:
            return centre(value) / low
        return centre(value) / high if ends[0] > high else 1.0


@dataclass(frozen=True)
class Headline:
    """A row of the figure "What reproduces": its label, recorded names with what priced them (:data:`PRICES`), and the
    smallest and the largest published value as expressions; ``published`` is empty where the paper gives no number."""

    label: str
    ours: Mapping[str, str]
    published: tuple[str, ...] = ()


@dataclass(frozen=True)
class Claim:
    """A row of the ledger; the fields are those of ``data/claims.yml``.

    ``ours`` gives each recorded name the words that a reader sees, ``items`` the sentences, tables and figures of the
    paper that the row answers, by their place. ``threshold`` says why each number was chosen that a condition compares
    with, ``exact`` why plain numbers decide.
    ``behaviour`` and ``shape`` are given where the text or the times that decide are not those of the models
    that the notebook runs. ``why`` is the reason where the claim does not wholly hold or the published size is not
    ours; ``note`` is what a reader should know whatever the verdict."""

    id: str
    paper: str
    where: str
    claim: str
    rule: str
    published: tuple[str, ...] = ()
    notebook: str | None = None
    ours: Mapping[str, str] = field(default_factory=dict)
    test: tuple[Condition, ...] = ()
    partly: Case | None = None
    size: tuple[Size, ...] = ()
    headline: tuple[Headline, ...] = ()
    items: Mapping[str, str] = field(default_factory=dict)
    threshold: str = ""
    exact: str = ""
    why: str = ""
    untestable: str = ""
    behaviour: str = ""
    shape: str = ""
    note: str = ""

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """Those of ``test`` and, after them, those of ``partly`` alone."""
        return tuple(dict.fromkeys((*self.test, *(self.partly.conditions if self.partly else ()))))


def _shown(operand: Operand, labels: Mapping[str, str]) -> str:
    if isinstance(operand, tuple):
        return f"{operand[0]:g} × {labels.get(operand[1], operand[1])}"
    return labels.get(operand, operand) if isinstance(operand, str) else f"{operand:g}"


def _bounds(operand: Operand, values: Mapping[str, Any]) -> tuple[float, float] | None:
    if isinstance(operand, float):
        return operand, operand
    factor, name = operand if isinstance(operand, tuple) else (1.0, operand)
    ends = bounds(values.get(name))
    return None if ends is None else (factor * ends[0], factor * ends[1])


def _centre(operand: Operand, values: Mapping[str, Any]) -> float:
    if isinstance(operand, float):
        return operand
    factor, name = operand if isinstance(operand, tuple) else (1.0, operand)
    return factor * centre(values[name])


def _operand(raw: Any, row: str) -> Operand:
    if isinstance(raw, (int, float)) and not isinstance(raw, bool):
        return float(raw)
    if isinstance(raw, str) and raw.isidentifier():
        return raw
    if isinstance(raw, list) and len(raw) == 2 and isinstance(raw[0], (int, float)) and isinstance(raw[1], str):
        return float(raw[0]), raw[1]
    raise ClaimError(f"{row}: operand {raw!r}; expected a number, a recorded name, or [factor, recorded name]")


def _condition(raw: Any, row: str) -> Condition:
    if not isinstance(raw, list) or len(raw) != 3 or raw[1] not in _OPERATORS:
        raise ClaimError(
            f"{row}: condition {raw!r}; expected [operand, operator, operand] with one of {' '.join(_OPERATORS)}"
        )
    return Condition(_operand(raw[0], row), raw[1], _operand(raw[2], row))


def _case(raw: Any, test: tuple[Condition, ...], rule: str, row: str) -> Case | None:
    if ("in part" in rule) != (raw is not None):
        raise ClaimError(
            f"{row}: the rule in words {'has' if raw is None else 'lacks'} a case 'in part' and the field 'partly' "
            f"{'is missing' if raw is None else 'is there'}; expected both or neither"
        )
    if raw is None:
        return None
    if raw == "some":
        if len(test) < 2:
            raise ClaimError(f"{row}: partly is 'some' of {len(test)} conditions; expected two or more under 'test'")
        return Case("any", test)
    if (
        not isinstance(raw, dict)
        or len(raw) != 1
        or not {*raw} <= {"all", "any"}
        or not isinstance([*raw.values()][0], list)
        or not [*raw.values()][0]
    ):
        raise ClaimError(
            f"{row}: partly is {raw!r}; expected 'some' (of the conditions under 'test'), or conditions under "
            "'all' or under 'any'"
        )
    ((how, conditions),) = raw.items()
    return Case(how, tuple(_condition(condition, row) for condition in conditions))


def _size(raw: Any, row: str) -> Size:
    texts = isinstance(raw, list) and all(isinstance(part, str) for part in raw)
    if not texts or len(raw) not in (2, 3) or not raw[0].isidentifier():
        raise ClaimError(
            f"{row}: size {raw!r}; expected [recorded name, published number] or [recorded name, smallest, largest]"
        )
    return Size(raw[0], raw[1], raw[-1])


def _headline(raw: Any, row: str) -> Headline:
    if not isinstance(raw, dict) or not {"label", "ours"} <= set(raw) <= {"label", "ours", "published"}:
        raise ClaimError(f"{row}: headline {raw!r}; expected 'label', 'ours' and, if there is one, 'published'")
    label, ours, published = raw["label"], _words(raw["ours"], "headline", row), raw.get("published") or []
    if not isinstance(label, str) or not label.strip() or not ours:
        raise ClaimError(f"{row}: headline {raw!r}; expected a text under 'label' and a recorded name under 'ours'")
    unknown = [price for price in ours.values() if price not in PRICES]
    if unknown:
        raise ClaimError(f"{row}: headline {label!r} is priced by {unknown[0]!r}; expected one of {', '.join(PRICES)}")
    if not isinstance(published, list) or len(published) > 2 or not all(isinstance(part, str) for part in published):
        raise ClaimError(f"{row}: headline {label!r} has published {published!r}; expected one or two expressions")
    return Headline(label.strip(), ours, tuple(published))


def _words(raw: Any, name: str, row: str) -> dict[str, str]:
    """A field that gives each of its keys a text."""
    raw = raw or {}
    if not isinstance(raw, dict) or not all(isinstance(text, str) and text.strip() for text in raw.values()):
        raise ClaimError(f"{row}: {name} is {raw!r}; expected a mapping of names to a text for each")
    return {str(key): text.strip() for key, text in raw.items()}


def _check_words(claim: Claim, row: str) -> None:
    """Refuse a row that leaves a name, a threshold or a size without words."""
    names = [name for condition in claim.conditions for name in condition.names]
    names += [size.name for size in claim.size] + [name for headline in claim.headline for name in headline.ours]
    needed = dict.fromkeys(names)
    unnamed = [name for name in needed if name not in claim.ours]
    if unnamed:
        raise ClaimError(f"{row}: {unnamed[0]!r} is used and has no words under 'ours'")
    for number in dict.fromkeys(number for condition in claim.conditions for number in condition.thresholds):
        if not re.search(rf"(?<![\d.]){re.escape(f'{number:g}')}(?![\d.]*\d)", claim.threshold):
            raise ClaimError(f"{row}: the field 'threshold' does not say why {number:g} was chosen")
    if claim.size and not claim.why:
        raise ClaimError(f"{row}: 'size' without 'why'; expected the reason in case the published value is not ours")


def _claim(raw: Any, position: int) -> Claim:
    if not isinstance(raw, dict):
        raise ClaimError(f"row {position} is {raw!r}; expected a mapping")
    row = f"claim {raw.get('id', f'number {position}')!r}"
    unknown = sorted(set(raw) - _FIELDS)
    if unknown:
        raise ClaimError(f"{row}: unknown field {unknown[0]!r}; expected {', '.join(sorted(_FIELDS))}")
    for name in ("id", "paper", "where", "claim"):
        if not isinstance(raw.get(name), str) or not raw[name].strip():
            raise ClaimError(f"{row}: {name} is {raw.get(name)!r}; expected a text")
    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", raw["id"]):
        raise ClaimError(f"{row}: expected an id of small letters and digits joined by hyphens")
    if raw["paper"] not in PAPERS:
        raise ClaimError(f"{row}: paper is {raw['paper']!r}; expected one of {', '.join(PAPERS)}")
    test = tuple(_condition(condition, row) for condition in raw.get("test") or ())
    untestable, notebook = raw.get("untestable") or "", raw.get("notebook")
    if bool(untestable) == bool(test):
        raise ClaimError(f"{row}: expected either conditions under 'test' or a reason under 'untestable'")
    if test and not (notebook and raw.get("rule")):
        raise ClaimError(f"{row}: expected a notebook and a rule in words beside its conditions")
    texts = ("why", "untestable", "behaviour", "shape", "note", "threshold", "exact", "rule")
    text = {name: (raw.get(name) or "").strip() for name in texts}
    claim = Claim(
        id=raw["id"],
        paper=raw["paper"],
        where=raw["where"],
        claim=raw["claim"].strip(),
        published=tuple(raw.get("published") or ()),
        notebook=notebook,
        ours=_words(raw.get("ours"), "ours", row),
        test=test,
        partly=_case(raw.get("partly"), test, text["rule"], row),
        size=tuple(_size(size, row) for size in raw.get("size") or ()),
        headline=tuple(_headline(headline, row) for headline in raw.get("headline") or ()),
        items=_words(raw.get("items"), "items", row),
        **text,
    )
    _check_words(claim, row)
    return claim


def load_claims(path: str | Path | None = None) -> list[Claim]:
    """Read the ledger, the project's own by default; ClaimError if a row lacks a field, has one too many or a condition
    of another form, or two rows share an id."""
    path = paths.CLAIMS if path is None else Path(path)
    raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    if not isinstance(raw, list):
        raise ClaimError(f"{path} holds a {type(raw).__name__}; expected a list of claims")
    claims = [_claim(row, position) for position, row in enumerate(raw, start=1)]
    seen: set[str] = set()
    for claim in claims:
        if claim.id in seen:
            raise ClaimError(f"two claims have the id {claim.id!r}")
        seen.add(claim.id)
    return claims


@dataclass(frozen=True)
class Verdict:
    """What came of a claim: the recorded values shown, and for each condition of ``test`` and ``partly`` its truth."""

    claim: Claim
    verdict: str
    ours: dict[str, Any]
    conditions: tuple[tuple[Condition, Truth], ...]


def judge(claim: Claim, values: Mapping[str, Any]) -> Verdict:
    """Decide a claim by its rule.

    A value that decides and that its notebook has not recorded, or has recorded without the interval that the row needs,
    makes it "no number yet"; a text instead of a number ("not available") that leaves the rule undecided makes it not
    testable here.

    Parameters
    ----------
    claim : Claim
    values : mapping
        What its notebook recorded.
    """
    if claim.untestable:
        return Verdict(claim, UNTESTABLE, {}, ())
    exact = bool(claim.exact)
    truths = tuple((condition, condition.holds(values, exact)) for condition in claim.conditions)
    whole = Case("all", claim.test).holds(values, exact)
    partly = claim.partly.holds(values, exact) if claim.partly else Truth.FALSE
    ours = {name: values.get(name) for name in claim.ours}
    return Verdict(claim, _verdict(whole, partly, _awaits(truths, values)), ours, truths)


def _awaits(truths: Sequence[tuple[Condition, Truth]], values: Mapping[str, Any]) -> bool:
    """Whether a condition lacks a value, or the interval of one, that its notebook is still to record."""
    lacking = [condition for condition, truth in truths if truth is Truth.UNKNOWN]
    return any(not any(isinstance(values.get(n), str) for n in condition.names) for condition in lacking)


def _verdict(whole: Truth, partly: Truth, awaits: bool) -> str:
    if awaits:
        return NO_NUMBER
    if whole is Truth.TRUE:
        return HOLDS
    if partly is Truth.TRUE:
        return PARTLY
    if Truth.UNKNOWN in (whole, partly):
        return UNTESTABLE
    return UNRESOLVED if Truth.OPEN in (whole, partly) else FAILS


def judge_all(claims: Sequence[Claim], recorded: Mapping[str, Mapping[str, Any]]) -> list[Verdict]:
    """Decide every claim whose notebook was run, and every one that cannot be tested.

    Parameters
    ----------
    claims : sequence of Claim
    recorded : mapping
        By notebook, what it recorded.
    """
    return [
        judge(claim, recorded.get(claim.notebook, {}))
        for claim in claims
        if claim.untestable or claim.notebook in recorded
    ]
