"""The page of ``python -m specdec_lib diagnose``: a table, a figure and what explains the numbers."""

from __future__ import annotations

import html
import io
from typing import TYPE_CHECKING

from specdec_lib.experiments.diagnosis import COPIED_RUN, Diagnosis
from specdec_lib.experiments.other_engines import PROGRAMS
from specdec_lib.report import plots

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>Will speculative decoding help?</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 46rem; margin: 2rem auto; padding: 0 1rem; color: #222 }}
table {{ border-collapse: collapse; margin: 1rem 0 }}
th, td {{ padding: 0.3rem 0.8rem; border-bottom: 1px solid #ccc; text-align: left }}
svg {{ max-width: 100%; height: auto }}
</style>
<h1>Will speculative decoding help?</h1>
<p><strong>{advice}</strong></p>
<p>{answers:,d} answers of {tokens:,d} tokens, tokenizer {tokenizer}, costs of passes: {costs}. Intervals are 95 % over
answers. The time to look a draft up is left out unless the file of costs has it as the cost of a step.</p>
{figure}
<table>
<tr><th>Method</th><th>Tokens per pass</th><th>Speed-up</th><th>Mean width of a pass</th></tr>
{rows}
</table>
<h2>How to switch the methods on</h2>
<table>
{switches}
</table>
<h2>What explains it</h2>
{reasons}
{needs}
</html>
"""


def reasons(found: Diagnosis) -> list[str]:
    """Sentences on what the texts are like."""
    text = found.text
    return [
        f"Copied: {text.copied:.0%} of the answers' tokens lie in runs of {COPIED_RUN} tokens or more that the prompt also "
        "has. Methods that copy save passes there.",
        f"Overlap: BLEU-4 of an answer against its prompt is {text.overlap:.2f}, the geometric mean of the shares of its word "
        "1- to 4-grams that the prompt also has.",
        f"Entropy: an answer takes {text.bits_alone:.2f} bits per character by itself, and {text.bits_given:.2f} after its "
        "prompt. A small second number means that little of the answer is new.",
    ]


def figure(found: Diagnosis) -> Figure:
    """Draw the speed-ups with their intervals, and each answer's tokens per pass against its share of copied tokens."""
    names = [one.method for one in found.predictions]
    drawn, (left, right) = plots.new(8.4, 3.4, 2)
    for place, one in enumerate(found.predictions):
        left.bar(place, one.speedup.value, 0.7, color=plots.color(one.method))
        plots.whiskers(left, [place], [one.speedup])
    left.axhline(1, color="#444444", linestyle="--", linewidth=1)
    left.set_xticks(range(len(names)), names, rotation=20, ha="right")
    left.set(ylabel="speed-up over plain decoding")
    left.grid(axis="x", visible=False)
    copied = [row["copied"] for row in found.each]
    for name in names:
        rates = [row["tokens_per_pass"][name] for row in found.each]
        right.plot(
            copied, rates, marker=plots.marker(name), linestyle="", color=plots.color(name), label=name, alpha=0.6
        )
    right.set(xlabel="copied share of the answer", ylabel="tokens a pass", xlim=(-0.03, 1.03))
    right.legend()
    return drawn


def page(found: Diagnosis, tokenizer: str) -> str:
    """The page as HTML, its figure in it."""
    plots.use_style()
    image = io.StringIO()
    figure(found).savefig(image, format="svg", metadata={"Date": None})
    svg = image.getvalue()
    rows = [
        (one.method, f"{one.tokens_per_pass:.2f}", f"{one.speedup:.2f}", f"{one.width:.1f}")
        for one in found.predictions
    ]
    cells = ("".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in rows)
    heads = "".join(f"<th>{program}</th>" for program in ("Method", *PROGRAMS))
    switches = [f"<tr>{heads}</tr>"]
    for name, known in found.engine_options.items():
        words = (name, *(known.get(program, "not available") for program in PROGRAMS))
        switches.append(f"<tr>{''.join(f'<td>{html.escape(word)}</td>' for word in words)}</tr>")
    needs = [f"{name} is not predicted: it needs {needed}." for name, needed in found.needs.items()]
    return _PAGE.format(
        advice=html.escape(found.advice()),
        answers=len(found.each),
        tokens=found.tokens,
        tokenizer=html.escape(tokenizer),
        costs=html.escape(found.costs),
        figure=svg[svg.index("<svg") :],
        rows="\n".join(f"<tr>{row}</tr>" for row in cells),
        switches="\n".join(switches),
        reasons="\n".join(f"<p>{html.escape(line)}</p>" for line in reasons(found)),
        needs="\n".join(f"<p>{html.escape(line)}</p>" for line in needs),
    )
