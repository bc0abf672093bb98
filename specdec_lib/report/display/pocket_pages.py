"""Tables and figures of the page on the pocket pair: what its cells computed, as a reader sees it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from statistics import mean as mean_of
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from specdec_lib.chapters.a1_pocket_models import page_values, training_rows
from specdec_lib.chapters.a1_pocket_models.wrong_tokens import (
    COPIED,
    EDITED,
    END,
    FirstWrong,
    Forced,
    by_source,
    proportion,
    share,
    tokens_right,
)
from specdec_lib.experiments import made_tasks
from specdec_lib.experiments.diagnosis import copied_tokens
from specdec_lib.experiments.judged_answers import JudgedAnswer
from specdec_lib.experiments.statistics import Interval
from specdec_lib.report.display import charts, figures, ratio_charts
from specdec_lib.report.display.tables import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

#: What is drawn of each task, with its colour, its mark, and how far below the middle of its row.
_DOTS = {
    "target": ("target: tokens right", figures.PALETTE[0], "o", -0.22),
    "first": ("first edition's target", figures.PALETTE[5], "x", -0.22),
    "draft": ("draft: tokens right", figures.PALETTE[1], "s", 0.02),
    "agreement": ("draft agrees with target", figures.PALETTE[7], "|", 0.26),
}


def abilities(
    answers: Mapping[str, Sequence[JudgedAnswer]],
    read: Mapping[str, Sequence[Forced]],
    tokenizer: PreTrainedTokenizerBase,
    first: Mapping[str, Any],
) -> list[dict[str, Any]]:
    """What both models can do on each task, one row a task; shares have intervals over prompts.

    Parameters
    ----------
    answers : mapping
        By task, what the target wrote.
    read : mapping
        By ``"target"`` and ``"draft"``: right answers as the model read them.
    tokenizer
    first : mapping
        What the pair's first edition could do.
    """
    earlier = {row["task"]: row for row in first["rows"]}
    return [
        {
            "task": task,
            "prompts": len(own),
            "copied": _copied(own, tokenizer) if task in made_tasks.MAKERS else None,
            "target": tokens_right(read["target"], [task]) if task in made_tasks.MAKERS else None,
            "first": earlier.get(task, {}).get("target"),
            "draft": tokens_right(read["draft"], [task]) if task in made_tasks.MAKERS else None,
            "right": proportion([a.right for a in own]) if task in made_tasks.MAKERS else None,
            "first_right": earlier.get(task, {}).get("right"),
            "looped": proportion([a.looped for a in own]),
            "agreement": page_values.agreement_of(own),
        }
        for task, own in answers.items()
    ]


def _copied(answers: Sequence[JudgedAnswer], tokenizer: PreTrainedTokenizerBase) -> float:
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
    figure, ax = figures.new(6.4, 1.2 + 0.24 * len(rows))
    for key, (label, color, mark, below) in _DOTS.items():
        known = [(row[key], place + below) for place, row in enumerate(rows) if row[key] is not None]
        if not known:
            continue
        for value, place in known:
            if isinstance(value, Interval) and value.known:
                ax.hlines(place, value.low, value.high, color=color, linewidth=1.2)
        ax.plot(
            figures.points([value for value, _ in known]),
            [place for _, place in known],
            linestyle="",
            marker=mark,
            markersize=5,
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
        "The target, its first edition and the draft model on held-out prompts, by task, with 95 % intervals over prompts.",
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
                means = [mean_of(row["accuracy"][task] for task in group) for row in rows]
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


def models_table(rows: Sequence[Mapping[str, Any]], lengths: Sequence[str]) -> Table:
    """The target and its drafts, by :func:`specdec_lib.chapters.a1_pocket_models.page_values.models`."""
    columns = {
        "model": "Model",
        "parameters": "Parameters",
        "tokens": "Tokens seen",
        "agreement": "Agrees with the target",
    }
    return Table(
        pd.DataFrame(rows),
        "tab-pocket-models",
        "The target and its draft models: how often each draft would have chosen the target's token, over all answers of this "
        "page, and perplexity on the held-out texts, a geometric mean. With 95 % intervals over answers and over texts.",
        columns | {length: f"Perplexity, windows of {length}" for length in lengths},
        {"parameters": ",d", "tokens": ",d", "agreement": ".1%", **dict.fromkeys(lengths, ".1f")},
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
            "verdict": aim.verdict,
        }
        for aim in wanted
    ]
    return Table(
        pd.DataFrame(rows),
        "tab-pocket-aims",
        "Aims, and what this page's prompts show, with 95 % intervals. Where an interval has an end on either side of its aim, the "
        "verdict is *not resolved*.",
        {"of": "Task", "what": "What", "aim": "Wanted", "value": "Measured", "verdict": "Verdict"},
        {"value": ".1%"},
    )


#: Kinds of the first wrong token, with their names, colours and marks.
_KINDS = {
    "new": ("a new token", figures.PALETTE[0], "o"),
    "edge": ("where copying begins again", figures.PALETTE[5], "^"),
    "copied": ("inside copied text", figures.PALETTE[1], "s"),
    "end": ("the end of the answer", figures.PALETTE[7], "x"),
}


def wrong_chart(wrong: Sequence[FirstWrong]) -> Figure:
    """Draw the place of the first wrong token of each wrong answer, with the kind of the right token there."""
    tasks = list(dict.fromkeys(one.task for one in wrong))
    figure, ax = figures.new(6.4, 1.4 + 0.24 * len(tasks))
    for shift, (kind, (label, color, mark)) in enumerate(_KINDS.items()):
        own = [one for one in wrong if one.kind == kind]
        ax.plot(
            [one.place for one in own],
            [tasks.index(one.task) + 0.18 * (shift - 1.5) for one in own],
            linestyle="",
            marker=mark,
            markersize=4.5,
            color=color,
            label=label,
        )
    ax.set_xscale("log")
    ticks = [1, 2, 5, 10, 20, 50, 100, 200, 500]
    ax.set_xticks(ticks, [str(tick) for tick in ticks])
    ax.set_xticks([], minor=True)
    ax.set_yticks(range(len(tasks)), tasks)
    ax.set_xlim(0.8, max([one.place for one in wrong], default=1) * 1.3)
    ax.invert_yaxis()
    ax.set_xlabel("first wrong token of the answer")
    figures.legend_below(figure, *ax.get_legend_handles_labels())
    return figure


def wrong_table(
    wrong: Sequence[FirstWrong],
    read: Sequence[Forced],
    about: Mapping[str, Any],
    groups: Mapping[str, Sequence[str]],
) -> Table:
    """What is known of wrong answers and missing tokens, one row a group of tasks."""
    rows = []
    for group, names in groups.items():
        own = [one for one in wrong if one.task in names]
        row = {"group": group, "wrong": len(own), "place": median(one.place for one in own) if own else None}
        row |= {"edited": share(own, EDITED), "inside": share(own, [COPIED]), "end": share(own, [END])}
        row |= {"copies": tokens_right(read, names, [COPIED]), "edits": tokens_right(read, names, EDITED)}
        rows.append(row | {"gain": page_values.last_gain(about, names)})
    columns = {"group": "Tasks", "wrong": "Wrong answers", "place": "First wrong token, median"}
    columns |= {"edited": "at an edited place", "inside": "inside copied text", "end": "at the end"}
    columns |= {"copies": "Copied tokens right", "edits": "Tokens right at edited places"}
    rates = ("edited", "inside", "end", "copies", "edits")
    return Table(
        pd.DataFrame(rows),
        "tab-pocket-wrong",
        "Where the target's wrong answers first go wrong, which tokens of right answers it would have chosen, and what the mean "
        "accuracy of the tasks gained in the second half of the steps at a constant rate. With 95 % intervals.",
        columns | {"gain": "Gain"},
        {"place": ".0f", **dict.fromkeys(rates, ".0%"), "gain": ".1%"},
    )


def loops_chart(completions: Sequence[JudgedAnswer], first: Mapping[str, Any], most: float) -> Figure:
    """Draw the share of code completions that end in a loop: all, the first edition's, and by the package of the prompt."""
    cases = {
        f"all ({len(completions)})": proportion([one.looped for one in completions]),
        "first edition": page_values.first_loops(first),
        **{f"{name} ({prompts})": rate for name, (rate, prompts) in by_source(completions).items() if prompts > 1},
    }
    return ratio_charts.ratios(
        {name: {"": rate} for name, rate in cases.items()}, "share of completions that end in a loop", reference=most
    )


def shown_answer(answer: JudgedAnswer) -> str:
    """The prompt, the answer given, and the right one where it differs."""
    parts = [(f"prompt ({answer.prompt.task})", answer.prompt.text)]
    parts.append((f"answer, {'right' if answer.right else 'wrong'}", answer.text))
    if not answer.right:
        parts.append(("right answer", answer.prompt.reference or ""))
    return "\n\n".join(f"--- {title} ---\n{charts.wrapped(text)}" for title, text in parts)
