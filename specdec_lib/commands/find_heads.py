"""``find-heads``: the induction heads of a model, for PLD+ (a)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specdec_lib.commands import options

if TYPE_CHECKING:
    from specdec_lib.heads.induction import InductionHeads


def _describe(heads: InductionHeads) -> str:
    """The ten best heads, one per line, below how many were credited."""
    ranked = heads.ranked()
    lines = [
        f"{len(ranked)} of {heads.peaks.size} heads peak at the origin of at least one of {heads.copied:,} copied "
        "tokens",
        "block  head  peaks at the origin  attention on it",
    ]
    lines += [f"{b:5}  {h:4}  {heads.peaks[b, h]:19.1%}  {heads.attention[b, h]:15.3f}" for b, h in ranked[:10]]
    return "\n".join(lines)


def find_heads(
    target: options.Target,
    out: Annotated[Path, options.OutputFile],
    task: options.Task = None,
    prompts: options.Prompts = 8,
    max_new_tokens: options.NewTokens = 96,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    force: Annotated[bool, typer.Option("--force", help="Identify the heads again even if the file exists.")] = False,
) -> None:
    """Identify the induction heads of a model, for PLD+ (a); a file that exists is read and printed."""
    from specdec_lib.experiments.data.prompt import render
    from specdec_lib.experiments.data.prompts import COPYING
    from specdec_lib.experiments.data.tasks import choosing_prompts
    from specdec_lib.experiments.runs.recorded_runs import check_template
    from specdec_lib.heads.induction import InductionHeads, identify
    from specdec_lib.models.loading import load_model

    reads = out.exists() and not force
    # Prompts first: a model can take minutes to load, a misspelt task is found at once.
    chosen = [] if reads else choosing_prompts(task or COPYING, prompts)
    if any(prompt.chat for prompt in chosen):
        check_template(target)
    model, tokenizer = load_model(target, device, dtype)
    if reads:
        heads = InductionHeads.load(out, model)
        typer.echo(f"{out} holds the heads of this model; --force identifies them again")
    else:
        heads = identify(model, [render(prompt, tokenizer) for prompt in chosen], max_new_tokens)
        out.parent.mkdir(parents=True, exist_ok=True)
        heads.save(out)
        typer.echo(f"written to {out}")
    typer.echo(_describe(heads))
