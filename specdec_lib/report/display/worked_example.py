"""Rejection sampling worked through, one coin at a time: a figure of HTML and style sheets, without a script.

``make examples ARGS=worked-example`` decodes it and keeps it. The reader chooses a step; on paper all steps stand below each other.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from specdec_lib import paths
from specdec_lib.report.numbers import Number

#: What ``make examples`` keeps: ``text`` before the first pass and ``passes``, each with the ``drafted`` tokens, one entry of
#: ``looks`` for each token that a coin was thrown for, and the ``own`` token that the pass adds.
FILE = paths.DATA / "results" / "worked-example.json"

STYLE = """
.specdec-worked{--q:#d55e00;--p:#0072b2;--edge:rgba(128,128,128,.5);border:1px solid var(--edge);border-radius:6px;
 padding:.6em .8em;margin:.5em 0 1em;line-height:1.5}
.specdec-worked *{box-sizing:border-box}
.specdec-worked p{margin:.4em 0}
.specdec-worked fieldset{border:0;margin:0 0 .4em;padding:0;display:flex;flex-wrap:wrap;gap:.3em}
.specdec-worked legend{float:left;font-size:1em;font-weight:600;width:100%;margin:0 0 .2em;padding:0}
.specdec-worked label{margin:0;cursor:pointer}
.specdec-worked input{position:absolute;opacity:0}
.specdec-worked label span{display:block;min-width:2.3em;padding:.25em;text-align:center;border:1px solid var(--edge);
 border-radius:4px}
.specdec-worked input:checked+span{border:2px solid currentColor;font-weight:700}
.specdec-worked input:focus-visible+span{outline:2px solid var(--p);outline-offset:2px}
.specdec-worked pre{white-space:pre-wrap;overflow-wrap:anywhere;margin:.3em 0;padding:.4em .5em;background:none;border:1px solid
 var(--edge);border-radius:4px;color:inherit;font-size:.86em}
.specdec-worked code{color:inherit;background:none;border:1px solid var(--edge);border-radius:4px;padding:0 .25em;white-space:pre}
.specdec-worked code.kept{border:2px solid var(--q);background:color-mix(in srgb,var(--q) 22%,transparent)}
.specdec-worked code.open{border-style:dashed}
.specdec-worked code.lost{border-style:dotted;text-decoration:line-through}
.specdec-worked code.own{border:3px double currentColor;font-weight:700}
.specdec-worked .bars{display:grid;grid-template-columns:max-content minmax(0,1fr) max-content;gap:.15em .6em;align-items:center;
 margin:.4em 0}
.specdec-worked .bars>span:nth-child(3n){font-variant-numeric:tabular-nums;font-size:.86em}
.specdec-worked i{display:block;height:.75em;border-radius:2px;min-width:1px;background:var(--p)}
.specdec-worked i.q{background:repeating-linear-gradient(45deg,var(--q) 0 4px,color-mix(in srgb,var(--q) 45%,transparent) 4px 7px)}
.specdec-worked i.rest{background:currentColor;opacity:.65}
.specdec-worked .coin{position:relative;height:1.5em;border:1px solid var(--edge);border-radius:4px;margin:.5em 0}
.specdec-worked .coin i{height:100%;background:color-mix(in srgb,var(--p) 35%,transparent);border-right:2px solid var(--p)}
.specdec-worked .coin b{position:absolute;top:-.35em;bottom:-.35em;width:3px;background:currentColor}
.specdec-worked .time{display:grid;grid-template-columns:6.6em minmax(0,1fr) 2.6em;gap:.15em .5em;align-items:center;font-size:.9em}
.specdec-worked .time>span:nth-child(3n){text-align:right;font-variant-numeric:tabular-nums}
.specdec-worked .time div{display:flex;height:1em}
.specdec-worked .time div i{flex:none;height:100%;border-right:1px solid var(--pst-color-background,Canvas)}
.specdec-worked .time i.plain{background:#8a8a8a}
.specdec-worked small{font-size:.86em;opacity:.85}
"""


def load() -> dict[str, Any]:
    """The kept example; FileNotFoundError says how it is made."""
    if not FILE.is_file():
        raise FileNotFoundError(f"{FILE} is not there; make it with: make examples ARGS=worked-example")
    return json.loads(FILE.read_text(encoding="utf-8"))


def figure(example: Mapping[str, Any], wide: Number, draft: Number) -> str:
    """The figure; ``wide`` is the time of the target's pass over a draft and ``draft`` that of a pass of the draft model, over that
    of the target's pass over one token."""
    steps = list(_steps(example, wide.value, draft.value))
    radios = "".join(
        f'<label><input type="radio" name="step" value="{number}" aria-label="step {number} of {len(steps)}"'
        f"{' checked' if number == 1 else ''}><span>{number}</span></label>"
        for number in range(1, len(steps) + 1)
    )
    # Without :has() in the browser, and on paper, all steps are shown.
    hidden = "".join(
        f".specdec-worked:has(input[value='{number}']:checked)>section:not(.s{number}){{display:none}}"
        for number in range(1, len(steps) + 1)
    )
    sections = "".join(
        f'<section class="s{number}"><p><b>Step {number}. {title}</b></p>{body}</section>'
        for number, (title, body) in enumerate(steps, start=1)
    )
    return (
        f"<style>{STYLE}@media screen{{{hidden}}}@media print{{.specdec-worked fieldset{{display:none}}}}</style>"
        '<form class="specdec-worked tex2jax_ignore mathjax_ignore notranslate">'
        f"<fieldset><legend>Choose a step, then go on with the arrow keys</legend>{radios}</fieldset>{sections}</form>"
    )


def _steps(example: Mapping[str, Any], wide: float, draft: float) -> Iterable[tuple[str, str]]:
    """Title and HTML of every step."""
    before, spent, emitted = escape(example["text"]), [], 0
    for number, one in enumerate(example["passes"], start=1):
        drafted, looks = one["drafted"], one["looks"]
        spent = [*spent, *[("q", draft)] * len(drafted)]
        chips = " ".join(chip(token, "open") for token in drafted)
        yield (
            f"The draft model writes {len(drafted)} tokens",
            f"<pre>{before}{chips}</pre><p>Each is drawn from the draft model's own distribution <em>q</em>, and each takes "
            "a pass of the draft model. Nothing is decided yet.</p>" + _time(spent, emitted),
        )
        spent = [*spent, ("p", wide)]
        kept: list[str] = []
        for place, look in enumerate(looks):
            accepted = place < one["accepted"]
            kind = ["kept"] * place + ["kept" if accepted else "lost"] + ["open"] * (len(drafted) - place - 1)
            chips = " ".join(chip(token, each) for token, each in zip(drafted, kind, strict=True))
            opening = f"Pass {number} of the target looks at the text and all {len(drafted)} drafted tokens at once. "
            said = ("" if place else opening) + _said(look, drafted[place], accepted)
            yield (
                f"{name_of(drafted[place])} is {'accepted' if accepted else 'rejected'}",
                f"<pre>{before}{chips}</pre><p>{said}</p>{_coin(look)}{_bars(look['likely'])}"
                + _time(spent, emitted + place + accepted),
            )
            kept += [drafted[place]] if accepted else []
        rejected = len(looks) > one["accepted"]
        chips = " ".join([*(chip(token, "kept") for token in kept), chip(one["own"], "own")])
        emitted += len(kept) + 1
        yield (
            f"The target adds {name_of(one['own'])}" + ("" if rejected else ", the bonus token"),
            f"<pre>{before}{chips}</pre><p>{_added(one, rejected)}</p>{_bars(one['likely'])}" + _time(spent, emitted),
        )
        before += " ".join([*(chip(token, "kept") for token in kept), chip(one["own"], "own")]) + " "


def _added(one: Mapping[str, Any], rejected: bool) -> str:
    if rejected:
        left = len(one["drafted"]) - len(one["looks"])
        others = f" The {left} drafted tokens after it are dropped: they continue a text that is not there."
        return (
            "The replacement is drawn from the <b>residual</b>: the difference p − q where the target gives a token more than the "
            "draft model did, and nothing elsewhere; then scaled to sum to 1." + (others if left else "")
        )
    return (
        f"All {len(one['drafted'])} were accepted. The same pass has also computed what follows them, so one more token is drawn "
        "from the target's own distribution, for free."
    )


def _said(look: Mapping[str, Any], token: str, accepted: bool) -> str:
    p, q, coin = look["p"], look["q"], look["coin"]
    ratio = f"p / q = {_short(p)} / {_short(q)}"
    if p >= q:
        return (
            f"The target finds {name_of(token)} at least as likely as the draft model did: {ratio} is 1 or more. So it is kept "
            "whatever the coin says."
        )
    drawn = "below, so the token is kept" if accepted else "above, so the token is rejected"
    return f"The token is kept with probability {ratio} = {p / q:.2f}. The coin, a uniform random number, is {coin:.2f}: {drawn}."


def _coin(look: Mapping[str, Any]) -> str:
    chance = min(1.0, look["p"] / look["q"])
    said = f"from 0 to 1: kept up to {chance:.2f}, the coin is {look['coin']:.2f}"
    return (
        f'<div class="coin" role="img" aria-label="{said}"><i style="width:{100 * chance:.1f}%"></i>'
        f'<b style="left:calc({100 * look["coin"]:.1f}% - 1px)"></b></div>'
        "<small>0 to 1: blue is “keep”, the line is the coin.</small>"
    )


def _bars(likely: Sequence[Mapping[str, Any]]) -> str:
    """A bar for each probability of each token: the draft model's striped, the target's filled, a residual grey."""
    rows = []
    for one in likely:
        bars = "".join(
            f'<i class="{kind}" style="width:{100 * one[kind]:.1f}%"></i>' for kind in ("q", "p", "rest") if kind in one
        )
        said = "<br>".join(
            f"{name} {one[kind]:.2f}" if one[kind] == 0 or one[kind] >= 0.005 else f"{name} &lt; 0.01"
            for kind, name in (("q", "q"), ("p", "p"), ("rest", "residual"))
            if kind in one
        )
        rows.append(
            f"<span>{chip(one['token'], 'drafted' if one.get('drafted') else '')}</span><span>{bars}</span><span>{said}</span>"
        )
    return f'<div class="bars">{"".join(rows)}</div>'


def _time(spent: Sequence[tuple[str, float]], emitted: int) -> str:
    """The passes so far as cells as long as they take, above those of plain decoding for the same tokens."""
    took = sum(each for _, each in spent)
    whole = max(took, emitted) * 1.02

    def cells(kinds: Iterable[tuple[str, float]]) -> str:
        return "".join(f'<i class="{kind}" style="width:{100 * each / whole:.2f}%"></i>' for kind, each in kinds)

    return (
        f'<div class="time"><span>speculative</span><div>{cells(spent)}</div><span>{took:.1f}</span>'
        f"<span>plain</span><div>{cells([('plain', 1.0)] * emitted)}</div><span>{emitted:.1f}</span></div>"
        f"<small>Time so far for {emitted} token{'' if emitted == 1 else 's'}, in one-token passes of the target. Striped: passes "
        "of the draft model; blue: the target's.</small>"
    )


def _shown(token: str) -> str:
    """A token as a label: line breaks as arrows, and blanks as they are unless there is nothing else."""
    return escape("␣" * len(token) if token.strip(" ") == "" else token.replace("\n", "↵"))


def chip(token: str, kind: str) -> str:
    return f'<code class="{kind}">{_shown(token)}</code>'


def name_of(token: str) -> str:
    return f"“{_shown(token).strip()}”"


def _short(probability: float) -> str:
    return f"{probability:.2g}"
