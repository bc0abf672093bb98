"""``calibrate``: what passes of a model cost by their width, and drafting, for one tree and for ``diagnose``."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Annotated

import typer

from specdec_lib.commands import options

#: Timed whatever one tree drafts from: ``diagnose`` predicts these.
ALONE = ("PLD", "REST", "SuffixDecoding")


def calibrate(
    target: options.Target,
    out: Annotated[Path, options.OutputFile],
    draft: options.Draft = None,
    source: options.Source = None,
    context: Annotated[int, options.whole_number("Tokens before the pass.")] = 512,
    repeats: Annotated[int, options.whole_number("Timed passes of each width.")] = 20,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
) -> None:
    """Measure the cost of a model's passes by their width, and the cost of drafting."""
    from specdec_lib import methods
    from specdec_lib.decoding.runtime import WIDTHS
    from specdec_lib.decoding.served_models import vocabulary_size
    from specdec_lib.drafters.pass_costs import PassCosts
    from specdec_lib.experiments.costs.draft_costs import drafting_costs, long_text
    from specdec_lib.experiments.costs.measured_passes import pass_times, slots_of
    from specdec_lib.experiments.runs.recorded_runs import load_pair
    from specdec_lib.experiments.workbench import ModelPair
    from specdec_lib.models.loading import load_model

    names = tuple(dict.fromkeys(source or methods.TREE_SOURCES))
    methods.check_sources(names)
    longest = options.hidden_size_and_context(target)[1]
    options.check_length("--context, a pass after it included,", slots_of(context, WIDTHS), longest)
    if draft:
        model, small, tokenizer = load_pair(target, draft, device, dtype, chat=False)
    else:
        (model, tokenizer), small = load_model(target, device, dtype), None
    pair = ModelPair.untuned(model, small, tokenizer)
    alone, _ = methods.build(pair, ALONE)
    sources = methods.tree_sources(pair, names)
    if source and len(sources) < len(names):
        _, missing = methods.build(pair, [name for name in names if name not in sources])
        raise ValueError("; ".join(f"the source {name} needs {what}" for name, what in missing.items()))
    spent = {width: median(ms) for width, ms in pass_times(model, context, "eager", WIDTHS, repeats).items()}
    one = spent[1]
    widths = {width: ms / one for width, ms in spent.items()}
    drafted = 0.0 if small is None else median(pass_times(small, context, "eager", (1,), repeats)[1]) / one
    prompt = long_text(tokenizer, vocabulary_size(model), context)[:context]
    step, drafting = drafting_costs(model, alone, sources, prompt, 6 * repeats + 2, spent)
    name = f"{target} on {model.device.type}, {context} tokens before it"
    out.parent.mkdir(parents=True, exist_ok=True)
    PassCosts(widths, step, drafted, name, drafting).save(out)
    typer.echo(f"a pass over one token takes {one:.2f} ms; by width, in units of it:")
    typer.echo("  ".join(f"{width}: {cost:.2f}" for width, cost in widths.items()))
    if small is not None:
        typer.echo(f"a drafted token: {drafted:.2f}")
    drafts = ", ".join(f"{name}: {cost:.3f}" for name, cost in drafting.items())
    typer.echo(f"a step's own work: {step:.3f}; a draft of {drafts}\nwritten to {out}")
