"""The table of all claims: what each says, the numbers that decide, the published sizes, the verdict and why."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

import pandas as pd

from specdec_lib.experiments.published_numbers import published_range, published_rows
from specdec_lib.report.claims import rules
from specdec_lib.report.claims.rules import Claim, Tables, Truth
from specdec_lib.report.numbers import NO_INTERVAL

ALONE = "A number that decides rests on one prompt, so it has no interval."


def decided(claim: Claim, tables: Tables) -> list[tuple[str, str, Truth]]:
    """Each condition with its numbers and what came of it."""
    return [
        (c.text, ", ".join(_shown(key, tables) for key in c.keys), c.truth(tables, bool(claim.exact)))
        for c in claim.conditions
    ]


def sizes(claim: Claim, tables: Tables) -> list[str]:
    """Each published size compared with ours, or the published numbers that the claim lists."""
    rows, lines = published_rows(), []
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
        off = rules.off(rules.number(key, tables), low, high)
        met = {None: "", 1: "; in our interval"}.get(off, f"; ours is {off or 0:.2f} times that")
        text = f"{low:.4g}" if low == high else f"{low:.4g} to {high:.4g}"
        lines.append(f"{key}: published {text}, ours {_shown(key, tables)}{met}")
    return lines


def reason(claim: Claim, verdict: str, tables: Tables) -> str:
    """Why a claim does not wholly hold, why a size is not ours, or why it cannot be tested; empty for what needs none."""
    compared = [rules.off(rules.number(k, tables), *published_range(e, published_rows())) for k, e in _sized(claim)]
    if verdict == rules.UNTESTABLE:
        found = [rules.number(key, tables) for condition in claim.conditions for key in condition.keys]
        alone = any(one and one.words == NO_INTERVAL for one in found)
        return claim.untestable or (ALONE if alone else "The text or the data that decide are not at hand in this run.")
    met = verdict in (rules.HOLDS, rules.CONSTRUCTED) and set(compared) <= {1, None}
    return "" if met or verdict == rules.NO_NUMBER else claim.why


def _sized(claim: Claim) -> Iterable[tuple[str, str]]:
    return ((key, expression) for key, expression in claim.published.items() if "/" in key)


def _shown(key: str, tables: Tables) -> str:
    found = rules.number(key, tables)
    return rules.NO_NUMBER if found is None else format(found, ".4g" if isinstance(found.value, float) else "")


def to_html(judged: pd.DataFrame, tables: Tables) -> str:
    """The table as HTML: each row has the place ``claim-<id>``, and ``claims.js`` filters it."""

    def lines(texts: Iterable[str]) -> str:
        return "".join(f"<li>{escape(text).replace('_', '_<wbr>')}</li>" for text in texts)  # a long key breaks there

    rows = []
    for row in judged.itertuples():
        claim = row.claim
        said = {"Rule": claim.rule, "Measured": claim.measured, "Why": reason(claim, row.verdict, tables)}
        said |= {"Could not fail": claim.construction, "Rule changed after a result": claim.changed}
        said |= {"Thresholds": claim.threshold, "No interval": claim.exact, "Note": claim.note}
        conditions = (
            f"{text}: {found}{'' if truth is Truth.TRUE else f'; {truth.value}'}"
            for text, found, truth in decided(claim, tables)
        )
        cells = [
            f"<b>{row.paper}</b>, {escape(row.where)}<br>{escape(row.says)}<br><code>{row.id}</code>",
            f"<ul>{lines(conditions)}</ul>",
            f"<ul>{lines(sizes(claim, tables))}</ul>",
            f"<b>{row.verdict}</b>" + "".join(f"<p>{name}: {escape(text)}</p>" for name, text in said.items() if text),
        ]
        rows.append(f'<tr id="claim-{row.id}">' + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    head = "".join(f"<th>{name}</th>" for name in ("Claim", "Conditions", "Published", "Verdict"))
    return f'<table class="claims"><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table>'
