"""Policies on many prompts: greedy and sampled outputs, several drafts, several training seeds of the head.

Takes longer than a chapter may; ``python -m specdec_lib stopping`` runs it and leaves a small file. Outputs are kept in the
book's cache, so a run that was interrupted does not decode them again.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from specdec_lib import paths
from specdec_lib.chapters.ch05_specdec_pp import setting_choices
from specdec_lib.chapters.ch05_specdec_pp.contest import Contest
from specdec_lib.chapters.ch05_specdec_pp.draft_pass import draft_along
from specdec_lib.chapters.ch05_specdec_pp.head_study import Variant, Workshop, met
from specdec_lib.chapters.ch05_specdec_pp.stopping_study import ORACLE, Study, baselines, with_head
from specdec_lib.decoding.sampling import Sampling
from specdec_lib.experiments.acceptance_training import parted
from specdec_lib.experiments.all_cores import on_all_cores
from specdec_lib.experiments.calibration import ranking_accuracy, ranking_lead
from specdec_lib.experiments.recorded_runs import Recording, prompts_of
from specdec_lib.experiments.recordings import record_once
from specdec_lib.experiments.statistics import Interval, pooled_rate
from specdec_lib.experiments.tasks import load_task
from specdec_lib.heads.acceptance import AcceptanceHead
from specdec_lib.heads.acceptance_data import Response, examples, label
from specdec_lib.heads.training import Training, train
from specdec_lib.models.fingerprint import fingerprint

#: Held-out tasks of each set; the head is trained on the kind of the first.
SETS = {
    "editing": ("rename", "remove-docstring", "outline"),
    "code": ("code-completion",),
    "prose": ("replace-word",),
}
#: The set that heads are trained on.
INSIDE = "editing"
#: All sets together, and of them the throughput with the fixed length that is best greedily over that with the own best.
ALL, GREEDY_LENGTH = "all", "greedy's length over the own"
#: The best fixed length on all sets together.
BEST_LENGTH = "speed-up, best fixed K of all"
#: How many more of the tokens both models agree on than in the set that heads are trained on.
AGREEMENT = f"agreement less that of {INSIDE}"
# The file that a run leaves.
RESULTS = paths.DATA / "results" / "cpu" / "stopping.csv"


class Row(NamedTuple):
    """One number of the study: of a draft, at a temperature, on a set of prompts.

    ``value``, ``low`` and ``high`` are its 95 % interval over prompts; ``least`` and ``most`` are what single training
    seeds of the head give, NaN where no head is involved.
    """

    draft: str
    parameters: int
    temperature: float
    set: str
    prompts: int
    outputs: int
    quantity: str
    setting: str
    value: float
    low: float
    high: float
    least: float
    most: float

    @property
    def interval(self) -> Interval:
        """The number with its interval over prompts."""
        return Interval(self.value, self.low, self.high)


@dataclass(frozen=True)
class Plan:
    """What is measured: prompts of each set, where sampled and where greedy, longest output, temperatures, outputs of each
    prompt where sampled, training seeds and epochs of the head, its w_rej, D and r, the thresholds h tried, the
    other w_rej, D and r of which greedy decoding chooses, and sampled prompts of each set for the drafts after the first."""

    prompts: int = 100
    greedy_prompts: int = 300
    tokens: int = 96
    temperatures: tuple[float, ...] = (0.0, 0.6, 1.0)
    output_seeds: int = 3
    head_seeds: int = 5
    epochs: int = 6
    reject_weight: float = 6.0
    depth: int = 3
    mixing: float = 0.15
    thresholds: tuple[float, ...] = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
    reject_weights: tuple[float, ...] = (1.0, 3.0, 6.0, 12.0)
    depths: tuple[int, ...] = (0, 1, 3)
    mixings: tuple[float, ...] = (0.0, 0.15, 0.85)
    further_prompts: int = 50

    @property
    def setting(self) -> Variant:
        """The head's."""
        return Variant(self.reject_weight, self.depth, self.mixing)


def recordings(
    target: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, plan: Plan, temperature: float
) -> tuple[list[Recording], list[str]]:
    """Outputs of the target for the prompts of all sets, and the set of each; those of one token, for which nothing is
    drafted, are left out."""
    recorded, sets = [], []
    for name, tasks in SETS.items():
        wanted = plan.prompts if temperature else plan.greedy_prompts
        shares = [len(part) for part in np.array_split(range(wanted), len(tasks))]
        prompts = [p for task, share in zip(tasks, shares, strict=True) for p in load_task(task, limit=share, seed=0)]
        for seed in range(plan.output_seeds if temperature else 1):
            made = record_once(target, tokenizer, prompts, Sampling(temperature, seed=seed), plan.tokens)
            kept = [recording for recording in made if len(recording.trace.tokens) > 1]
            recorded, sets = recorded + kept, sets + [name] * len(kept)
    return recorded, sets


def labelled(
    target: PreTrainedModel, draft: PreTrainedModel, answers: Sequence[Response], temperature: float
) -> list[Response]:
    """Recorded answers of the target labelled for decoding at a temperature: min(1, p / q) of a token that the draft model
    draws, 0 or 1 where decoding is greedy."""
    return on_all_cores(
        [
            partial(label, target, draft, r.prompt.tolist(), r.tokens.tolist(), Sampling(temperature, seed=i))
            for i, r in enumerate(answers)
        ]
    )


def heads(draft: PreTrainedModel, labelled: Sequence[Response], plan: Plan) -> list[AcceptanceHead]:
    """Heads of a draft, one for each training seed, trained on labelled answers."""
    fit, held_out = (examples(draft, part, plan.mixing) for part in parted(labelled))
    own = fingerprint(draft)
    settings = [Training(plan.reject_weight, plan.epochs, seed=seed) for seed in range(plan.head_seeds)]
    return on_all_cores([partial(train, fit, held_out, one, plan.depth, draft=own, progress=False) for one in settings])


def rows_of(
    study: Study, trained: Sequence[AcceptanceHead], plan: Plan, times: tuple[float, float], alone: float
) -> Iterator[tuple[str, str, str, Interval, float, float]]:
    """Set, quantity, setting, interval, least and most of all that is compared, at given seconds of a pass of draft and
    target and of the target alone.

    Settings are chosen on every second prompt of a set and judged on the others; each head has a threshold of its own.
    """
    nothing = (float("nan"), float("nan"))
    families = {name: own for name, own in baselines(study.longest).items() if name in AGAINST}
    tried = [with_head(f"head {i}", head, plan.thresholds) for i, head in enumerate(trained)]
    study.play_all([ORACLE, *(policy for own in (*families.values(), *tried) for policy in own)])
    for name in dict.fromkeys(study.groups.tolist()):
        keep = study.groups == name
        test = keep & ~study.tuning
        chosen = study.chosen(families, keep, times)
        ours = [study.best(own, keep & study.tuning, times) for own in tried]
        settings = ", ".join(dict.fromkeys(policy.setting for policy in ours))
        passes = [passed for passed, kept in zip(study.passes, keep, strict=True) if kept]
        names = [prompt for prompt, kept in zip(study.prompts, keep, strict=True) if kept]
        accepted = pooled_rate(([p.acceptance.sum() for p in passes], [len(p.acceptance) for p in passes]), names)
        yield name, "acceptance", "", accepted, *nothing
        for family, policy in {**chosen, "oracle": ORACLE}.items():
            yield name, f"speed-up, {family}", policy.setting, study.speedup(policy, test, times, alone), *nothing
        each = [study.speedup(policy, test, times, alone).value for policy in ours]
        yield name, "speed-up, SpecDec++", settings, study.speedup(ours, test, times, alone), min(each), max(each)
        for family, policy in chosen.items():
            each = [study.against(one, policy, keep, times).value for one in ours]
            yield name, f"over {family}", settings, study.against(ours, policy, keep, times), min(each), max(each)
        tokens = met(passes)
        outcome, sure = tokens.acceptance.numpy().astype(float), tokens.confidence.numpy().astype(float)
        of_tokens = [n for p, n in zip(passes, names, strict=True) for _ in range(len(p.acceptance))]
        said = [head.probability(tokens.states, tokens.confidence).numpy().astype(float) for head in trained]
        each = [ranking_accuracy(one, outcome) for one in said]
        mean = float(np.mean(each))
        yield name, "AUC, head", "", Interval(mean, *nothing), min(each), max(each)
        yield name, "AUC, confidence", "", Interval(ranking_accuracy(sure, outcome), *nothing), *nothing
        yield name, "AUC, head less confidence", "", ranking_lead(said[0], sure, outcome, of_tokens), *nothing


def choices(
    study: Study, workshop: Workshop, plan: Plan, times: tuple[float, float], alone: float
) -> Iterator[tuple[str, str, str, Interval]]:
    """What a setting is worth, as set, quantity, setting and interval: settings of other sets, the loss weight, the mixture;
    and how much easier each set is than the one that heads are trained on."""
    variants = [replace(plan.setting, reject_weight=w) for w in plan.reject_weights]
    variants += [replace(plan.setting, depth=d) for d in plan.depths]
    tried = setting_choices.policies(workshop, list(dict.fromkeys(variants)), plan.thresholds)
    study.play_all(tried)
    contest = Contest(study, {"SpecDec++": tried}, workshop, times, alone, plan.head_seeds)
    yield ALL, *setting_choices.least_transfer(contest)
    weights, mixtures = plan.reject_weights, plan.mixings
    for found in setting_choices.gains(contest, INSIDE, plan.setting, weights, mixtures, plan.thresholds):
        yield INSIDE, *found
    for name, interval in setting_choices.agreement(contest, INSIDE).items():
        yield name, AGREEMENT, "", interval


#: Policies that SpecDec++ is compared with.
AGAINST = ("fixed K", "any fixed K", "confidence", "cumulative confidence")


def measure(
    target: PreTrainedModel,
    drafts: Mapping[str, PreTrainedModel],
    tokenizer: PreTrainedTokenizerBase,
    answers: Sequence[Response],
    plan: Plan,
    times: tuple[float, float],
    alone: float,
    known: Sequence[Row] = (),
    say: Callable[[str], None] = print,
) -> Iterator[list[Row]]:
    """The rows of each temperature and draft, as soon as they are known, but for those of which there are some.

    Parameters
    ----------
    target, drafts, tokenizer
        The drafts by name.
    answers : sequence of Response
        Of the target, to train heads on; their labels are made anew for each draft and temperature.
    plan : Plan
    times, alone
        As for :func:`rows_of`.
    known : sequence of Row
        Of drafts and temperatures that were measured before.
    say : callable
        Told what is measured next.
    """
    nothing, done = (float("nan"), float("nan")), {(row.draft, row.temperature) for row in known}
    greedy_best = {row.draft: row.setting for row in known if row.quantity == BEST_LENGTH}
    for temperature in plan.temperatures:
        wanted = {name: draft for name, draft in drafts.items() if (name, temperature) not in done}
        if not wanted:
            continue
        for name, draft in wanted.items():
            first = name == next(iter(drafts))
            own = plan if first else replace(plan, prompts=plan.further_prompts)
            say(f"temperature {temperature:g}: outputs of the target")
            recorded, sets = recordings(target, tokenizer, own, temperature)  # those of the draft before are kept
            prompts = prompts_of(recorded)
            say(f"temperature {temperature:g}: {name}, {len(recorded)} outputs")
            taught = labelled(target, draft, answers, temperature)
            trained = heads(draft, taught, plan)
            passes = on_all_cores([partial(draft_along, r.trace, draft, target=target) for r in recorded])
            study = Study(passes, sets, prompts=prompts)
            found = list(rows_of(study, trained, plan, times, alone))
            lengths = {policy.setting: policy for policy in baselines(study.longest)["any fixed K"]}
            best = study.best(list(lengths.values()), study.tuning, times)
            if not temperature:
                greedy_best[name] = best.setting
                speed = study.speedup(best, ~study.tuning, times, alone)
                found.append((ALL, BEST_LENGTH, best.setting, speed, *nothing))
                workshop = Workshop(draft, taught, plan.epochs)
                found += [(*one, *nothing) for one in choices(study, workshop, plan, times, alone)]
            elif name in greedy_best:
                moved = study.against(lengths[greedy_best[name]], best, np.ones(len(sets), bool), times)
                found.append((ALL, GREEDY_LENGTH, f"{greedy_best[name]}, {best.setting}", moved, *nothing))
            counted = {
                kind: [p for p, one in zip(prompts, sets, strict=True) if kind in (one, ALL)] for kind in (*SETS, ALL)
            }
            yield [
                Row(
                    name,
                    draft.num_parameters(),
                    temperature,
                    kind,
                    len(set(counted[kind])),
                    len(counted[kind]),
                    quantity,
                    setting,
                    *interval,
                    least,
                    most,
                )
                for kind, quantity, setting, interval, least, most in found
            ]


def as_csv(rows: Sequence[Row]) -> str:
    """The rows as the file holds them; what is not known is empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(Row._fields)
    for row in rows:
        writer.writerow(
            ["" if value != value else f"{value:.6g}" if isinstance(value, float) else value for value in row]
        )
    return text.getvalue()


def read(path: Path | None = None) -> list[Row]:
    """The rows of a file; none where there is no file.

    Raises
    ------
    ValueError
        If its columns are not those of :class:`Row`.
    """
    path = path or RESULTS
    if not path.is_file():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.reader(file)
        fields = next(reader, [])
        if tuple(fields) != Row._fields:
            raise ValueError(
                f"{path} has the columns {', '.join(fields)}; expected {', '.join(Row._fields)}: make it again with "
                "python -m specdec_lib stopping"
            )
        kinds: dict[str, Callable[[str], Any]] = {
            **dict.fromkeys(("temperature", "value", "low", "high", "least", "most"), lambda t: float(t or "nan")),
            **dict.fromkeys(("parameters", "prompts", "outputs"), int),
        }
        return [Row(*(kinds.get(name, str)(text) for name, text in zip(fields, row, strict=True))) for row in reader]


def values(
    rows: Sequence[Row],
    drafts: Sequence[str],
    path: Path | None = None,
) -> dict[str, Any]:
    """What the chapter records of the file, by name; "not available" where it has no such row.

    Parameters
    ----------
    rows : sequence of Row
    drafts : sequence of str
        The drafts that the recipe of the pocket models knows; the first is the one that is recorded.
    path : Path, optional
        Of the file.
    """
    path = path or RESULTS
    made = json.loads(path.with_suffix(".json").read_text(encoding="utf-8")) if rows else {}
    known = {(row.draft, row.temperature, row.set, row.quantity): row.interval for row in rows}
    own = drafts[0]
    counts = {
        how: [r.prompts for r in rows if r.draft == own and r.set in SETS and bool(r.temperature) == hot] or [0]
        for how, hot in (("greedy", False), ("sampled", True))
    }
    hottest = max((row.temperature for row in rows), default=0.0)

    def greedy(name: str, quantity: str) -> Interval | str:
        return known.get((own, 0.0, name, quantity), "not available")

    def sampled(name: str, quantity: str) -> Interval | str:
        return known.get((own, hottest, name, quantity), "not available") if hottest else "not available"

    found: dict[str, Any] = {
        f"{key}_{name}_{how}": value
        for name in SETS
        for key, quantity in (
            ("head_speedup_pp", "speed-up, SpecDec++"),
            ("head_pp_over_fixed", "over fixed K"),
            ("head_pp_over_confidence", "over confidence"),
        )
        for how, value in (
            ("greedy", greedy(name, quantity)),
            ("sampled", sampled(name, quantity)),
        )
    }
    found |= {f"head_agreement_{name}_minus_{INSIDE}": greedy(name, AGREEMENT) for name in SETS if name != INSIDE}
    found |= {
        "head_transfer_least": greedy(ALL, setting_choices.TRANSFER),
        "head_weight_over_equal": greedy(INSIDE, setting_choices.WEIGHT),
        "head_mixing_over_none": greedy(INSIDE, setting_choices.MIXTURE),
    }
    return found | {
        **by_size(rows, drafts),
        "head_fixed_transfer_sampled": sampled(ALL, GREEDY_LENGTH),
        "sampled_accepted_cold": known[own, 0.0, "editing", "acceptance"].value if rows else 0.0,
        "sampled_accepted_hot": known[own, hottest, "editing", "acceptance"].value if rows else 0.0,
        **{f"{how}_prompts": max(found) for how, found in counts.items()},
        **{f"{how}_prompts_least": min(found) for how, found in counts.items()},
        "sampled_heads": made["provenance"]["parameters"]["head_seeds"] if made else 0,
        "sampled_minutes": made["seconds"] / 60 if made else 0.0,
        "sampled_drafts": len({row.draft for row in rows}),
        "sampled_coolest": min((row.temperature for row in rows if row.temperature), default=0.0),
        "sampled_hottest": hottest,
        **{f"sampled_k_{name}": best_length(rows, own, hottest, name) for name in SETS},
        **{
            f"said_study_over_{key}_{name}": _words(greedy(name, f"over {policy}"), ".3f")
            for key, policy in (("fixed", "fixed K"), ("confidence", "confidence"))
            for name in SETS
        },
        **{f"sampled_gain_{name}": _words(sampled(name, "over fixed K")) for name in SETS},
        **{f"said_sampled_over_confidence_{name}": _words(sampled(name, "over confidence"), ".3f") for name in SETS},
    }


def _words(ratio: Interval | str, digits: str = ".2f") -> str:
    """A ratio with its interval; "not available" stays."""
    return ratio if isinstance(ratio, str) else format(ratio, digits)


def is_of(target: PreTrainedModel, draft: PreTrainedModel, name: str, path: Path | None = None) -> bool:
    """Whether the study was made with these weights; ``name`` is that of the draft."""
    made = json.loads((path or RESULTS).with_suffix(".json").read_text(encoding="utf-8"))
    return (made["target"], made["drafts"].get(name)) == (fingerprint(target), fingerprint(draft))


def best_length(rows: Sequence[Row], draft: str, temperature: float, name: str) -> int | str:
    """The best K of the paper's grid on one set; "not available" where the rows have none."""
    for row in rows:
        if (row.draft, row.temperature, row.set, row.quantity) == (draft, temperature, name, "speed-up, fixed K"):
            return int(row.setting.removeprefix("K = "))
    return "not available"


def by_size(rows: Sequence[Row], drafts: Sequence[str]) -> dict[str, Any]:
    """What the chapter says of drafts of several sizes on the set that heads are trained on, by name; "not available" where
    the rows have no such draft. ``gain`` is greedy, ``gain_warm`` and ``gain_hot`` are at the least and the highest
    temperature above zero."""
    sampled = sorted({row.temperature for row in rows if row.temperature})
    found: dict[str, Any] = {}
    for name in drafts:
        own = {r.quantity: r for r in rows if (r.draft, r.temperature, r.set) == (name, 0.0, INSIDE)}
        values: dict[str, Any] = dict.fromkeys(
            ("millions", "accepted", "lead", "gain", "gain_warm", "gain_hot"), "not available"
        )
        if own:
            values |= {
                "millions": own["acceptance"].parameters / 1e6,
                "accepted": own["acceptance"].value,
                "lead": f"{own['AUC, head less confidence'].interval:.3f}",
                "gain": f"{own['over any fixed K'].interval:.2f}",
            }
            hot = {
                r.temperature: f"{r.interval:.2f}"
                for r in rows
                if (r.draft, r.set, r.quantity) == (name, INSIDE, "over any fixed K")
            }
            if sampled:
                values |= {
                    key: hot.get(t, "not available")
                    for key, t in (("gain_warm", sampled[0]), ("gain_hot", sampled[-1]))
                }
        found |= {f"sizes_{name}_{key}": value for key, value in values.items()}
    return found
