"""Tables and figures of the page on the pocket pair: what its cells computed, as a reader sees it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from specdec_lib.chapters.a1_pocket_models import page_values, training_rows
from specdec_lib.experiments import made_tasks
from specdec_lib.experiments.diagnosis import copied_tokens
from specdec_lib.experiments.recorded_runs import Answer
from specdec_lib.report.display import charts, figures
from specdec_lib.report.display.tables import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

#: What is drawn of each task, with its colour and its mark.
_DOTS = {
    "target": ("target: tokens right", figures.PALETTE[0], "o"),
    "first": ("first edition's target", figures.PALETTE[5], "x"),
    "draft": ("draft: tokens right", figures.PALETTE[1], "s"),
    "agreement": ("draft agrees with target", figures.PALETTE[7], "|"),
}


def abilities(
    answers: Mapping[str, Sequence[Answer]],
    forced: Mapping[str, Mapping[str, float]],
    tokenizer: PreTrainedTokenizerBase,
    first: Mapping[str, Mapping[str, Any]],
) -> list[dict[str, Any]]:
    """What both models can do on each task, one row a task.

    Parameters
    ----------
    answers : mapping
        By task, what the target wrote.
    forced : mapping
        By ``"target"`` and ``"draft"``: share of the right answers' tokens that are the model's first choice, by task.
    tokenizer
    first : mapping
        By task, the same rows of the pair's first edition; empty where there are none.
    """
    return [
        {
            "task": task,
            "prompts": len(own),
            "copied": _copied(own, tokenizer) if task in made_tasks.MAKERS else None,
            "target": forced["target"].get(task),
            "first": first.get(task, {}).get("target"),
            "draft": forced["draft"].get(task),
            "right": mean(a.right for a in own) if task in made_tasks.MAKERS else None,
            "first_right": first.get(task, {}).get("right"),
            "looped": mean(a.looped for a in own),
            "agreement": float(np.concatenate([a.agreement for a in own]).mean()),
        }
        for task, own in answers.items()
    ]


def _copied(answers: Sequence[Answer], tokenizer: PreTrainedTokenizerBase) -> float:
    """Share of the right answers' tokens that stand in their prompts, several in a row."""
    copied = tokens = 0
    for answer in answers:
        asked, right = (
            tokenizer(text, add_special_tokens=False)["input_ids"]
            for text in ("\n".join(answer.prompt.turns), answer.prompt.reference)
        )
        copied, tokens = copied + copied_tokens(asked, right), tokens + len(right)
    return copied / tokens


def abilities_chart(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw the tokens that both models and the first edition's target get right on each task, and how often the two
    agree."""
    figure, ax = figures.new(6.4, 1.2 + 0.2 * len(rows))
    for key, (label, color, mark) in _DOTS.items():
        known = [(row[key], place) for place, row in enumerate(rows) if row[key] is not None]
        if not known:
            continue
        x, y = zip(*known, strict=True)
        ax.plot(
            x,
            y,
            linestyle="",
            marker=mark,
            markersize=6,
            markeredgewidth=2 if mark == "|" else 1.5 if mark == "x" else 0,
            color=color,
            label=label,
        )
    ax.set_yticks(range(len(rows)), [row["task"] for row in rows])
    ax.invert_yaxis()
    ax.set(xlabel="share of tokens", xlim=(0, 1.02))
    figure.legend(loc="outside lower center", ncols=2)
    return figure


def abilities_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """The same with whole answers and loops."""
    columns = {"task": "Task", "prompts": "Prompts", "copied": "Copied from the prompt", "target": "Tokens right"}
    columns |= {"first": "Tokens right, first edition", "right": "Answers right"}
    columns |= {
        "first_right": "Answers right, first edition",
        "looped": "Ends in a loop",
        "draft": "Draft: tokens right",
    }
    return Table(
        pd.DataFrame(rows),
        "tab-pocket-abilities",
        "The target, its first edition and the draft model on held-out prompts, by task.",
        columns | {"agreement": "Agreement"},
        dict.fromkeys(("copied", "target", "first", "right", "first_right", "looped", "draft", "agreement"), ".0%"),
    )


def shapes(models: Mapping[str, PreTrainedModel], home: Path) -> Table:
    """Sizes of the two models."""
    rows = [
        {
            "part": part,
            "parameters": model.num_parameters(),
            "layers": model.config.num_hidden_layers,
            "width": model.config.hidden_size,
            "heads": model.config.num_attention_heads,
            "mlp": model.config.intermediate_size,
            "megabytes": (home / part / "model.safetensors").stat().st_size / 1e6,
        }
        for part, model in models.items()
    ]
    columns = {"part": "Model", "parameters": "Parameters", "layers": "Layers", "width": "Width", "heads": "Heads"}
    return Table(
        pd.DataFrame(rows),
        "tab-pocket-shape",
        "Shapes of the pocket pair; input and output embeddings are tied.",
        columns | {"mlp": "MLP width", "megabytes": "File, MB"},
        {"megabytes": ".1f"},
    )


def tasks() -> Table:
    """The tasks that both were trained on."""
    rows = [
        {"task": task, "what": what, "share": training_rows.TASK_SHARES.get(task)}
        for task, what in made_tasks.TASKS.items()
    ]
    return Table(
        pd.DataFrame(rows),
        "tab-pocket-tasks",
        "The mechanical tasks and their shares of the training tasks; completion is learned from running text.",
        {"task": "Task", "what": "What is asked", "share": "Share"},
        {"share": ".0%"},
    )


def training(told: Mapping[str, Mapping[str, Any]]) -> Table:
    """How both were trained, by the files that the training wrote."""
    rows = []
    for part, story in told.items():
        last, recipe = (story["curve"] or [{}])[-1], story["recipe"]
        rows.append(
            {
                "part": part,
                "before": page_values.tokens_before(story),
                "steps": last.get("step"),
                "step_tokens": recipe.get("tokens_per_step"),
                "tokens": last.get("tokens"),
                "loss": last.get("loss"),
                "hours": last["seconds"] / 3600 if last else None,
                "device": story["device"],
            }
        )
    columns = {"part": "Model", "before": "Tokens seen before", "steps": "Steps", "step_tokens": "Tokens a step"}
    columns |= {"tokens": "Tokens seen in them", "loss": "Last loss", "hours": "Hours", "device": "Device"}
    return Table(
        pd.DataFrame(rows),
        "tab-pocket-training",
        "How the two models were trained.",
        columns,
        {"before": ",d", "steps": ",d", "step_tokens": ",d", "tokens": ",d", "loss": ".2f", "hours": ".2f"},
    )


def learning(told: Mapping[str, Mapping[str, Any]]) -> Figure:
    """Draw the mean accuracy of the answers' tokens over copying tasks and over editing ones, one panel a model."""
    groups = {
        "copying tasks": training_rows.COPYING_TASKS,
        "editing tasks": [task for task in training_rows.TASK_SHARES if task not in training_rows.COPYING_TASKS],
    }
    content = {}
    for part, story in told.items():
        before, lines = page_values.tokens_before(story), {}
        for label, group in groups.items():
            rows = [row for row in story["curve"] if set(group) <= set(row["accuracy"])]
            if rows:
                means = [mean(row["accuracy"][task] for task in group) for row in rows]
                lines[label] = ([(before + row["tokens"]) / 1e6 for row in rows], means)
        content[part] = lines
    return charts.panels(content, "million tokens seen", "answer tokens right", height=3.2, ylim=(0, 1.02))


def heldout_curve(story: Mapping[str, Any]) -> Figure:
    """Draw the loss on texts that no model was trained on, against the tokens trained on."""
    before = page_values.tokens_before(story)
    rows = [row for row in story["curve"] if row.get("heldout")]
    names = list(rows[-1]["heldout"]) if rows else []
    figure, ax = figures.new(6.4, 3.2)
    for name, color, mark in zip(names, cycle(figures.PALETTE), cycle("osD^vPX")):
        x = [(before + row["tokens"]) / 1e6 for row in rows]
        ax.plot(x, [row["heldout"][name] for row in rows], color=color, marker=mark, markersize=5, label=name)
    ax.set(xlabel="million tokens seen", ylabel="loss (nats per token)")
    figures.legend_below(figure, *ax.get_legend_handles_labels(), most=5)
    return figure


def windows(story: Mapping[str, Any]) -> Table:
    """Perplexity of held-out texts by the length of the windows that the model reads them in."""
    losses = story.get("heldout_loss", {})
    names = list(next(iter(losses.values()), {}))
    rows = [{"text": name} | {n: float(np.exp(found[name])) for n, found in losses.items()} for name in names]
    return Table(
        pd.DataFrame(rows, columns=["text", *losses]),
        "tab-pocket-windows",
        "Perplexity of the target on texts held out from the training, by the length of the window in tokens.",
        {"text": "Text"} | {n: f"Windows of {n}" for n in losses},
        dict.fromkeys(losses, ".2f"),
    )


def aims(wanted: Sequence[page_values.Aim]) -> Table:
    """What was aimed for and what was measured."""
    rows = [
        {
            "of": aim.of,
            "what": aim.what,
            "aim": f"{aim.low:.0%} to {aim.high:.0%}"
            if aim.low > 0 and aim.high < 1
            else f"{aim.low:.0%} or more"
            if aim.low > 0
            else f"{aim.high:.0%} or less",
            "value": aim.value,
            "verdict": "reached" if aim.reached else "below" if aim.value < aim.low else "above",
        }
        for aim in wanted
    ]
    return Table(
        pd.DataFrame(rows),
        "tab-pocket-aims",
        "Aims, and what this page's prompts show.",
        {"of": "Task", "what": "What", "aim": "Wanted", "value": "Measured", "verdict": "Verdict"},
        {"value": ".1%"},
    )


def shown_answer(answer: Answer) -> str:
    """The prompt, the answer given, and the right one where it differs."""
    parts = [(f"prompt ({answer.prompt.task})", answer.prompt.text)]
    parts.append((f"answer, {'right' if answer.right else 'wrong'}", answer.text))
    if not answer.right:
        parts.append(("right answer", answer.prompt.reference or ""))
    return "\n\n".join(f"--- {title} ---\n{charts.wrapped(text)}" for title, text in parts)
