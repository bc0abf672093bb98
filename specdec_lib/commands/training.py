"""``train-acceptance-head`` and ``train-heads``: what is learned from a model's own answers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from specdec_lib.commands import options

Seed = Annotated[int, typer.Option(help="Seed of the initial weights and the order of examples.")]
Data = Annotated[Path, options.folder("Recorded answers; a run goes on here.")]


def train_acceptance_head(
    target: options.Target = "smollm2",
    draft: Annotated[str, typer.Option(help="The draft model; the head is for it.")] = "smollm2-draft",
    out: Annotated[Path, options.OutputFile] = Path("_build/head/acceptance.safetensors"),
    data: Data = Path("_build/head"),
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    task: options.Task = None,
    prompts: options.Prompts = 60,
    max_new_tokens: options.NewTokens = 128,
    labels: Annotated[
        str, typer.Option(help="decoding: under the decoding distributions; raw: at temperature 1, as released.")
    ] = "decoding",
    mixing: Annotated[
        str, typer.Option(help="r, the share of the target's tokens; none: each token after an unmixed prefix.")
    ] = "0.15",
    sees_confidence: Annotated[
        bool,
        typer.Option(
            "--sees-confidence", help="Let the head also read the draft model's probability, unlike the paper's."
        ),
    ] = False,
    epochs: Annotated[int, options.whole_number("Passes over the answers.")] = 10,
    rate: Annotated[float, typer.Option(help="Peak learning rate.")] = 2e-3,
    seed: Seed = 0,
    seeds: Annotated[
        int, options.whole_number("Heads to train, from --seed on; the second is written to acceptance-1.safetensors.")
    ] = 1,
) -> None:
    """Record data for an acceptance head of SpecDec++ and train it. The same command continues after the last whole shard."""
    from specdec_lib.experiments.data.prompts import TASKS
    from specdec_lib.experiments.head_training import PromptSettings, train_acceptance_heads
    from specdec_lib.experiments.runs.recorded_runs import load_pair
    from specdec_lib.heads.acceptance_data import LABELS, check_mixing
    from specdec_lib.heads.training import Training

    settings = Training(epochs=epochs, rate=rate, seed=seed)
    options.one_of("--labels", [labels], LABELS)
    share = None if mixing == "none" else _number("--mixing", mixing)
    check_mixing(share)
    chat = _check_tasks(task)
    places = [out, *(out.with_stem(f"{out.stem}-{place}") for place in range(1, seeds))]
    for place in places:
        options.output_file(place)
    models = load_pair(target, draft, device, dtype, chat=chat)
    asked = PromptSettings(task or TASKS, prompts, max_new_tokens)
    trained, tokens, count = train_acceptance_heads(
        models, data, settings, asked, labels, share, sees_confidence, seeds
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    for own, head in zip(places, trained, strict=True):
        head.save(own)
        story = head.story
        best = story["curve"][story["epoch_kept"] - 1]
        typer.echo(
            f"{tokens:,} tokens of {count} prompts, {story['mean_acceptance']:.1%} accepted; epoch {story['epoch_kept']} of "
            f"{epochs} kept, held-out loss {best['held_out']:.4f}; {story['seconds']:.0f} s\nwritten to {own}"
        )


def _check_tasks(names: list[str] | None) -> bool:
    """Reject unknown tasks, and those whose files are not there; gives whether a prompt is a chat."""
    from specdec_lib.experiments.data.prompts import TASKS
    from specdec_lib.experiments.data.tasks import choosing_prompts, task_names

    options.one_of("--task", [name.split("/")[0] for name in names or ()], task_names())
    return any(prompt.chat for prompt in choosing_prompts(names or TASKS, 1))


def _number(option: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{option} is {text!r}; expected a number or none") from None


def train_heads(
    target: options.Target = "smollm2",
    kind: Annotated[
        list[str] | None, typer.Option(help="medusa, hydra or eagle; may be repeated (default: all).")
    ] = None,
    out: Annotated[Path, options.folder("Of the heads.")] = Path("_build/heads"),
    data: Data = Path("_build/heads"),
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    task: options.Task = None,
    prompts: options.Prompts = 80,
    max_new_tokens: Annotated[int, options.whole_number("Longest answer, in tokens.", 2)] = 128,
    epochs: Annotated[
        int, options.whole_number("Most passes over the answers; fewer once the held-out loss stops falling.")
    ] = 20,
    batch: Annotated[int, options.whole_number("Answers of a step.")] = 4,
    rate: Annotated[float | None, typer.Option(help="Peak learning rate (default: that of the kind).")] = None,
    seed: Seed = 0,
    own_vocabulary: Annotated[
        bool, typer.Option("--own-vocabulary", help="Medusa, Hydra: an output layer for each depth.")
    ] = False,
    layers: Annotated[
        int | None, options.whole_number("Medusa, Hydra: blocks of a depth (default: as released, 1 and 4).")
    ] = None,
    prefix: Annotated[bool, typer.Option(help="Hydra: with the prefix layer of Hydra++.")] = True,
    mlp: Annotated[int, options.whole_number("EAGLE: inner width of its layer; 0: the target's own.", 0)] = 0,
) -> None:
    """Train heads that draft (Medusa, Hydra, EAGLE) on a target's own answers; recorded answers are kept."""
    import torch

    from specdec_lib.experiments.data.prompts import TASKS
    from specdec_lib.experiments.head_training import PromptSettings, train_kinds
    from specdec_lib.experiments.runs.recorded_runs import ONE_THREAD, check_template
    from specdec_lib.heads.draft_training import HeadTraining
    from specdec_lib.heads.drafting import KINDS
    from specdec_lib.models.loading import load_model

    kinds = list(kind or KINDS)
    options.one_of("--kind", kinds, KINDS)
    settings = HeadTraining(epochs, batch, rate, seed)
    shared = {"own_vocabulary": own_vocabulary} | ({} if layers is None else {"layers": layers})
    own: dict[str, dict[str, Any]] = {"medusa": shared, "hydra": shared | {"prefix": prefix}, "eagle": {"mlp": mlp}}
    chat = _check_tasks(task)
    for name in kinds:
        options.output_file(out / f"{name}.safetensors")
    if chat:
        check_template(target)
    model, tokenizer = load_model(target, device, dtype)
    if model.device.type == "cpu" and model.num_parameters() < ONE_THREAD:
        torch.set_num_threads(1)
    asked, chosen = PromptSettings(task or TASKS, prompts, max_new_tokens), {name: own[name] for name in kinds}
    for name, head in train_kinds(model, tokenizer, data, out, settings, asked, chosen).items():
        first = ", ".join(f"{row[0]:.1%}" for row in head.accuracies)
        story = head.story
        typer.echo(
            f"{name}: {story['predictions']:,} tokens of {story['answers']} answers, epoch {story['epoch_kept']} of "
            f"{len(story['curve'])} kept, first choice right by depth {first}; {story['seconds']:.0f} s\n"
            f"written to {out / f'{name}.safetensors'}"
        )
