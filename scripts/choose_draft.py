"""Time the drafts that train_draft.py made, and ship the fastest: SpecDec over plain decoding, on prompts for choosing, on a CPU.

Their ``training.json`` gets the factor of seconds with its 95 % interval over prompts. Those that are not shipped leave theirs.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Annotated

import pandas as pd
import typer

from specdec_lib import files, load_model, paths
from specdec_lib.commands import options
from specdec_lib.experiments.costs.timing import AFTER_PREFILL, race
from specdec_lib.experiments.data import prompts
from specdec_lib.experiments.runs.results import ratio
from specdec_lib.experiments.workbench import ModelPair
from specdec_lib.methods import PLAIN
from specdec_lib.models.gguf import NAMES


def main(
    drafts: Annotated[Path, options.folder("of the drafts")] = Path("_build/companions/drafts"),
    count: Annotated[int, options.whole_number("prompts of each task")] = 8,
    tokens: Annotated[int, options.whole_number("new tokens of each")] = 48,
) -> None:
    """Ship the draft model with which SpecDec decodes SmolLM2 in the least time."""
    target, tokenizer = load_model("smollm2", "cpu")
    asked = prompts.load("choose", ["conversation", "code completion"], count)
    speeds = {}
    for folder in sorted(path.parent for path in drafts.glob("*/training.json")):
        pair = ModelPair(target, load_model(folder, "cpu")[0], tokenizer)
        rows = pd.DataFrame(race(pair, asked, [PLAIN, "SpecDec"], tokens, peers=())[2])
        found = ratio(rows, "SpecDec", PLAIN, AFTER_PREFILL)
        speeds[folder] = found.value
        path = folder / "training.json"
        story = json.loads(path.read_text(encoding="utf-8")) | {"over_plain": [found.value, found.low, found.high]}
        path.write_text(json.dumps(story, indent=1) + "\n", encoding="utf-8")
        print(f"{folder.name}: {found}", flush=True)
    if not speeds:
        raise typer.BadParameter(
            f"{drafts} holds no draft with its training.json; make them: python scripts/train_draft.py"
        )
    best = max(speeds, key=speeds.get)
    with files.scratch(paths.SMOLLM2) as scratch:
        files.swap_in(Path(shutil.copytree(best, scratch / "draft")), paths.SMOLLM2 / "draft", NAMES, marked=False)
    for old in paths.SMOLLM2.glob("draft-*"):
        files.remove(old, ("training.json",), marked=False)
    for other in speeds.keys() - {best}:
        kept = paths.SMOLLM2 / f"draft-{other.name}"
        kept.mkdir()
        shutil.copy(other / "training.json", kept)


if __name__ == "__main__":
    typer.run(main)
