"""The README's table of chapters and its figure "What reproduces", from the executed notebooks.

Executed notebooks are not committed. The few values that the README shows are: ``data/results/cpu/key_results.json``
holds them with where they come from. The README's marked blocks and the figure are made from that file, and from the committed
studies of chapters 5 and 8.
"""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from string import Formatter
from typing import Any, NamedTuple

import nbformat

from specdec_lib import files, paths
from specdec_lib.experiments.statistics import Interval
from specdec_lib.report.build import rerun
from specdec_lib.report.build.params import UsageError
from specdec_lib.report.build.runner import METADATA
from specdec_lib.report.claims import ledger, pictures, rules, second_run
from specdec_lib.report.claims.ledger import HeadlineRow, Mark
from specdec_lib.report.display.record import recorded, timed_names

BEGIN, END = "<!-- made by `make readme`: begin -->", "<!-- made by `make readme`: end -->"
TIME_BEGIN, TIME_END = "<!-- made by `make readme`, time: begin -->", "<!-- made by `make readme`, time: end -->"

#: Two ends of an interval as they are printed.
_PRINTED = re.compile("\\((-?[0-9.]+)\u2060–\u2060([0-9.]+)\\)")


class Compared(NamedTuple):
    """A sentence of a key result: ``before``, then those ``parts`` whose printed interval holds no 1, then ``after``, then the
    names of the parts that are not resolved.

    Every interval in a part is a ratio, so 1 is no difference. A sentence without resolved parts is left out as a whole.
    """

    before: str
    parts: Mapping[str, str]
    after: str = ""


def _times(*parts: str) -> dict[str, str]:
    """Parts such as ``PLD {speedup}``, "times" after each, by what stands before the number."""
    return {part.partition(" {")[0]: f"{part} times" for part in parts}


# By notebook: the question, and the key result with the recorded values in it.
CHAPTERS: dict[str, tuple[str, tuple[str | Compared, ...]]] = {
    "01_speculative_decoding": (
        "What does speculation save, and does it change the text?",
        (
            "Of {lossless_prompts:,d} outputs compared with plain decoding, {lossless_unexplained:,d} differ in a way that "
            "rounding does not explain",
            Compared(
                "Tokens per forward pass, where plain decoding has 1:",
                {
                    "PLD on editing": "PLD {rate_pld_editing} on editing",
                    "PLD on code": "{rate_pld_code} on code, {rate_pld_code_unlooped} without outputs that end in a loop",
                    "SpecDec on editing": "SpecDec {rate_specdec_editing} on editing",
                    "SpecDec on code": (
                        "{rate_specdec_code} on code, {rate_specdec_code_unlooped} without outputs that end in a loop"
                    ),
                },
            ),
        ),
    ),
    "02_datastore_construction": (
        "What does a datastore cost, and how fast is it searched?",
        ("{sparse_bytes:.1f} bytes a token for exact matches, {dense_bytes:.0f} for nearest neighbours",),
    ),
    "03_dense_vs_sparse_retrieval": (
        "Exact match or nearest neighbours: REST or DReSD?",
        (
            Compared(
                "On the same text DReSD emits",
                {
                    "REST": "{said_ratio_rest} times as many tokens per forward pass as REST",
                    "REST from one token on": "{said_ratio_rest_from_1} times as many as REST that accepts matches of one token",
                },
            ),
        ),
    ),
    "04_pld_plus": (
        "Does the model know where to copy from?",
        (
            Compared(
                "Tokens per forward pass of PLD+ (h), the variant that reads hidden states, over those of PLD with partial drafts:",
                {
                    "{plus_k:,d} tokens against {equal_k:,d}": (
                        "{t0_h_over_pldt_all:.2f} times where PLD+ drafts {plus_k:,d} tokens and PLD {equal_k:,d}"
                    ),
                    "where both draft {equal_k:,d}": "{equal0_h_over_pldt_all:.2f} times where both draft {equal_k:,d}",
                    "where both draft {plus_k:,d}": "{k70_h_over_pldt_all:.2f} times where both draft {plus_k:,d}",
                },
            ),
        ),
    ),
    "05_specdec_pp": (
        "When should a draft stop?",
        (
            Compared(
                "Throughput with SpecDec++'s acceptance head over the best fixed draft length of the paper's grid:",
                {
                    "on editing": "{over_fixed_editing:.3f} times on editing",
                    "on code": "{over_fixed_code:.3f} times on code",
                    "on prose": "{over_fixed_prose:.3f} times on prose",
                },
            ),
            Compared(
                "Over stopping by the draft model's own confidence:",
                {
                    "on editing": "{over_confidence_editing:.3f} times on editing",
                    "on code": "{over_confidence_code:.3f} times on code",
                    "on prose": "{over_confidence_prose:.3f} times on prose",
                },
            ),
            "Greedy, on {study_prompts:,d} prompts",
        ),
    ),
    "06_gpu_benchmarks": (
        "How much time does it save, at the cost of a wider model?",
        (
            Compared(
                "At the cost of a {shape} shape ({dtype}, {threads} threads of a processor):",
                _times(
                    "PLD+ (h) {said_composed_h}",
                    "PLD {said_composed_pld}",
                    "SpecDec {said_composed_specdec}",
                    "REST {said_composed_rest}",
                ),
                "as fast as plain decoding",
            ),
        ),
    ),
    "07_other_systems": (
        "How do the other systems of the papers' tables compare, with one verifier for all?",
        (
            Compared(
                "At the prices of passes on the machine of the run, in their published shapes:",
                _times(
                    "PLD {paid_pld}",
                    "PLD+ (h) {paid_h}",
                    "EAGLE {paid_eagle}",
                    "Hydra {paid_hydra}",
                    "Medusa {paid_medusa}",
                    "REST {paid_rest}",
                    "Lookahead {paid_lookahead}",
                ),
                "as fast as plain decoding",
            ),
            "The heads of EAGLE, Hydra and Medusa learned from a few hundred answers",
        ),
    ),
    "08_one_tree": (
        "Can one draft hold what every source proposes, and size itself?",
        (
            Compared(
                "All tasks mixed, compared with the best single source at its best size in hindsight:",
                {
                    "at a GPU's prices": "{mixed_gpu_text} times as fast at a GPU's prices of a pass",
                    "at a processor's prices": "{mixed_cpu_text} times at a processor's",
                    "on a loaded server": "{mixed_server_text} times on a loaded server",
                },
            ),
            "Of {marks:,d} marks that were set for it, {marks_met:,d} are met and {marks_unresolved:,d} are not resolved. "
            "{marks_missed}. The hindsight bound is the best that any choice among the same drafts could reach",
        ),
    ),
    "A1_pocket_models": (
        "Which models is this measured on, and what can they do?",
        (
            "The draft agrees with the target at {agreement:.0%} of the positions; {looped_share:.0%} of the outputs end "
            "in a loop",
        ),
    ),
}

#: Instead of a result.
NOT_RUN = "no run of the default profile is recorded yet"
NOT_DECIDED = "no interval excludes that there is no difference"

#: Prices of a pass by their name.
_WHERE = {"gpu": "at a GPU's prices", "cpu": "at a processor's prices", "server": "on a loaded server"}


def studied() -> dict[str, dict[str, Any]]:
    """Return by notebook the values that come from committed studies, which have more prompts than the notebook.

    Chapter 5 has the factors of SpecDec++ at temperature 0, and chapter 8 the verdicts on its marks.

    Raises
    ------
    KeyError
        A study has no such row.
    """
    from specdec_lib.chapters.ch08_one_tree import marks

    with (paths.DATA / "results" / "cpu" / "stopping.csv").open(encoding="utf-8", newline="") as file:
        greedy = [row for row in csv.DictReader(file) if row["draft"] == "draft" and not float(row["temperature"])]
    factors = {
        (row["set"], row["quantity"]): Interval(*(float(row[end] or "nan") for end in ("value", "low", "high")))
        for row in greedy
    }
    stopping: dict[str, Any] = {
        f"over_{key}_{name}": factors[name, f"over {policy}"]
        for key, policy in (("fixed", "fixed K"), ("confidence", "confidence"))
        for name in ("editing", "code", "prose")
    }
    stopping["study_prompts"] = next(int(row["prompts"]) for row in greedy if row["set"] == "all")
    judged = marks.judged(marks.read().rows)
    verdicts = Counter(row["verdict"] for row in judged)
    missed = [
        f"{row['mark']}, {row['answers']}, {_WHERE[row['prices']]}: {row['ratio']:.3f}, the mark is {marks.MARKS[row['mark']]:.2f}"
        for row in judged
        if row["verdict"] == "missed"
    ]
    one_tree = {
        "marks": len(judged),
        "marks_met": verdicts["met"],
        "marks_unresolved": verdicts["not resolved"],
        "marks_missed": f"Missed: {'; '.join(missed)}" if missed else "None is missed",
    }
    return {"05_specdec_pp": stopping, "08_one_tree": one_tree}


def _templates(result: Sequence[str | Compared]) -> list[str]:
    """Every text of a result."""
    return [
        text
        for one in result
        for text in ([one] if isinstance(one, str) else [one.before, *one.parts, *one.parts.values(), one.after])
    ]


def wanted() -> dict[str, list[str]]:
    """Return the recorded values that the README needs, by notebook; those of a study are not recorded."""
    studies = studied()
    return {
        notebook: [
            name
            for text in _templates(result)
            for _, name, _, _ in Formatter().parse(text)
            if name and name not in studies.get(notebook, {})
        ]
        for notebook, (_, result) in CHAPTERS.items()
    }


def decides(text: str) -> bool:
    """Whether every interval that a text prints lies on one side of 1."""
    return all(not float(low) <= 1 <= float(high) for low, high in _PRINTED.findall(text))


def said(result: Sequence[str | Compared], values: Mapping[str, Any]) -> str:
    """Return a key result in words: its sentences with the numbers that the intervals decide, and the names of the others."""
    sentences = []
    for one in result:
        if isinstance(one, str):
            sentences.append(one.format(**values))
            continue
        parts = {name.format(**values): part.format(**values) for name, part in one.parts.items()}
        resolved = [part for part in parts.values() if decides(part)]
        if resolved:
            unresolved = [name for name, part in parts.items() if not decides(part)]
            note = f"(not resolved: {'; '.join(unresolved)})" if unresolved else ""
            sentences.append(
                " ".join(filter(None, [one.before.format(**values), "; ".join(resolved), one.after, note]))
            )
    return ". ".join(sentences) or NOT_DECIDED


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


def turned() -> str:
    """Return the sentence on the claims that get two verdicts from two runs with different seeds.

    Raises
    ------
    ClaimError
        The verdicts of the second run cannot be read.
    """
    if not second_run.FIRST.is_file():
        return "Whether other seeds give the same verdicts on the claims is not known: `make first-run` saves what is compared."
    first, second = map(second_run.load, (second_run.FIRST, second_run.SECOND))
    found = second_run.turned(first, second)
    shared = sum(name in second["claims"] for name in first["claims"])
    stated = {
        claim.id: f"{ledger.PAPERS[claim.paper]}, {claim.where}: *{claim.claim}*" for claim in rules.load_claims()
    }
    rows = "; ".join(f"{stated.get(row.claim, row.claim)} ({row.verdicts[0]}, then {row.verdicts[1]})" for row in found)
    return (
        f"With other seeds, which choose other prompts, {len(found)} of {shared} claims get another verdict"
        f"{f': {rows}' if rows else ''}. The book's page *Claims* has the intervals of both runs."
    )


def verdicts() -> list[str]:
    """Return the sentence on how many claims got which verdict in the first run; nothing where none is saved.

    Raises
    ------
    ClaimError
        The verdicts of the run cannot be read.
    """
    if not second_run.FIRST.is_file():
        return []
    counts = Counter(claim["verdict"] for claim in second_run.load(second_run.FIRST)["claims"].values())
    return [
        f"{ledger.counted(counts)} The book's page *Errata* lists where papers and released code disagree with themselves or with "
        "each other.",
        "",
    ]


def block(results: Mapping[str, Any]) -> str:
    """Return what stands between the marks of the README's table of chapters."""
    chapters, studies = results["chapters"], studied()
    rows = []
    for notebook, (question, parts) in CHAPTERS.items():
        number = notebook.split("_", 1)[0]
        # A chapter added after the values were collected says so until they are collected again.
        known = notebook in chapters
        result = said(parts, _shown(chapters[notebook]["values"]) | studies.get(notebook, {})) if known else NOT_RUN
        result = result.replace("|", "\\|")
        rows.append(f"| [{number}](notebooks/{notebook}.ipynb) | {question} | {result} |")
    lacking = pictures.lacking(headlines(results))
    return "\n".join(
        [
            BEGIN,
            "| Chapter | Question | Key result |",
            "|:--|:--|:--|",
            *rows,
            "",
            *verdicts(),
            turned(),
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


def time_block(results: Mapping[str, Any]) -> str:
    """Return what stands between the marks of the README's sentence on the time of the run."""
    minutes = rerun.minutes(one["span"] for one in results["chapters"].values())
    machine = next(iter(results["chapters"].values()))["machine"]
    return "\n".join(
        [
            TIME_BEGIN,
            f"The run whose numbers stand in this README executed all notebooks in {minutes:.0f} minutes (profile `default`, "
            f"{machine['processor']}, {machine['cores']} cores). Rendering the pages comes on top.",
            TIME_END,
        ]
    )


def put(text: str, *inner: str) -> str:
    """Return a README with each of ``inner``, which begins and ends with its marks, in the place of what has these marks.

    Raises
    ------
    UsageError
        The marks are missing.
    """
    for one in inner:
        begin, *_, end = one.splitlines()
        before, there, rest = text.partition(begin)
        _, closed, after = rest.partition(end)
        if not there or not closed:
            raise UsageError(f"the README lacks the lines {begin!r} and {end!r}")
        text = before + one + after
    return text


def blocks(results: Mapping[str, Any]) -> tuple[str, str]:
    """Return all that the README has of a run."""
    return time_block(results), block(results)


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
    return results / paths.KEY_RESULTS.name, drawings, root / "README.md"


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
    if put(text, *blocks(committed)) != text:
        faults.append("the README is not what key_results.json says: make readme")
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
    renewed = put(readme.read_text(encoding="utf-8"), *blocks(results))
    files.write_atomic(values, json.dumps(results, indent=1, ensure_ascii=False) + "\n")
    for name, svg in pictures.reproduces_alone(headlines(results)).items():
        files.write_atomic(drawings[name], svg + "\n")
    files.write_atomic(readme, renewed)
    return [values, *drawings.values(), readme]
