"""The claims of the papers, and what the numbers of the chapters make of them.

A row of ``data/claims.yml`` says what a paper claims and which conditions over the chapters' numbers decide. A condition is
true if the whole interval lies on its side of the threshold, false if the whole interval lies on the other, and open if the
interval holds the threshold. A claim holds if all conditions of ``holds`` are true; if it could not have failed, which
``construction`` explains, that is no evidence for the paper and has a verdict of its own, with or without conditions. Otherwise
it holds in part if the case ``partly``, a part that the paper could live with, is true. It does not hold here if a condition of
``holds`` is false, and is not resolved if what decides is open: then it says how many prompts would decide.

Where ``second`` names the numbers of a second model, the same rule judges these too (:func:`agreement`).
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import pandas as pd
import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)

from specdec_lib import paths
from specdec_lib.experiments.data.published_numbers import (
    PAPERS,
    ClaimError,
    parse_entry,
    printed_numbers,
    published_range,
)
from specdec_lib.report.numbers import Number

HOLDS, PARTLY, FAILS, CONSTRUCTED = "holds", "holds in part", "does not hold here", "true by construction"
UNRESOLVED, UNTESTABLE, NO_NUMBER = "not resolved", "not testable here", "no number yet"
VERDICTS = (HOLDS, PARTLY, FAILS, UNRESOLVED, CONSTRUCTED, UNTESTABLE, NO_NUMBER)
#: What the second model's numbers say of a verdict.
AGREE, DISAGREE, UNDECIDED = "both models agree", "the models disagree", "not resolved whether both models agree"
#: The cost of a pass behind a headline's number.
PASS_COSTS = {
    "here": "our EPYC",
    "gpu": "an A100's cost",
    "rest": "REST's own cost, store of this book",
    "rest-carried": "REST's own cost, extrapolated to the paper's store",
    "specdec-pp": "SpecDec++'s own times",
    "counts": "counts, no cost of a pass",
}

Tables = Mapping[str, Mapping[str, Number]]
_OPERATORS = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le, "==": operator.eq}
_KEY = r"\w\w/[A-Za-z_]\w*"


class Truth(Enum):
    """The outcome of one condition, or of several."""

    TRUE = "true"
    FALSE = "false"
    OPEN = "not resolved"
    UNKNOWN = "no number"


def number(key: str, tables: Tables) -> Number | None:
    """The number of ``"04/h10_over_pld10"``; None where no chapter saved it."""
    chapter, _, name = key.partition("/")
    return tables.get(chapter, {}).get(name)


def bounds(value: Number | None) -> tuple[float, float] | None:
    """The ends of a number, equal for one without an interval; None for a text and where there is no number."""
    if value is None or value.value is None or value.words:
        return None
    return (value.value, value.value) if value.low is None else (value.low, value.high)


class Side(NamedTuple):
    """A side of a condition: a number, a key, or a key times a number."""

    factor: float
    key: str = ""

    def ends(self, tables: Tables) -> tuple[Fraction, Fraction] | None:
        """Its bounds."""
        found = bounds(number(self.key, tables)) if self.key else (1.0, 1.0)
        return found and tuple(self._times(end) for end in found)

    def estimate(self, tables: Tables) -> Fraction:
        """Its value, of a number that has one."""
        return self._times(number(self.key, tables).value if self.key else 1.0)

    def _times(self, value: float) -> Fraction:
        # Exact, as 0.07 * 100 in floats is more than 7.
        return Fraction(str(self.factor)) * Fraction(str(value))


@dataclass(frozen=True)
class Condition:
    """``04/h10_over_pld10 > 1``; ``text`` is as written."""

    text: str
    left: Side
    operator: str
    right: Side

    @property
    def keys(self) -> tuple[str, ...]:
        """Keys of the numbers it needs."""
        return tuple(side.key for side in (self.left, self.right) if side.key)

    def truth(self, tables: Tables, exact: bool = True) -> Truth:
        """Whether it is true of every value that its intervals hold.

        Without ``exact`` an order that rests on a plain number other than a count is unknown: nothing says how far off it
        may be. ClaimError if it compares two intervals, or asks whether an interval is equal to something.
        """
        sides = [self.left.ends(tables), self.right.ends(tables)]
        if None in sides:
            return Truth.UNKNOWN
        wide = [low != high for low, high in sides]
        if all(wide) or (any(wide) and self.operator == "=="):
            raise ClaimError(
                f"{self.text}: {'two intervals' if all(wide) else 'an interval and =='}; save their paired ratio or "
                "difference as one interval, or compare a count"
            )
        values = [number(key, tables) for key in self.keys]
        plain = any(isinstance(value.value, float) and value.low is None for value in values)
        if self.operator != "==" and not exact and plain:
            return Truth.UNKNOWN
        answers = {_OPERATORS[self.operator](left, right) for left in sides[0] for right in sides[1]}
        return Truth.OPEN if len(answers) == 2 else Truth.TRUE if answers == {True} else Truth.FALSE

    def at_estimate(self, tables: Tables) -> Truth:
        """Whether it is true of the values themselves, whatever their intervals."""
        met = _OPERATORS[self.operator](self.left.estimate(tables), self.right.estimate(tables))
        return Truth.TRUE if met else Truth.FALSE

    def prompts_to_decide(self, tables: Tables) -> int | None:
        """How many prompts would decide what is open, if the estimate stays.

        An interval narrows as the square root of their number, so it takes n (half-width / distance from the bar)^2 of them; the
        half-width is that of the side where the bar lies. None where nothing is open or the interval does not come from prompts.
        """
        if self.truth(tables) is not Truth.OPEN:
            return None
        sides = self.left, self.right
        interval, bar = sides if len(set(self.left.ends(tables))) == 2 else sides[::-1]
        value, at = interval.estimate(tables), bar.estimate(tables)
        prompts = number(interval.key, tables).prompts
        if not prompts or value == at:
            return None
        ends = interval.ends(tables)
        half = max(ends) - value if value < at else value - min(ends)
        return math.ceil(prompts * (half / (at - value)) ** 2)


def parse_condition(text: Any) -> Condition:
    """``side operator side``, parted by spaces; a side is a number, a key, or ``number * key``."""
    side = rf"(?:(?:(-?\d+(?:\.\d+)?) \* )?({_KEY})|(-?\d+(?:\.\d+)?))"
    found = re.fullmatch(rf"{side} ({'|'.join(_OPERATORS)}) {side}", text) if isinstance(text, str) else None
    if not found or not (found[2] or found[6]):
        raise ClaimError(f"condition {text!r}; expected one such as '04/h10_over_pld10 > 1' or '02/a <= 0.9 * 02/b'")
    left, right = (
        Side(float(factor or alone or 1), key or "")
        for factor, key, alone in (found.group(1, 2, 3), found.group(5, 6, 7))
    )
    return Condition(text, left, found[4], right)


def combine(truths: Sequence[Truth], how: str) -> Truth:
    """Whether ``all`` or ``any`` are true: one decides (a false one of all, a true one of any), else what is unknown, else
    what is open."""
    deciding, other = (Truth.TRUE, Truth.FALSE) if how == "any" else (Truth.FALSE, Truth.TRUE)
    return next((truth for truth in (deciding, Truth.UNKNOWN, Truth.OPEN) if truth in truths), other)


Text = Annotated[
    str, AfterValidator(lambda text: " ".join(text.split())), Field(description="a text, in quotes if need be")
]
Conditions = tuple[Annotated[Condition, BeforeValidator(parse_condition)], ...]


class Headline(BaseModel, extra="allow", frozen=True):
    """A row of the figure "What reproduces": its label, the published range as an expression, and keys with the cost of a pass
    behind them (:data:`PASS_COSTS`)."""

    label: Annotated[Text, Field(min_length=1)]
    published: Text = ""

    @property
    def ours(self) -> Mapping[str, str]:
        """By key the cost of a pass."""
        return self.model_extra

    @model_validator(mode="after")
    def _known_costs(self) -> Headline:
        odd = [key for key, cost in self.ours.items() if not re.fullmatch(_KEY, key) or cost not in PASS_COSTS]
        if odd or not self.ours:
            raise ClaimError(
                f"headline {self.label!r} has {odd or 'no keys'}; expected keys, each with one of {', '.join(PASS_COSTS)}"
            )
        return self


class Partly(NamedTuple):
    """The case "in part": whether ``any`` or ``all`` of these conditions must be true."""

    how: str
    conditions: tuple[Condition, ...]


class Claim(BaseModel, extra="forbid", frozen=True):
    """A row of ``data/claims.yml``; ``book/add-a-claim.md`` explains the fields."""

    id: Annotated[
        Text, Field(pattern="^[a-z0-9]+(-[a-z0-9]+)*$", description="small letters and digits joined by hyphens")
    ]
    paper: Annotated[
        Text,
        Field(
            pattern=f"^({'|'.join(map(re.escape, PAPERS))}), ",
            description=f"{' or '.join(PAPERS)}, then a comma and the place",
        ),
    ]
    says: Annotated[Text, Field(min_length=1)]
    holds: Conditions = Field((), description="a list of conditions")
    partly: Partly | None = None
    construction: Text = ""
    changed: Text = ""
    rule: Text = ""
    untestable: Text = ""
    published: dict[str, str] = Field({}, description="a list of ids, or by key an expression over ids")
    headline: tuple[Headline, ...] = Field((), description="a list of mappings with a label")
    second: dict[str, str] = Field({}, description="by the beginning of a key that of the second model's")
    measured: Text = ""
    threshold: Text = ""
    no_interval_because: Text = ""
    why: Text = ""
    note: Text = ""

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """Those of ``holds`` and, after them, those of ``partly`` alone."""
        return tuple(dict.fromkeys((*self.holds, *(self.partly.conditions if self.partly else ()))))

    @property
    def keys(self) -> tuple[str, ...]:
        """Every key that it names."""
        named = [key for condition in self.conditions for key in condition.keys]
        named += [key for key in self.published if "/" in key] + [key for row in self.headline for key in row.ours]
        return tuple(dict.fromkeys(named))

    def of_second_model(self) -> Claim:
        """The same rule about the second model's numbers: each key with its beginning as ``second`` has it."""

        def twin(condition: Condition) -> Condition:
            return parse_condition(" ".join(_twin(word, self.second) for word in condition.text.split(" ")))

        partly = self.partly and Partly(self.partly.how, tuple(map(twin, self.partly.conditions)))
        return self.model_copy(update={"holds": tuple(map(twin, self.holds)), "partly": partly, "second": {}})

    @field_validator("partly", mode="before")
    @classmethod
    def _parse_partly(cls, raw: Any, known: ValidationInfo) -> Partly:
        holds = known.data.get("holds", ())
        if raw == "some":
            if len(holds) < 2:
                raise ClaimError(f"partly is 'some' of {len(holds)} conditions; expected two or more")
            return Partly("any", holds)
        how, listed = ("any", raw.get("any")) if isinstance(raw, dict) and len(raw) == 1 else ("all", raw)
        if not isinstance(listed, list) or not listed:
            raise ClaimError(f"partly is {raw!r}; expected 'some', a list of conditions, or {{any: a list}}")
        return Partly(how, tuple(parse_condition(text) for text in listed))

    @field_validator("published", mode="before")
    @classmethod
    def _own_size(cls, raw: Any) -> Any:
        return {name: name for name in raw} if isinstance(raw, list) else raw

    @field_validator("published")
    @classmethod
    def _known_numbers(cls, given: dict[str, str]) -> dict[str, str]:
        for name, text in given.items():
            if "/" in name:
                published_range(text, printed_numbers())
            elif name not in printed_numbers():
                raise ClaimError(f"there is no published number {name!r} in data/published")
        return given

    @model_validator(mode="after")
    def _one_rule(self) -> Claim:
        """Fields that need others, or exclude them."""
        if bool(self.holds or self.construction) == bool(self.untestable):
            raise ClaimError(
                "expected either conditions under 'holds' or a reason under 'untestable', or, where no number is needed, one "
                "under 'construction'"
            )
        if self.holds and not self.rule:
            raise ClaimError("no 'rule' that says in words what the conditions ask")
        if ("in part" in self.rule) != bool(self.partly):
            raise ClaimError("'rule' names a case 'in part' and there is no 'partly', or the other way round")
        if self.construction and self.partly:
            raise ClaimError("a claim that is true by construction has no case 'partly'")
        if odd := [text for pair in self.second.items() for text in pair if "/" not in text]:
            raise ClaimError(f"second has {odd[0]!r}; expected by the beginning of a key that of the second model's")
        own = [key for c in self.conditions for key in c.keys if self.second and _twin(key, self.second) == key]
        if own:
            raise ClaimError(f"second has no beginning of {own[0]!r}; expected one for each key of the conditions")
        for chosen in {side for c in self.conditions for side in (c.left, c.right) if side.factor not in (0, 1)}:
            if not re.search(rf"(?<![\d.]){re.escape(f'{chosen.factor:g}')}(?![\d.]*\d)", self.threshold):
                raise ClaimError(f"the field 'threshold' does not say why {chosen.factor:g} was chosen")
        if any("/" in key for key in self.published) and not self.why:
            raise ClaimError("a published size without 'why'; expected the reason in case it is not ours")
        return self


def _twin(key: str, second: Mapping[str, str]) -> str:
    return next((new + key.removeprefix(old) for old, new in second.items() if key.startswith(old)), key)


def load_claims(path: Path | None = None) -> list[Claim]:
    """The claims of a file, the project's own by default; ClaimError if a row is not as it must be or an id repeats."""
    raw = yaml.safe_load((path or paths.CLAIMS).read_text(encoding="utf-8"))
    if not isinstance(raw, list) or not all(isinstance(row, dict) for row in raw):
        raise ClaimError(f"{path or paths.CLAIMS}: expected a list of claims, each a mapping")
    claims = [parse_entry(Claim, row, f"claim {row.get('id')!r}") for row in raw]
    names = [claim.id for claim in claims]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise ClaimError(f"two claims have the id {twice[0]!r}")
    return claims


def verdict(claim: Claim, tables: Tables) -> str:
    """Judge a claim by the numbers.

    A number that is missing, or lacks the interval that the claim needs, makes it "no number yet"; a text instead of a
    number ("not available") that leaves the rule undecided makes it not testable here.
    """
    if claim.untestable:
        return UNTESTABLE
    truths = {condition: condition.truth(tables, bool(claim.no_interval_because)) for condition in claim.conditions}
    lacking = [condition for condition, truth in truths.items() if truth is Truth.UNKNOWN]
    if any(not any((found := number(key, tables)) and found.words for key in c.keys) for c in lacking):
        return NO_NUMBER
    return _by_rule(claim, truths)


def _by_rule(claim: Claim, truths: Mapping[Condition, Truth]) -> str:
    whole = combine([truths[condition] for condition in claim.holds], "all")
    how, conditions = claim.partly or Partly("any", ())
    part = combine([truths[condition] for condition in conditions], how)
    if whole is Truth.TRUE:
        return CONSTRUCTED if claim.construction else HOLDS
    if part is Truth.TRUE:
        return PARTLY
    if Truth.UNKNOWN in (whole, part):
        return UNTESTABLE
    return UNRESOLVED if whole is Truth.OPEN else FAILS


def agreement(claim: Claim, tables: Tables) -> str:
    """Whether the second model's numbers give a claim the same verdict by the same rule; empty where there are none.

    The models agree if both verdicts are the same and resolved. They disagree if the verdicts differ and a condition is true of one
    model and false of the other, each with its whole interval. Otherwise an interval is too wide to say.
    """
    if not claim.second:
        return ""
    other = claim.of_second_model()
    verdicts = verdict(claim, tables), verdict(other, tables)
    if {NO_NUMBER, UNTESTABLE} & set(verdicts):
        return ""
    if verdicts[0] == verdicts[1] != UNRESOLVED:
        return AGREE
    exact = bool(claim.no_interval_because)
    pairs = (
        {one.truth(tables, exact), twin.truth(tables, exact)}
        for one, twin in zip(claim.conditions, other.conditions, strict=True)
    )
    return DISAGREE if verdicts[0] != verdicts[1] and {Truth.TRUE, Truth.FALSE} in pairs else UNDECIDED


def prompts_to_decide(claim: Claim, tables: Tables) -> int | None:
    """How many prompts would give a claim that is not resolved another verdict, if the estimates stay.

    Its open conditions are decided as their estimates say, the one that needs fewest prompts first. None if that decides nothing,
    or cannot be said of an interval that does not come from prompts.
    """
    if verdict(claim, tables) != UNRESOLVED:
        return None
    truths = {condition: condition.truth(tables, bool(claim.no_interval_because)) for condition in claim.conditions}
    needed = {c: prompts for c in claim.conditions if (prompts := c.prompts_to_decide(tables))}
    for condition in sorted(needed, key=needed.__getitem__):
        truths[condition] = condition.at_estimate(tables)
        if _by_rule(claim, truths) != UNRESOLVED:
            return needed[condition]
    return None


def size_ratio(value: Number | None, low: float, high: float) -> float | None:
    """How far off a published range is: 1 if our interval meets it, else our estimate over its nearer end; None without a
    number."""
    ends = bounds(value)
    if ends is None:
        return None
    if ends[1] < low:
        return value.value / low
    return value.value / high if ends[0] > high else 1.0


def judge(claims: Sequence[Claim], tables: Tables) -> pd.DataFrame:
    """One row per claim: ``id``, ``paper`` (its name), ``where``, ``says``, ``verdict``, ``agreement`` and ``claim`` itself."""
    rows = []
    for claim in claims:
        paper, where = claim.paper.split(", ", 1)
        rows.append((claim.id, paper, where, claim.says, verdict(claim, tables), agreement(claim, tables), claim))
    return pd.DataFrame(rows, columns=["id", "paper", "where", "says", "verdict", "agreement", "claim"])


def turned(claims: Sequence[Claim], runs: Sequence[Tables]) -> pd.DataFrame:
    """The rows of :func:`judge` for the claims to which a second run gives another verdict, which is ``verdict_second``."""
    first, second = (judge(claims, run) for run in runs)
    both = first.assign(verdict_second=second.verdict)
    return both[both.verdict.ne(both.verdict_second) & both.verdict_second.ne(NO_NUMBER)]


def headlines(judged: pd.DataFrame, tables: Tables) -> pd.DataFrame:
    """The numbers of the page "What reproduces", a row each: ``paper``, ``headline``, ``claim`` (its id), ``published``
    (smallest and largest, or None), ``key``, ``cost``, ``ours`` (a Number, or None), ``size`` (:func:`size_ratio`),
    ``direction``."""
    rows = []
    by_paper = judged.sort_values("paper", key=lambda papers: papers.map(list(PAPERS).index), kind="stable")
    for one in by_paper.itertuples():
        for headline in one.claim.headline:
            published = published_range(headline.published, printed_numbers()) if headline.published else None
            for key, cost in headline.ours.items():
                ours = number(key, tables)
                size = size_ratio(ours, *published) if published else None
                rows.append((one.paper, headline.label, one.id, published, key, cost, ours, size, one.verdict))
    columns = ["paper", "headline", "claim", "published", "key", "cost", "ours", "size", "direction"]
    return pd.DataFrame(rows, columns=columns)


def counts(judged: pd.DataFrame) -> dict[str, Number]:
    """How many claims have which verdict, as numbers of a chapter: ``{num}`claims/holds_in_part```; ``all``; ``changed``, how
    many have a rule that was changed after a result was known; and on how many two models agree, disagree or leave it open
    (``models_agree`` and so on)."""
    keys = {
        HOLDS: "holds",
        PARTLY: "holds_in_part",
        FAILS: "does_not_hold_here",
        UNRESOLVED: "not_resolved",
        CONSTRUCTED: "true_by_construction",
        UNTESTABLE: "not_testable_here",
    }
    found = {key: Number(int((judged.verdict == name).sum())) for name, key in keys.items()}
    changed = sum(bool(claim.changed) for claim in judged.claim)
    models = {AGREE: "models_agree", DISAGREE: "models_disagree", UNDECIDED: "models_undecided"}
    found |= {key: Number(int((judged.agreement == name).sum())) for name, key in models.items()}
    return {"all": Number(len(judged)), "changed": Number(changed), **found}
