"""``python -m specdec_lib stopping``: SpecDec++ on many prompts, greedy and sampled, for chapter 5.

Writes stopping.csv, and stopping.json with where it comes from, after each draft and temperature. What the file has of the same
models and options is not measured again. All temperatures of the first draft take about 20 minutes on two cores, those of
each further draft, for which fewer prompts are sampled, about 15.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from specdec_lib import paths
from specdec_lib.chapters.a1_pocket_models.training import DRAFTS
from specdec_lib.chapters.ch05_specdec_pp import wide_study
from specdec_lib.commands import exit_status
from specdec_lib.experiments.published_numbers import published
from specdec_lib.experiments.recorded_runs import load_pair
from specdec_lib.files import write_atomic
from specdec_lib.heads.acceptance_data import load_data
from specdec_lib.models.fingerprint import fingerprint
from specdec_lib.report.display import provenance


def build_parser() -> argparse.ArgumentParser:
    """The options of the command."""
    plan = wide_study.Plan()
    parser = argparse.ArgumentParser(
        prog="python -m specdec_lib stopping",
        description=__doc__,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--models", type=Path, default=paths.POCKET, help="folder of the target, its drafts and head")
    parser.add_argument("--prompts", type=int, default=plan.prompts, help="of each set, where sampled")
    parser.add_argument(
        "--further-prompts", type=int, default=plan.further_prompts, help="the same, for the drafts after the first"
    )
    parser.add_argument("--greedy-prompts", type=int, default=plan.greedy_prompts, help="of each set, decoded greedily")
    parser.add_argument("--max-new-tokens", type=int, default=plan.tokens)
    parser.add_argument("--temperatures", type=float, nargs="+", default=list(plan.temperatures), help="0 is greedy")
    parser.add_argument("--output-seeds", type=int, default=plan.output_seeds, help="outputs of a prompt where sampled")
    parser.add_argument("--head-seeds", type=int, default=plan.head_seeds, help="training seeds of the head")
    parser.add_argument("--epochs", type=int, default=plan.epochs, help="of each head")
    parser.add_argument("--answers", type=int, default=360, help="recorded answers that heads are trained on")
    parser.add_argument("--output", type=Path, default=wide_study.RESULTS, help="the CSV file")
    return parser


def load_drafts(folder: Path) -> tuple[dict[str, PreTrainedModel], list[str]]:
    """The drafts of the training recipe that a folder has, by name, and the names of those that it lacks."""
    there = [name for name in DRAFTS if (folder / name / "config.json").is_file()]
    drafts = {name: load_pair(folder / "target", folder / name, "cpu", "float32")[1] for name in there}
    return drafts, [name for name in DRAFTS if name not in there]


def asked(options: argparse.Namespace, draft: str, temperature: float) -> dict[str, Any]:
    """The options that the numbers of a draft at a temperature depend on."""
    other = {"models", "output", "temperatures"}
    if temperature:
        other |= {"greedy_prompts", "further_prompts" if draft == DRAFTS[0] else "prompts"}
    else:
        other |= {"prompts", "further_prompts", "output_seeds"}
    return {key: value for key, value in vars(options).items() if key not in other}


def finished(
    options: argparse.Namespace, target: str, drafts: Mapping[str, str]
) -> tuple[list[wide_study.Row], dict[str, Any]]:
    """Rows that the file has of the same target, drafts and options, and how those of each draft and temperature came about.

    Parameters
    ----------
    options : Namespace
        Of the command; the file need not be there.
    target : str
        Fingerprint of the target.
    drafts : mapping
        Fingerprints of the drafts by name.
    """
    about = options.output.with_suffix(".json")
    if not options.output.is_file() or not about.is_file():
        return [], {}
    story = json.loads(about.read_text(encoding="utf-8"))
    rows, made = [], {}
    for row in wide_study.read(options.output):
        how = story["made"].get(part := _part(row.draft, row.temperature))
        same = how and story["target"] == target and how["fingerprint"] == drafts.get(row.draft)
        if same and how["options"] == asked(options, row.draft, row.temperature):
            rows.append(row)
            made[part] = how
    return rows, made


def _part(draft: str, temperature: float) -> str:
    return f"{draft} at {temperature:g}"


def _run(options: argparse.Namespace) -> None:
    plan = wide_study.Plan(
        options.prompts,
        options.greedy_prompts,
        options.max_new_tokens,
        tuple(options.temperatures),
        options.output_seeds,
        options.head_seeds,
        options.epochs,
        further_prompts=options.further_prompts,
    )
    drafts, missing = load_drafts(options.models)
    if DRAFTS[0] not in drafts:
        raise ValueError(f"{options.models} holds no {DRAFTS[0]}; expected a target and its drafts: make pocket")
    for name in missing:
        print(f"{name} is not in {options.models} and is left out; make pocket trains it")
    target, draft, tokenizer = load_pair(options.models / "target", options.models / DRAFTS[0], "cpu", "float32")
    answers = load_data(options.models / "head" / "data", draft)[: options.answers]
    numbers = published("specdec_pp")
    t_draft, t_target, alone = (
        float(numbers[f"specdec-pp-t-{name}"]["value"]) for name in ("draft", "target", "target-alone")
    )
    given = {name: str(value) if isinstance(value, Path) else value for name, value in vars(options).items()}
    marks = {name: fingerprint(model) for name, model in drafts.items()}
    rows, made = finished(options, fingerprint(target), marks)
    for part in made:
        print(f"{part} is measured already, in {options.output}")
    began = time.perf_counter()
    times, known = (t_draft, t_target), list(rows)
    for found in wide_study.measure(target, drafts, tokenizer, answers, plan, times, alone, known):
        rows = sorted([*rows, *found], key=lambda row: (DRAFTS.index(row.draft), row.temperature))
        told = provenance.collect({**given, "models": options.models.name, "output": options.output.name})
        name, temperature = found[0].draft, found[0].temperature
        made[_part(name, temperature)] = {
            "fingerprint": marks[name],
            "options": asked(options, name, temperature),
            "seconds": round(time.perf_counter() - began),
            **{key: told[key] for key in ("date", "commit", "machine")},
        }
        began = time.perf_counter()
        story = {
            "target": fingerprint(target),
            "drafts": {row.draft: marks[row.draft] for row in rows},
            "missing_drafts": missing,
            "seconds_a_pass": {"draft": t_draft, "target": t_target, "target alone": alone},
            "seconds": sum(how["seconds"] for how in made.values()),
            "made": made,
            "provenance": told,
        }
        options.output.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(options.output, wide_study.as_csv(rows))
        write_atomic(options.output.with_suffix(".json"), json.dumps(story, indent=1) + "\n")
    print(f"{options.output} has {len(rows)} numbers, measured in {sum(how['seconds'] for how in made.values())} s")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    options = build_parser().parse_args(argv)
    return exit_status(lambda: _run(options), "interrupted; the temperatures and drafts that were finished are kept")
