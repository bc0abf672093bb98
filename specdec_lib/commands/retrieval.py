"""``python -m specdec_lib retrieval``: the retrieval experiments of chapter 3 that take the public sets or an hour."""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
from tqdm.auto import tqdm

from specdec_lib import paths
from specdec_lib.chapters.ch03_dense_vs_sparse_retrieval import dense_at_scale, recorded_chats, rest_at_scale
from specdec_lib.commands import exit_status
from specdec_lib.decoding.contract import LAST, Capture
from specdec_lib.decoding.sampling import Sampling
from specdec_lib.experiments import recorded_runs, stores
from specdec_lib.experiments.tasks import load_task
from specdec_lib.files import replacing, write_atomic
from specdec_lib.models.fingerprint import fingerprint
from specdec_lib.models.loading import load_model
from specdec_lib.report.display import provenance

#: Kinds of recorded outputs, and what is said of the origin of rows.
KINDS = ("chat", "code")
_ORIGIN = ("command", "date", "commit")


def write_counts(folder: Path, name: str, rows: Iterable[dict[str, Any]], command: Sequence[str], **more: Any) -> None:
    """Write rows as ``<name>.csv.gz``, and where they come from as ``<name>.json`` next to it."""
    frame = pd.DataFrame(rows).round(2)
    folder.mkdir(parents=True, exist_ok=True)
    with replacing(folder / f"{name}.csv.gz") as aside:
        aside.write_bytes(gzip.compress(frame.to_csv(index=False, lineterminator="\n").encode(), mtime=0))
    known = provenance.collect()
    about = {
        "command": " ".join(["python -m specdec_lib retrieval", *command]),
        **{field: known[field] for field in ("date", "commit", "versions", "machine")},
        **more,
    }
    write_atomic(folder / f"{name}.json", json.dumps(about, indent=1) + "\n")
    print(f"written to {folder}: {name}, {len(frame):,} rows")


def _kept(folder: Path, name: str, kinds: Sequence[str]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Rows of a file that are of other kinds than are run now, and where each of them comes from."""
    if not (folder / f"{name}.csv.gz").is_file():
        return [], []
    frame, about = pd.read_csv(folder / f"{name}.csv.gz"), json.loads((folder / f"{name}.json").read_text("utf-8"))
    frame = frame[~frame.kind.isin(kinds)]
    earlier = about.get("kept", [])
    own = sorted(set(KINDS).difference(*(origin["kinds"] for origin in earlier)))
    origins = [*earlier, {"kinds": own, **{field: about[field] for field in _ORIGIN}}]
    left = [origin | {"kinds": [kind for kind in origin["kinds"] if kind not in kinds]} for origin in origins]
    return frame.to_dict("records"), [origin for origin in left if origin["kinds"]]


def _rest(options: argparse.Namespace, words: Sequence[str]) -> None:
    cases = [case for case in recorded_chats.cases(options.limit, options.packages) if case.kind in options.kinds]
    tokenizer = load_model("pocket", "cpu")[1]
    authors = {name: list(interval) for name, interval in rest_at_scale.authors_run().items()}
    sizes = options.sizes or (*rest_at_scale.SIZES, *(rest_at_scale.LARGE_SIZES if options.packages else ()))
    varied = [case for case in cases if case.name in rest_at_scale.VARIED]
    work = [(rest_at_scale.case_counts, case) for case in cases]
    work += [(rest_at_scale.variant_counts, case) for case in varied]
    rows, kept = _kept(options.out, "retrieval_rest", options.kinds)
    more = {"kept": kept} if kept else {}
    for counts, case in tqdm(work, desc="recorded outputs"):
        rows += counts(case, tokenizer, sizes)
        write_counts(options.out, "retrieval_rest", rows, words, authors=authors, **more)


#: Prompts that are replayed, and stores of answers are of: continuing code, and two kinds of editing.
TASKS = ("code-completion", "rename", "replace-word")
#: DReSD's two ways of decoding. A prompt is sampled with three seeds; stores of answers take the first.
WAYS = {"greedy": [None], "nucleus": [Sampling(temperature=0.7, top_p=0.95, seed=seed) for seed in range(3)]}
#: Tokens of a stored prompt with its answer, at least.
DOCUMENT = 180
#: Tokens that stores of answers are asked for at most; they get somewhat more. The target has to write one of them.
ANSWERED = 200_000


def _recorded(model: Any, tokenizer: Any, tasks: Sequence[str], count: int) -> dict[str, list[recorded_runs.Recording]]:
    prompts = [prompt for task in tasks for prompt in load_task(task, limit=count)]
    record = partial(recorded_runs.record_prompts, max_new_tokens=128, capture=Capture(layers=(LAST,)))
    return {
        way: [recording for sampling in samplings for recording in record(model, tokenizer, prompts, sampling)]
        for way, samplings in WAYS.items()
    }


def _dresd(options: argparse.Namespace, words: Sequence[str]) -> None:
    model, _, tokenizer = recorded_runs.load_pair("pocket", "pocket-draft", "cpu", "float32")
    sizes = options.sizes or dense_at_scale.SIZES
    each = -(-min(max(sizes), ANSWERED) // (DOCUMENT * len(TASKS)))

    def answers(writer: Any) -> Any:
        asked = [prompt for task in TASKS for prompt in load_task(task, limit=each, split="train", seed=1)]
        return dense_at_scale.answer_store(writer, tokenizer, asked)

    made = {
        "packages": lambda: stores.text_store("packages", tokenizer, max(sizes)),
        "stdlib": lambda: stores.text_store("stdlib", tokenizer, max(sizes)),
        "right answers": lambda: answers(None),
        "own": lambda: answers(model),
    }
    recorded = _recorded(model, tokenizer, TASKS, options.limit or 40)
    rows: list[dict[str, Any]] = []
    for name in tqdm(made, desc="stores"):
        rows += dense_at_scale.size_counts(model, made[name](), recorded, sizes, store=name)
        write_counts(options.out, "retrieval_dresd", rows, words, target=fingerprint(model))


def _alignment(options: argparse.Namespace, words: Sequence[str]) -> None:
    model, draft, tokenizer = recorded_runs.load_pair("pocket", "pocket-draft", "cpu", "float32")
    count = options.limit or 100
    kind, other = (load_task(task, limit=count, split="train", seed=1) for task in TASKS[:2])
    recorded = _recorded(model, tokenizer, TASKS[:1], count)
    written = {way: samplings[0] for way, samplings in WAYS.items()}
    rows = list(dense_at_scale.alignment_counts(model, draft, tokenizer, recorded, kind, other, written))
    marks = {"target": fingerprint(model), "draft": fingerprint(draft)}
    write_counts(options.out, "retrieval_alignment", rows, words, documents=count, **marks)


#: What the command runs, by name.
RUNS = {"rest": _rest, "dresd": _dresd, "alignment": _alignment}


def build_parser() -> argparse.ArgumentParser:
    """The options of the command."""
    parser = argparse.ArgumentParser(prog="python -m specdec_lib retrieval", description=__doc__)
    parser.add_argument(
        "what",
        choices=tuple(RUNS),
        help="rest: recorded outputs of large models, with SPECDEC_DATASETS; dresd: dense and sparse retrieval on stores "
        "of growing size; alignment: on eight stores that differ in whose text they hold",
    )
    parser.add_argument(
        "--out", type=Path, default=paths.DATA / "results" / "cpu", help="folder (default: data/results/cpu)"
    )
    parser.add_argument(
        "--sizes",
        type=int,
        nargs="+",
        help="tokens stored (default: those of the chapter); of dresd, stores of answers have about "
        f"{ANSWERED:,} at most",
    )
    parser.add_argument(
        "--packages",
        type=Path,
        nargs="+",
        default=[],
        metavar="FOLDER",
        help="of rest: folders of wheels whose Python files are stored with those of the installed packages, up to "
        f"{max(rest_at_scale.LARGE_SIZES):,} tokens",
    )
    parser.add_argument(
        "--kinds",
        nargs="+",
        choices=KINDS,
        default=list(KINDS),
        help="of rest: kinds of recorded outputs that are replayed; rows of others stay as they are (default: both)",
    )
    parser.add_argument("--limit", type=int, help="outputs of each model, or prompts of each task (default: chapter's)")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    words = sys.argv[2:] if argv is None else list(argv)
    options = build_parser().parse_args(words)
    return exit_status(lambda: RUNS[options.what](options, words), "interrupted; nothing was written")
