"""What systems that learn while they decode gain by it, a row for each output: warm, as their authors run them, and cold.

Warm means one run over all prompts of a task in order, in which a system keeps what it learned; cold means that it forgets after
each output. Lookahead's pool is emptied for each prompt in its released code, so it has cold rows alone. SuffixDecoding is replayed
on the recorded answers; the others depend on what the target says to rejected tokens, and decode for real. The target decodes with
the 4 bits of its file, where wide passes are cheaper. Rows of each system, task and state are kept in a folder, and are not made
again.
"""

from __future__ import annotations

import sys
from datetime import date
from itertools import product
from pathlib import Path
from typing import Annotated, Literal

import pandas as pd
import typer
from own_answers import unpack

from specdec_lib import load_model, paths
from specdec_lib.commands import options
from specdec_lib.decoding.contract import Drafter
from specdec_lib.drafters import Lookahead, SamDecoding, SuffixDecoding, TokenRecycling
from specdec_lib.experiments.data import prompts
from specdec_lib.experiments.data.stores import document_store
from specdec_lib.experiments.runs import results, row_files
from specdec_lib.experiments.runs.recorded_runs import STATES, runs_of
from specdec_lib.experiments.runs.recordings import record_once
from specdec_lib.experiments.workbench import companions
from specdec_lib.models.fingerprint import fingerprint
from specdec_lib.report.display import provenance

SYSTEMS = ("SuffixDecoding", "SuffixDecoding, chains", "Token Recycling", "SAM-Decoding", "SAM-Decoding, own answers")
SYSTEMS += ("Lookahead", "Lookahead, prompt")
TASKS = ("conversation", "code completion", "code editing", "summarisation")


def main(
    target: Literal["smollm2", "pocket"] = "smollm2",
    system: Annotated[list[str] | None, options.choice(SYSTEMS, "may be repeated (default: all)")] = None,
    task: Annotated[list[str] | None, options.choice(TASKS, "may be repeated (default: all)")] = None,
    per_task: Annotated[int, options.whole_number("of each task", 1, "--prompts")] = 24,
    max_new_tokens: options.NewTokens = 256,
    kept: Annotated[Path, options.folder("of what is finished")] = Path("_build/learning"),
    out: Annotated[Path, options.folder("of the rows")] = paths.DATA / "rows",
) -> None:
    """Run systems that learn over prompts in order, warm and cold."""
    model, tokenizer = load_model(target, "cpu", "file" if target == "smollm2" else "float32")
    recordings = {
        one: record_once(model, tokenizer, prompts.load("report", [one], per_task), None, max_new_tokens)
        for one in task or TASKS
    }

    def drafter(name: str) -> Drafter:
        if name == "SAM-Decoding, own answers":
            texts = [[*row["prompt"], *row["answer"]] for row in unpack(companions(model) / "answers.npz")]
            return SamDecoding(store=document_store("own-answers", texts, tokenizer))
        first, _, variant = name.partition(", ")
        return {
            "SuffixDecoding": lambda: SuffixDecoding(chains=bool(variant)),
            "Token Recycling": TokenRecycling,
            "SAM-Decoding": SamDecoding,
            "Lookahead": lambda: Lookahead(prompt=bool(variant)),
        }[first]()

    about = {
        "models": {"target": fingerprint(model)},
        "stores": {},
        "key": ["state"],
        "date": str(date.today()),
        "command": f"python scripts/learning_rows.py {' '.join(sys.argv[1:])}",
        "commit": provenance.commit(),
        "machine": provenance.machine(),
    }
    for folder in (kept, out):
        folder.mkdir(parents=True, exist_ok=True)
    for (one, recorded), name in product(recordings.items(), system or SYSTEMS):
        for state in STATES if not name.startswith("Lookahead") else ("cold",):
            part = f"{name}-{one}-{state}-{per_task}-{max_new_tokens}".replace(",", "").replace(" ", "-")
            if row_files.read_if_made(part, kept, target=model) is None:
                runs = {name: runs_of(model, recorded, drafter(name), state)}
                rows = results.table(recorded, runs).assign(state=state, commit=provenance.commit()[:12])
                row_files.write(part, rows, about, kept)
                print(f"{name}, {one}, {state}: {len(rows)} outputs", flush=True)
    names = sorted(path.name.removesuffix(".csv.gz") for path in kept.glob(f"*-{per_task}-{max_new_tokens}.csv.gz"))
    parts = [part for name in names if (part := row_files.read_if_made(name, kept, target=model)) is not None]
    row_files.write("learning", pd.concat(parts, ignore_index=True), about, out)


if __name__ == "__main__":
    typer.run(main)
