"""Tables and figures of the page on the pocket pair: what its cells computed, as a reader sees it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from specdec_lib.chapters.a1_pocket_models import training_rows
from specdec_lib.experiments import made_tasks
from specdec_lib.experiments.recorded_runs import Answer
from specdec_lib.report.display import charts, figures
from specdec_lib.report.display.tables import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from transformers import PreTrainedModel

#: What is drawn of each task, with its colour and its mark.
_DOTS = {
    "target": ("target: tokens right", figures.PALETTE[0], "o"),
    "draft": ("draft: tokens right", figures.PALETTE[1], "s"),
    "agreement": ("draft agrees with target", figures.PALETTE[7], "|"),
}


def abilities(
    answers: Mapping[str, Sequence[Answer]], forced: Mapping[str, Mapping[str, float]]
) -> list[dict[str, Any]]:
    """What both models can do on each task, one row a task.

    Parameters
    ----------
    answers : mapping
        By task, what the target wrote.
    forced : mapping
        By ``"target"`` and ``"draft"``: share of the right answers' tokens that are the model's first choice, by task.
    """
    return [
        {
            "task": task,
            "prompts": len(own),
            "target": forced["target"].get(task),
            "draft": forced["draft"].get(task),
            "right": mean(a.right for a in own) if task in made_tasks.MAKERS else None,
            "looped": mean(a.looped for a in own),
            "agreement": float(np.concatenate([a.agreement for a in own]).mean()),
        }
        for task, own in answers.items()
    ]


def abilities_chart(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw the tokens that both models get right on each task, and how often they agree."""
    figure, ax = figures.new(6.4, 1.2 + 0.2 * len(rows))
    for key, (label, color, mark) in _DOTS.items():
        known = [(row[key], place) for place, row in enumerate(rows) if row[key] is not None]
        x, y = zip(*known, strict=True)
        ax.plot(
            x,
            y,
            linestyle="",
            marker=mark,
            markersize=6,
            markeredgewidth=2 if mark == "|" else 0,
            color=color,
            label=label,
        )
    ax.set_yticks(range(len(rows)), [row["task"] for row in rows])
    ax.invert_yaxis()
    ax.set(xlabel="share of tokens", xlim=(0, 1.02))
    figure.legend(loc="outside lower center", ncols=len(_DOTS))
    return figure


def abilities_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """The same with whole answers and loops."""
    columns = {"task": "Task", "prompts": "Prompts", "target": "Target: tokens right", "draft": "Draft: tokens right"}
    columns |= {"right": "Target: answers right", "looped": "Target: ends in a loop", "agreement": "Agreement"}
    return Table(
        pd.DataFrame(rows),
        "tab-pocket-abilities",
        "The pocket pair on held-out prompts, by task.",
        columns,
        dict.fromkeys(("target", "draft", "right", "looped", "agreement"), ".1%"),
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
                "steps": last.get("step"),
                "batch": recipe["batch"],
                "length": recipe["length"],
                "tokens": last.get("tokens"),
                "loss": last.get("loss"),
                "hours": last["seconds"] / 3600 if last else None,
                "device": story["device"],
            }
        )
    columns = {"part": "Model", "steps": "Steps", "batch": "Rows a step", "length": "Tokens a row"}
    columns |= {"tokens": "Tokens seen", "loss": "Last loss", "hours": "Hours", "device": "Device"}
    return Table(
        pd.DataFrame(rows),
        "tab-pocket-training",
        "How the two models were trained.",
        columns,
        {"steps": ",d", "tokens": ",d", "loss": ".2f", "hours": ".2f"},
    )


def aims(wanted: Sequence[tuple[str, float, float, float]]) -> Table:
    """What was aimed for and what was measured.

    Parameters
    ----------
    wanted : sequence of tuple
        What it is, the measured value, and the ends of the aim.
    """
    rows = [
        {
            "what": what,
            "aim": f"{low:.0%} to {high:.0%}" if high < 1 else f"{low:.0%} or more",
            "value": value,
            "verdict": "below" if value < low else "above" if value > high else "reached",
        }
        for what, value, low, high in wanted
    ]
    return Table(
        pd.DataFrame(rows),
        "tab-pocket-aims",
        "Aims, and what this page's prompts show.",
        {"what": "Aim", "aim": "Wanted", "value": "Measured", "verdict": "Verdict"},
        {"value": ".1%"},
    )


def shown_answer(answer: Answer) -> str:
    """The prompt, the answer given, and the right one where it differs."""
    parts = [(f"prompt ({answer.prompt.task})", answer.prompt.text)]
    parts.append((f"answer, {'right' if answer.right else 'wrong'}", answer.text))
    if not answer.right:
        parts.append(("right answer", answer.prompt.reference or ""))
    return "\n\n".join(f"--- {title} ---\n{charts.wrapped(text)}" for title, text in parts)
