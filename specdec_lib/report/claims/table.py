"""All claims, each folded to a line: what it says, its verdict and why, the numbers that decide, and the published sizes."""

from __future__ import annotations

from collections.abc import Container, Iterable
from html import escape

import pandas as pd

from specdec_lib.experiments.data.published_numbers import printed_numbers, published_range
from specdec_lib.report.claims import rules
from specdec_lib.report.claims.rules import Claim, Condition, Tables, Truth
from specdec_lib.report.numbers import NO_INTERVAL

ALONE = "A number that decides rests on one prompt, so it has no interval."


def condition_truths(claim: Claim, tables: Tables) -> list[tuple[str, str, Truth]]:
    """Each condition with its numbers and what came of it."""
    return [
        (c.text, ", ".join(_shown(key, tables) for key in c.keys), c.truth(tables, bool(claim.no_interval_because)))
        for c in claim.conditions
    ]


def sizes(claim: Claim, tables: Tables) -> list[str]:
    """Each published size compared with ours, or the published numbers that the claim lists."""
    rows, lines = printed_numbers(), []
    for key, expression in claim.published.items():
        if key in rows:
            row = rows[key]
            lines.append(
                f"{row['value']} {row['unit']}".strip()
                + ": "
                + ", ".join(filter(None, (row["method"], row["quantity"], row["setting"])))
            )
            continue
        low, high = published_range(expression, rows)
        off = rules.size_ratio(rules.number(key, tables), low, high)
        met = {None: "", 1: "; in our interval"}.get(off, f"; ours is {off or 0:.2f} times that")
        text = f"{low:.4g}" if low == high else f"{low:.4g} to {high:.4g}"
        lines.append(f"{key}: published {text}, ours {_shown(key, tables)}{met}")
    return lines


def reason(claim: Claim, verdict: str, tables: Tables) -> str:
    """Why a claim does not wholly hold, why a size is not ours, or why it cannot be tested; empty for what needs none."""
    if verdict == rules.UNTESTABLE:
        found = [rules.number(key, tables) for condition in claim.conditions for key in condition.keys]
        alone = any(one and one.words == NO_INTERVAL for one in found)
        return claim.untestable or (ALONE if alone else "The text or the data that decide are not at hand in this run.")
    met = verdict in (rules.HOLDS, rules.CONSTRUCTED) and set(_compared(claim, tables)) <= {1}
    return "" if met or verdict == rules.NO_NUMBER else claim.why


def _compared(claim: Claim, tables: Tables) -> list[float]:
    """How many times as large as published our numbers are; 1 where the published number lies in our interval."""
    sized = ((key, expression) for key, expression in claim.published.items() if "/" in key)
    found = (
        rules.size_ratio(rules.number(key, tables), *published_range(range_, printed_numbers()))
        for key, range_ in sized
    )
    return sorted(off for off in found if off is not None)


def _size(claim: Claim, tables: Tables) -> str:
    """The size, at the end of a claim's line, whose verdict is about the direction alone."""
    ends = [f"{off:.2f}" for off in _compared(claim, tables)]
    if not ends:
        return ""
    factor = " to ".join(dict.fromkeys((ends[0], ends[-1])))
    return f" <i>{'as large as published' if factor == '1.00' else f'ours is {factor} times as large'}</i>"


def _shown(key: str, tables: Tables) -> str:
    found = rules.number(key, tables)
    return rules.NO_NUMBER if found is None else format(found, ".4g" if isinstance(found.value, float) else "")


def rounded(prompts: int) -> str:
    """A number of prompts that would decide; an estimate is good for two digits, so from a thousand on it has no more."""
    return f"{prompts:,}" if prompts < 1000 else f"{float(f'{prompts:.2g}'):,.0f}"


def _to_decide(condition: Condition, tables: Tables) -> str:
    needed = condition.prompts_to_decide(tables)
    now = max((found.prompts or 0 for key in condition.keys if (found := rules.number(key, tables))), default=0)
    if needed is None:
        return ""
    if needed <= now:
        return f"; slightly more than {now:,} prompts would decide"
    return f"; {rounded(needed)} prompts instead of {now:,} would decide"


def _decisive(claim: Claim, tables: Tables) -> Iterable[str]:
    """Each condition with its numbers, what came of it unless it is true, and what would decide it if it is open."""
    return (
        f"{text}: {found}{'' if truth is Truth.TRUE else f'; {truth.value}'}{_to_decide(condition, tables)}"
        for condition, (text, found, truth) in zip(claim.conditions, condition_truths(claim, tables), strict=True)
    )


#: How sure a verdict is, for the filter: what speaks against building on it, the weightiest first.
SURE = {
    "turned": "another verdict in a second run",
    "changed": "rule changed after a result",
    "open": "not decided, or no evidence",
    "kept": "rule written before the result",
}


def how_sure(claim: Claim, verdict: str, turned: Container[str]) -> str:
    """A key of :data:`SURE`; ``turned`` are the ids of claims that a second run gave another verdict."""
    if claim.id in turned:
        return "turned"
    if verdict in (rules.UNRESOLVED, rules.UNTESTABLE, rules.CONSTRUCTED, rules.NO_NUMBER):
        return "open"
    return "changed" if claim.changed else "kept"


def to_html(judged: pd.DataFrame, tables: Tables, turned: Container[str] = ()) -> str:
    """The claims as HTML, each folded to a line with the place ``claim-<id>``; ``claims.js`` filters them."""

    def lines(texts: Iterable[str]) -> str:
        return "".join(f"<li>{escape(text).replace('_', '_<wbr>')}</li>" for text in texts)  # a long key breaks there

    rows = []
    for row in judged.itertuples():
        claim = row.claim
        sure = how_sure(claim, row.verdict, turned)
        said = {
            "What was compared": claim.rule,
            "Measured on": claim.measured,
            "Why": reason(claim, row.verdict, tables),
        }
        needed = rules.prompts_to_decide(claim, tables)
        said["To decide"] = (
            needed and f"About {rounded(needed)} prompts would decide this claim, if the estimate stays."
        )
        said |= {"Could not fail": claim.construction, "Rule changed after a result": claim.changed}
        other = claim.of_second_model()
        said["Second model"] = (
            row.agreement and f"By the same rule the verdict is: {rules.verdict(other, tables)}; {row.agreement}."
        )
        said |= {
            "Thresholds": claim.threshold,
            "No interval": claim.no_interval_because,
            "Note": claim.note,
            "How sure": SURE[sure],
        }
        listed = {
            "Numbers that decide": lines(_decisive(claim, tables)),
            "Numbers of the second model": lines(_decisive(other, tables) if row.agreement else ()),
            "Published": lines(sizes(claim, tables)),
        }
        rows.append(
            f'<details id="claim-{row.id}" data-verdict="{row.verdict}" data-paper="{row.paper}" data-sure="{SURE[sure]}">'
            f"<summary><b>{row.verdict}</b> <span>{row.paper}: {escape(row.says)}</span>{_size(claim, tables)}</summary>"
            f"<p>{escape(row.where)}. <code>{row.id}</code></p>"
            + "".join(f"<p><b>{name}.</b> {escape(text)}</p>" for name, text in said.items() if text)
            + "".join(f"<p><b>{name}.</b></p><ul>{text}</ul>" for name, text in listed.items() if text)
            + "</details>"
        )
    return f'<div class="claims">{"".join(rows)}</div>'
