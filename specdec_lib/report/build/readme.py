"""The README's table of chapters and its figure "What reproduces", from the executed notebooks.

Executed notebooks are not committed. The few values that the README shows are: ``data/results/cpu/key_results.json``
holds them with where they come from, and the README's marked block and the figure are made from that file alone.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict
from pathlib import Path
from string import Formatter
from typing import Any

import nbformat

from specdec_lib import files
from specdec_lib.experiments.statistics import Interval
from specdec_lib.report.build import rerun
from specdec_lib.report.build.params import UsageError
from specdec_lib.report.build.runner import METADATA
from specdec_lib.report.claims import ledger, pictures
from specdec_lib.report.claims.ledger import HeadlineRow, Mark
from specdec_lib.report.display.record import recorded, timed_names

BEGIN, END = "<!-- made by `make readme`: begin -->", "<!-- made by `make readme`: end -->"

# By notebook: the question, and the key result with the recorded values in it.
CHAPTERS: dict[str, tuple[str, str]] = {
    "01_speculative_decoding": (
        "What does speculation save, and does it change the text?",
        "Of {lossless_prompts:,d} outputs {lossless_unexplained:,d} differ from plain decoding's by more than rounding. "
        "Tokens per forward pass: PLD {rate_pld_editing} on editing and {rate_pld_code} on code, "
        "SpecDec {rate_specdec_editing} and {rate_specdec_code}",
    ),
    "02_datastore_construction": (
        "What does a datastore cost, and how fast is it searched?",
        "{sparse_bytes:.1f} bytes a token for exact matches, {dense_bytes:.0f} for nearest neighbours",
    ),
    "03_dense_vs_sparse_retrieval": (
        "Exact match or nearest neighbours: REST or DReSD?",
        "On the same text DReSD emits {said_ratio_rest} times as many tokens per forward pass as REST, and "
        "{said_ratio_rest_from_1} times as many as REST that accepts matches of one token",
    ),
    "04_pld_plus": (
        "Does the model know where to copy from?",
        "With drafts of {plus_k:,d} tokens PLD+ (h) emits {t0_h_over_pldt_all:.2f} times as many tokens per forward pass as PLD "
        "with partial drafts of {equal_k:,d}; where both draft {equal_k:,d}, {equal0_h_over_pldt_all:.2f} times as many, and where "
        "both draft {plus_k:,d}, {k70_h_over_pldt_all:.2f}",
    ),
    "05_specdec_pp": (
        "When should a draft stop?",
        "Throughput with SpecDec++'s acceptance head, trained here, over the best fixed draft length: "
        "editing {head_gain_pp_fixed_editing:+.1%} ({head_low_pp_fixed_editing:+.1%} to {head_high_pp_fixed_editing:+.1%}), "
        "code {head_gain_pp_fixed_code:+.1%} ({head_low_pp_fixed_code:+.1%} to {head_high_pp_fixed_code:+.1%}), "
        "prose {head_gain_pp_fixed_prose:+.1%} ({head_low_pp_fixed_prose:+.1%} to {head_high_pp_fixed_prose:+.1%}). "
        "Of one that also reads the draft's probability: "
        "editing {head_gain_seeing_fixed_editing:+.1%} ({head_low_seeing_fixed_editing:+.1%} to "
        "{head_high_seeing_fixed_editing:+.1%}), "
        "code {head_gain_seeing_fixed_code:+.1%} ({head_low_seeing_fixed_code:+.1%} to {head_high_seeing_fixed_code:+.1%}), "
        "prose {head_gain_seeing_fixed_prose:+.1%} ({head_low_seeing_fixed_prose:+.1%} to {head_high_seeing_fixed_prose:+.1%})",
    ),
    "06_gpu_benchmarks": (
        "How much time does it save, at the cost of a wider model?",
        "At the cost of a {shape} shape ({dtype}, {threads} threads of a processor): PLD+ (h) {said_composed_h}, "
        "PLD {said_composed_pld}, SpecDec {said_composed_specdec}, REST {said_composed_rest} times as fast as "
        "plain decoding",
    ),
    "07_other_systems": (
        "How do the other systems of the papers' tables compare, behind one verifier?",
        "At the prices of passes on the machine of the run, published shapes: PLD {paid_pld}, PLD+ (h) {paid_h}, EAGLE "
        "{paid_eagle}, Hydra {paid_hydra}, Medusa {paid_medusa}, REST {paid_rest}, Lookahead {paid_lookahead} times as fast as "
        "plain decoding; the heads of EAGLE, Hydra and Medusa learned from a few hundred answers",
    ),
    "08_one_tree": (
        "Can one draft hold what every source proposes, and size itself?",
        "All tasks mixed, compared with the best single source at its best size in hindsight: {mixed_gpu_text} at a GPU's "
        "prices of a pass, {mixed_cpu_text} at a processor's, {mixed_server_text} on a loaded server",
    ),
    "A1_pocket_models": (
        "Which models is this measured on, and what can they do?",
        "The draft agrees with the target at {agreement:.0%} of the positions; {looped_share:.0%} of the outputs end "
        "in a loop",
    ),
}

#: Instead of a result.
NOT_RUN = "no run of the default profile is recorded yet"


def _names(template: str) -> list[str]:
    return [name for _, name, _, _ in Formatter().parse(template) if name]


def wanted() -> dict[str, list[str]]:
    """Return the recorded values that the README needs, by notebook."""
    return {notebook: _names(text) for notebook, (_, text) in CHAPTERS.items()}


def collect(executed: Path) -> dict[str, Any]:
    """Return the values that the README shows, each notebook with its seconds, commit and machine, and the rows of "What
    reproduces".

    Parameters
    ----------
    executed : Path
        Folder of executed notebooks, run with the profile ``default``.

    Raises
    ------
    UsageError, ClaimError
        A notebook is missing, was run with another profile or with parameters of its own, or did not record a value.
    """
    chapters = {}
    for notebook, names in wanted().items():
        path = executed / f"{notebook}.ipynb"
        if not path.is_file():
            raise UsageError(f"{path.name} has not been executed: python -m specdec_lib run")
        content = nbformat.read(str(path), as_version=4)
        facts, values = content.metadata[METADATA], recorded(content)
        changed = sorted(set(facts["provenance"]["parameters"]) - {"profile"})
        if facts["profile"] != "default" or changed:
            raise UsageError(
                f"{path.name} was run with profile {facts['profile']!r}{f', own {changed}' if changed else ''}; "
                "the README shows the default run: python -m specdec_lib run"
            )
        missing = [name for name in names if name not in values]
        if missing:
            raise UsageError(f"{path.name} did not record {', '.join(missing)}")
        origin = facts["provenance"]
        chapters[notebook] = {
            "values": {name: values[name] for name in names},
            "seconds": round(float(facts["seconds"])),
            "span": rerun.span(content),
            "date": origin["date"],
            "commit": origin["commit"],
            "machine": origin["machine"],
            "versions": origin["versions"],
        }
    rows = [asdict(row) for row in ledger.headlines(ledger.whole_ledger(executed))]
    return {"made_by": "python -m specdec_lib readme", "profile": "default", "chapters": chapters, "headlines": rows}


def headlines(results: Mapping[str, Any]) -> list[HeadlineRow]:
    """Return the rows of "What reproduces" that the file of values holds."""
    return [
        HeadlineRow(
            **row
            | {
                "published": row["published"] and tuple(row["published"]),
                "marks": tuple(Mark(**mark) for mark in row["marks"]),
            }
        )
        for row in results["headlines"]
    ]


def _shown(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values, intervals as such."""
    return {name: Interval(**value) if isinstance(value, Mapping) else value for name, value in values.items()}


def block(results: Mapping[str, Any]) -> str:
    """Return what stands between the marks of the README."""
    chapters = results["chapters"]
    rows = []
    for notebook, (question, text) in CHAPTERS.items():
        number = notebook.split("_", 1)[0]
        # A chapter added after the values were collected says so until they are collected again.
        result = text.format(**_shown(chapters[notebook]["values"])) if notebook in chapters else NOT_RUN
        result = result.replace("|", "\\|")
        rows.append(f"| [{number}](notebooks/{notebook}.ipynb) | {question} | {result} |")
    minutes = rerun.minutes(one["span"] for one in chapters.values())
    machine = next(iter(chapters.values()))["machine"]
    lacking = pictures.lacking(headlines(results))
    return "\n".join(
        [
            BEGIN,
            "| Chapter | Question | Key result |",
            "|:--|:--|:--|",
            *rows,
            "",
            f"Profile `default` with the models of this repository, {machine['processor']}, {machine['cores']} cores: "
            f"{minutes:.0f} minutes for all notebooks. Times and speed-ups hold for that machine.",
            *(
                [
                    "",
                    f"Not in the figure, because the runs of this repository have no number for them: {'; '.join(lacking)}.",
                ]
                if lacking
                else []
            ),
            END,
        ]
    )


def put(text: str, inner: str) -> str:
    """Return a README with ``inner`` in the place of its marked block.

    Raises
    ------
    UsageError
        The marks are missing.
    """
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise UsageError(f"the README lacks the lines {BEGIN!r} and {END!r}")
    return before + inner + after


def stale(committed: Mapping[str, Any], now: Mapping[str, Any], timed: Mapping[str, Collection[str]]) -> list[str]:
    """Return the names of committed values that another run does not give, but for those ``timed`` by notebook."""
    faults = [
        f"{notebook}: {name} is {now['chapters'][notebook]['values'].get(name)!r}, committed {value!r}"
        for notebook, one in committed["chapters"].items()
        for name, value in one["values"].items()
        if name not in timed[notebook] and now["chapters"][notebook]["values"].get(name) != value
    ]
    clocked = set().union(*timed.values())

    def untimed(results: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        rows = headlines(results)
        marks = [(row.claim, row.label, mark.name, mark.value) for row in rows for mark in row.marks]
        return [mark for mark in marks if mark[2] not in clocked]

    then, there = untimed(committed), untimed(now)
    return faults + [
        f"headline {row[0]}, {row[1]}: {row[2]} is another, committed {row[3]!r}" for row in then if row not in there
    ]


def _places(root: Path) -> tuple[Path, dict[str, Path], Path]:
    """The file of values, the drawings for a wide page and for a phone, and the README."""
    results = root / "data" / "results" / "cpu"
    drawings = {name: results / f"what-reproduces-{name}.svg" for name in ("wide", "phone")}
    return results / "key_results.json", drawings, root / "README.md"


def check(root: Path) -> list[str]:
    """Return what the committed values and the README's block say that the last run does not, one sentence each.

    Raises
    ------
    UsageError
        The README has no marked block.
    FileNotFoundError
        A notebook has not been executed.
    """
    values, _, readme = _places(root)
    results, text = collect(root / "book" / "notebooks"), readme.read_text(encoding="utf-8")
    committed = json.loads(values.read_text(encoding="utf-8"))
    timed = {name: timed_names(root / "book" / "notebooks" / f"{name}.ipynb") for name in results["chapters"]}
    faults = stale(committed, results, timed)
    if put(text, block(committed)) != text:
        faults.append("the README's table is not what key_results.json says: make readme")
    return faults


def renew(root: Path) -> list[Path]:
    """Write the file of values, the figure and the README's block from the executed notebooks; returns these files.

    Raises
    ------
    UsageError, FileNotFoundError
        As :func:`check`; nothing is written.
    """
    values, drawings, readme = _places(root)
    results = collect(root / "book" / "notebooks")
    renewed = put(readme.read_text(encoding="utf-8"), block(results))
    files.write_atomic(values, json.dumps(results, indent=1, ensure_ascii=False) + "\n")
    for name, svg in pictures.reproduces_alone(headlines(results)).items():
        files.write_atomic(drawings[name], svg + "\n")
    files.write_atomic(readme, renewed)
    return [values, *drawings.values(), readme]
