"""``python -m specdec_lib known-answers``: replay methods that copy on recorded answers and human edits, for chapter 4.

Reads the published data sets (``SPECDEC_DATASETS``) and writes two tables: every answer's passes by rule, and the words of
the prompts of PLD+'s five tasks.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from specdec_lib import paths
from specdec_lib.chapters.ch04_pld_plus import known_answers
from specdec_lib.commands import exit_status
from specdec_lib.decoding.contract import Capture
from specdec_lib.drafters import PromptLookupHidden
from specdec_lib.experiments import input_guided, result_files
from specdec_lib.experiments.recorded_runs import load_pair, record_prompts
from specdec_lib.experiments.tasks import load_task
from specdec_lib.models.fingerprint import fingerprint
from specdec_lib.report.display import provenance


def build_parser() -> argparse.ArgumentParser:
    """The options of the command."""
    parser = argparse.ArgumentParser(
        prog="python -m specdec_lib known-answers",
        description=__doc__,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--answers", type=int, default=200, help="at most this many of each set")
    parser.add_argument("--target", default="pocket", help="the model that reads them: pocket, a directory, a hub name")
    parser.add_argument("--layer", type=int, default=-1, help="of PLD+ (h); -1: the best on prompts made for it")
    parser.add_argument(
        "--out",
        type=Path,
        default=(paths.DATA if paths.ROOT else Path("_build")) / "results" / "pld_plus",
        help="folder to write to",
    )
    return parser


def _words() -> list[dict[str, object]]:
    rows = []
    for task, name in input_guided.PUBLISHED.items():
        whole = "xatu" if name.startswith("xatu/") else name  # the paper asks for all of its sources
        prompts = load_task(whole, **({"style": "pld+"} if whole in ("xatu", "codeeditorbench") else {}))
        words = known_answers.prompt_words(prompts)
        rows.append({"task": task, "set": whole, "prompts": len(prompts), **words._asdict()})
    return rows


def _run(options: argparse.Namespace) -> None:
    if options.answers < 1:
        raise ValueError(f"--answers is {options.answers}; expected 1 or more")
    about = provenance.of_command(
        f"known-answers --answers {options.answers} --target {options.target} --layer {options.layer}"
    )
    words = _words()  # first: a folder of data sets that is not there is named at once
    model, _, tokenizer = load_pair(options.target, options.target)
    layers, layer = range(model.config.get_text_config(decoder=True).num_hidden_layers + 1), options.layer
    if layer < 0:
        prompts = input_guided.calibration_prompts(input_guided.CALIBRATION, 8)
        tuning = record_prompts(model, tokenizer, prompts, None, 96, Capture(tuple(layers)))
        layer = input_guided.best_layer(tuning, lambda i: PromptLookupHidden(i, known_answers.LENGTHS[0]), layers)
    rows = []
    for name in known_answers.SETS:
        rows += known_answers.measure(name, model, tokenizer, layer, options.answers, known_answers.SETS)
        print(f"{name}: {sum(row['set'] == name for row in rows)} answers", flush=True)
    states = {"layer": str(layer), "target": fingerprint(model)}  # whose states chose the occurrences
    result_files.write(options.out / "known_answers.csv", rows, about | states)
    result_files.write(options.out / "prompt_words.csv", words, about)
    print(f"written to {options.out}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status.

    Parameters
    ----------
    argv : sequence of str, optional
        Words of the command line after ``known-answers``.
    """
    options = build_parser().parse_args(argv)
    return exit_status(lambda: _run(options), "interrupted; nothing was written")
