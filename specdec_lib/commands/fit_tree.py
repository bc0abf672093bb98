"""``fit-tree``: the probabilities of one tree's nodes, fitted on a model's own answers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from specdec_lib.commands import options


def fit_tree(
    target: options.Target,
    out: Annotated[Path, options.OutputFile],
    draft: options.Draft = None,
    task: options.Task = None,
    source: options.Source = None,
    store: options.Store = None,
    heads: Annotated[
        Path | None,
        typer.Option(
            parser=options.existing_path,
            metavar="FOLDER",
            help="Heads from train-heads, for sources that draft with heads.",
        ),
    ] = None,
    prompts: options.Prompts = 6,
    max_new_tokens: options.NewTokens = 96,
    store_tokens: Annotated[int, options.whole_number("Of REST's datastore without --store.")] = 1_000_000,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
) -> None:
    """Fit the probabilities of one tree's nodes on a model's own greedy answers."""
    from specdec_lib import methods
    from specdec_lib.datastores import SuffixIndex
    from specdec_lib.decoding.contract import Capture
    from specdec_lib.drafters.head_drafter import HeadDrafter
    from specdec_lib.drafters.one_tree import fit
    from specdec_lib.experiments.data.prompts import TASKS
    from specdec_lib.experiments.data.tasks import choosing_prompts
    from specdec_lib.experiments.runs.recorded_runs import check_template, load_pair
    from specdec_lib.experiments.runs.recordings import record_once
    from specdec_lib.experiments.workbench import ModelPair
    from specdec_lib.heads.drafting import DraftHead
    from specdec_lib.models.loading import load_model

    tasks = list(task or TASKS)
    # Prompts first: a model can take minutes to load, a misspelt task is found at once.
    chosen = choosing_prompts(tasks, prompts)
    names = tuple(dict.fromkeys(source or methods.TREE_SOURCES))
    methods.check_sources(names)
    for name in names:
        drafter = methods.METHODS[name].drafter
        if drafter.replays == "never":
            raise ValueError(f"{name} cannot be fitted: its drafts depend on outputs that no recorded answer has")
        if heads is not None and issubclass(drafter, HeadDrafter):
            DraftHead.load(heads / f"{drafter.kind.kind}.safetensors")
    index = None if store is None else SuffixIndex.open(store)
    chat = any(prompt.chat for prompt in chosen)
    if draft is None:
        if chat:
            check_template(target)
        (model, tokenizer), small = load_model(target, device, dtype), None
    else:
        model, small, tokenizer = load_pair(target, draft, device, dtype, chat=chat)
    pair = ModelPair(model, small, tokenizer, store_tokens=store_tokens, heads_folder=heads)
    if index is not None:
        index.store.check_tokenizer(tokenizer)
        pair.sparse = index
    sources = methods.tree_sources(pair, names)
    if source and len(sources) < len(names):
        _, missing = methods.build(pair, [name for name in names if name not in sources])
        raise ValueError("; ".join(f"the source {name} needs {what}" for name, what in missing.items()))
    capture = Capture()
    for one in sources.values():
        capture |= one.capture
    traces = [one.trace for one in record_once(model, tokenizer, chosen, None, max_new_tokens, capture)]
    fitted_on = f"{len(traces)} greedy answers of {target} to prompts of {', '.join(tasks)}"
    weights = fit(traces, sources, fitted_on)
    out.parent.mkdir(parents=True, exist_ok=True)
    weights.save(out)
    typer.echo(f"sources: {', '.join(weights.sources)}\nfitted on {fitted_on}; written to {out}")
