"""The ledger of claims: what the papers say, what was measured here, and the rule that decides.

A row of ``data/claims.yml`` names a claim, the published numbers it rests on (rows of ``data/published/<paper>.csv``),
the notebook and the names it recorded, and conditions over these. If all conditions of ``test`` are true the claim holds.
If not, and the case that ``partly`` describes is true, it holds in part; a row without ``partly`` has no such case. Otherwise
it does not hold here. Both say what ``rule`` says in words.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from specdec_lib import paths
from specdec_lib.experiments.published_numbers import ClaimError

PAPERS = ("rest", "dresd", "pld_plus", "specdec_pp")
HOLDS, PARTLY, FAILS, UNTESTABLE = "holds", "holds in part", "does not hold here", "not testable here"
_OPERATORS = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le, "==": operator.eq}
_FIELDS = {
    "id",
    "paper",
    "where",
    "claim",
    "published",
    "notebook",
    "ours",
    "rule",
    "test",
    "partly",
    "why",
    "untestable",
    "behaviour",
    "shape",
    "note",
}

Operand = float | str | tuple[float, str]


@dataclass(frozen=True)
class Condition:
    """``left operator right``; an operand is a number, a recorded name, or a recorded name times a factor."""

    left: Operand
    operator: str
    right: Operand

    def __str__(self) -> str:
        return f"{_shown(self.left)} {self.operator} {_shown(self.right)}"

    @property
    def names(self) -> tuple[str, ...]:
        """Recorded names it needs."""
        named = (o[1] if isinstance(o, tuple) else o for o in (self.left, self.right))
        return tuple(name for name in named if isinstance(name, str))

    def holds(self, values: Mapping[str, Any]) -> bool | None:
        """Whether it is true; None where a recorded value is a text in place of a number."""
        left, right = _number(self.left, values), _number(self.right, values)
        return None if left is None or right is None else bool(_OPERATORS[self.operator](left, right))


@dataclass(frozen=True)
class Case:
    """The partial case of a rule: ``all`` or ``any`` of its conditions are true."""

    how: str
    conditions: tuple[Condition, ...]

    def holds(self, values: Mapping[str, Any]) -> bool | None:
        """Whether it is true; None where that depends on a value that has no number."""
        truths = [condition.holds(values) for condition in self.conditions]
        # One condition decides: a false one of all, a true one of any.
        deciding = self.how == "any"
        return deciding if deciding in truths else None if None in truths else not deciding


@dataclass(frozen=True)
class Claim:
    """A row of the ledger; the fields are those of ``data/claims.yml``.

    ``behaviour`` and ``shape`` are given where the text or the times that decide are not those of the models
    that the notebook runs. ``why`` is the reason where the claim does not wholly hold; ``note`` is what a reader
    should know whatever the verdict."""

    id: str
    paper: str
    where: str
    claim: str
    rule: str
    published: tuple[str, ...] = ()
    notebook: str | None = None
    ours: tuple[str, ...] = ()
    test: tuple[Condition, ...] = ()
    partly: Case | None = None
    why: str = ""
    untestable: str = ""
    behaviour: str = ""
    shape: str = ""
    note: str = ""

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """Those of ``test`` and, after them, those of ``partly`` alone."""
        return tuple(dict.fromkeys((*self.test, *(self.partly.conditions if self.partly else ()))))

    @property
    def names(self) -> tuple[str, ...]:
        """Recorded names it needs, each once."""
        return tuple(dict.fromkeys((*self.ours, *(name for c in self.conditions for name in c.names))))


def _shown(operand: Operand) -> str:
    if isinstance(operand, tuple):
        return f"{operand[0]:g} × {operand[1]}"
    return operand if isinstance(operand, str) else f"{operand:g}"


def _number(operand: Operand, values: Mapping[str, Any]) -> float | None:
    if isinstance(operand, float):
        return operand
    factor, name = operand if isinstance(operand, tuple) else (1.0, operand)
    if name not in values:
        raise ClaimError(f"{name!r} was not recorded; there are {', '.join(sorted(values)) or 'no records'}")
    value = values[name]
    return None if isinstance(value, (str, list, dict)) else factor * value


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
    rule = (raw.get("rule") or "").strip()
    return Claim(
        raw["id"],
        raw["paper"],
        raw["where"],
        raw["claim"].strip(),
        rule,
        tuple(raw.get("published") or ()),
        notebook,
        tuple(raw.get("ours") or ()),
        test,
        _case(raw.get("partly"), test, rule, row),
        (raw.get("why") or "").strip(),
        untestable.strip(),
        raw.get("behaviour") or "",
        raw.get("shape") or "",
        (raw.get("note") or "").strip(),
    )


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
    """What came of a claim: the recorded values shown, and for each condition of ``test`` and ``partly`` whether it was
    true (None where a value it needs has no number)."""

    claim: Claim
    verdict: str
    ours: dict[str, Any]
    conditions: tuple[tuple[Condition, bool | None], ...]


def judge(claim: Claim, values: Mapping[str, Any]) -> Verdict:
    """Decide a claim by its rule. Where values without a number leave the rule undecided, it is not testable here.

    Parameters
    ----------
    claim : Claim
    values : mapping
        What its notebook recorded.

    Raises
    ------
    ClaimError
        A name it needs was not recorded.
    """
    if claim.untestable:
        return Verdict(claim, UNTESTABLE, {}, ())
    missing = [name for name in claim.names if name not in values]
    if missing:
        raise ClaimError(f"claim {claim.id!r} needs {', '.join(missing)}, which {claim.notebook} did not record")
    whole = Case("all", claim.test).holds(values)
    partly = claim.partly.holds(values) if claim.partly else False
    if whole:
        verdict = HOLDS
    elif partly:
        verdict = PARTLY
    else:
        verdict = UNTESTABLE if whole is None or partly is None else FAILS
    found = tuple((condition, condition.holds(values)) for condition in claim.conditions)
    return Verdict(claim, verdict, {name: values[name] for name in claim.ours}, found)


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
