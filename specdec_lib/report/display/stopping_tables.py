"""Tables of the chapter on when a draft should stop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from specdec_lib.chapters.ch05_specdec_pp.wide_study import SETS
from specdec_lib.report.display.stopping_charts import RULES
from specdec_lib.report.display.tables import Markup, Table

if TYPE_CHECKING:
    from specdec_lib.chapters.ch05_specdec_pp.wide_study import Row


def speedups(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Speed-up of every policy on every set: the paper's Table 1 (:func:`~.contest.speedups`)."""
    frame = pd.DataFrame(rows)
    sets = [name for name in frame.columns if name != "family" and frame[name].notna().any()]
    return Table(
        frame,
        "tab-head-throughput",
        "Speed-up over plain decoding at the paper's times of a pass, on prompts that settings were not chosen on, with 95 % "
        "intervals over prompts (SpecDec++: and over training seeds). With an asterisk: without outputs that end in a "
        "loop, where five or more remain.",
        {"family": "Policy"} | {name: name for name in sets},
        dict.fromkeys(sets, ".2f"),
    )


def knowledge(rows: Sequence[Mapping[str, Any]]) -> Table:
    """What heads and the draft model's own probability know of tokens (:func:`~.head_knowledge.table`)."""
    return Table(
        pd.DataFrame(rows),
        "tab-head-knows",
        "What predictions of acceptance know, in training and in decoding. The held-out part of the training mixture also "
        "chose the epoch. The last column has 95 % intervals over outputs.",
        {
            "where": "Tokens",
            "what": "Prediction",
            "predicted": "Mean prediction",
            "accepted": "Accepted",
            "ece": "ECE",
            "auc": "AUC",
            "lead": "AUC less that of confidence",
        },
        {"predicted": ".1%", "accepted": ".1%", "ece": ".3f", "auc": ".3f", "lead": "+.3f"},
    )


def sampled(rows: Sequence[Row], draft: str) -> Table:
    """SpecDec++ by temperature and set, from the file of the long study."""
    quantities = {
        "accepted": "acceptance",
        "fixed": "speed-up, fixed K",
        "ours": "speed-up, SpecDec++",
        "lead": "AUC, head less confidence",
    }
    known = {(row.temperature, row.set, row.quantity): row for row in rows if row.draft == draft}
    cases = [(temperature, name) for temperature in dict.fromkeys(key[0] for key in known) for name in SETS]
    made = [
        {"temperature": case[0], "set": case[1]}
        | {count: getattr(known[*case, "acceptance"], count) for count in ("prompts", "outputs")}
        | {column: known[*case, quantity].interval for column, quantity in quantities.items()}
        for case in cases
    ]
    return Table(
        pd.DataFrame(made, columns=["temperature", "set", "prompts", "outputs", *quantities]),
        "tab-head-sampled",
        "Greedy (temperature 0) and sampled decoding at the paper's times: speed-ups over plain decoding, the AUC of the head "
        "less that of the draft model's own probability, and the share of drafted tokens that are accepted; 95 % intervals "
        "over prompts. Made by python -m specdec_lib stopping.",
        {
            "temperature": "Temperature",
            "set": "Set",
            "fixed": "Best fixed $K$",
            "ours": "SpecDec++",
            "lead": "AUC, difference",
            "accepted": "Accepted",
            "prompts": "Prompts",
            "outputs": "Outputs",
        },
        {"temperature": ".1f", "accepted": ".0%", "fixed": ".2f", "ours": ".2f", "lead": "+.3f"},
    )


def survey(found: pd.DataFrame) -> Table:
    """Cost of each rule above the best policy over random pairs."""
    rows = [
        {"rule": label, "mean": found[name].mean(), "median": found[name].median(), "worst": found[name].max()}
        for name, label in RULES.items()
    ]
    return Table(
        pd.DataFrame(rows),
        "tab-mdp-survey",
        f"Cost of a token above that of the best policy, over {len(found)} random pairs.",
        {"rule": "Rule", "mean": "Mean", "median": "Median", "worst": "Worst"},
        {"rule": Markup, "mean": ".2%", "median": ".2%", "worst": ".2%"},
    )


def fits(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Fitted times of a pass: the paper's Table 2 (:func:`~.generation_costs.table_2`)."""
    return Table(
        pd.DataFrame(rows),
        "tab-cost-forward-times",
        "Time of a pass by least squares over whole generations, without an intercept (Table 2 of the paper), with 95 % "
        "intervals over the generations.",
        {
            "setting": "Setting",
            "runs": "Generations",
            "t_draft": r"$t_\text{draft}$ (ms)",
            "t_target": r"$t_\text{target}$ (ms)",
            "r_squared": "$R^2$",
        },
        {"t_draft": ".2f", "t_target": ".2f", "r_squared": ".3f"},
        timed=["t_draft", "t_target", "r_squared"],
    )


def published_prompts(rows: Sequence[Mapping[str, Any]], names: Mapping[str, str]) -> Table:
    """Speed-ups on the paper's own prompts.

    Parameters
    ----------
    rows : sequence of mapping
        ``family``, ``setting`` and for each set its speed-up.
    names : mapping
        Heading of each set.
    """
    return Table(
        pd.DataFrame(rows, columns=["family", "setting", *names]),
        "tab-head-published",
        "Speed-up over plain decoding at the paper's times, with the settings that were chosen on editing and 95 % intervals "
        "over prompts.",
        {"family": "Policy", "setting": "Setting", **names},
        dict.fromkeys(names, ".2f"),
    )
