"""Train what SmolLM2 drafts with, on answers that own_answers.py wrote: Medusa, Hydra, EAGLE, and SpecDec++'s acceptance heads.

The acceptance heads are of the draft model that choose_draft.py ships. They learn from greedy answers, where a drafted token is
accepted if it is the answer's. ``--kind pld+`` chooses PLD+'s layer and heads on the choosing half of the book's prompts.
``--go-on`` trains heads further that draft, on a processor with products in bfloat16. So EAGLE's and Hydra's went on from their
files of commit f658062f: ``--kind eagle --go-on --part 2000 --epochs 3 --rate 2.5e-4``, and ``--kind hydra --go-on --part 2000
--epochs 2 --rate 3.125e-5``. They replace a file only if their held-out loss is less.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from own_answers import unpack
from tqdm import tqdm
from transformers import PreTrainedModel

from specdec_lib import load_model, paths
from specdec_lib.commands import options
from specdec_lib.experiments.workbench import ModelPair
from specdec_lib.heads.acceptance_data import Response, examples
from specdec_lib.heads.draft_training import HeadTraining, Text, mean_loss, train_heads
from specdec_lib.heads.drafting import KINDS, DraftHead, Ends
from specdec_lib.heads.training import Training, train
from specdec_lib.models.draft_vocabulary import draft_vocabulary
from specdec_lib.models.fingerprint import fingerprint

HELD_OUT = 40  # one answer in so many
TOGETHER = 32  # answers that the target reads in one pass
SEEDS = 5  # acceptance heads
ALL = (*KINDS, "acceptance", "pld+")


def repeatable() -> None:
    """Kernels that add in one order, so that a seed gives the same weights; on a GPU products are in TF32."""
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # without it cuBLAS may add in another order each time
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch.backends.cuda.matmul.allow_tf32 = True


@torch.inference_mode()
def texts(target: PreTrainedModel, rows: list[dict]) -> list[Text]:
    """The target's final states of each prompt and answer."""
    found = {}
    order = sorted(range(len(rows)), key=lambda i: len(rows[i]["prompt"]) + len(rows[i]["answer"]))
    for first in tqdm(range(0, len(order), TOGETHER), desc="states"):
        numbers = order[first : first + TOGETHER]
        joined = [torch.from_numpy(np.concatenate([rows[i]["prompt"], rows[i]["answer"]])) for i in numbers]
        ids = torch.nn.utils.rnn.pad_sequence(joined, batch_first=True)
        states = target.model(ids.to(target.device), use_cache=False).last_hidden_state.to(torch.bfloat16).cpu()
        for place, i in enumerate(numbers):
            found[i] = Text(joined[place], states[place, : len(joined[place])].clone(), len(rows[i]["prompt"]))
    return [found[i] for i in range(len(rows))]


def about(began: float, device: torch.device) -> dict[str, Any]:
    """Where and with what something was trained."""
    name = torch.cuda.get_device_name() if device.type == "cuda" else "cpu"
    return {"seconds": round(time.monotonic() - began), "torch": torch.__version__, "device": name}


def to_go_on(path: Path, target: PreTrainedModel, answers: int, settings: HeadTraining) -> DraftHead:
    """A head that learned from these answers; another choice of them would hold out some that it knows."""
    head = KINDS[path.stem].load(path, target).to(target.device)
    before = head.story["answers"], head.story["training"]["seed"]
    if before != (answers, settings.seed):
        sys.exit(f"{path} learned from {before[0]} answers with seed {before[1]}, not {answers} with {settings.seed}")
    return head


def train_drafting(
    kinds: list[str], rows: list[dict], out: Path, device: str, settings: HeadTraining, part: int | None, go_on: bool
) -> None:
    """Heads of some kinds, and how often their choices were right on answers held out."""
    target, _ = load_model("smollm2", device, "float32")
    folder, learned = out / "heads", [row for place, row in enumerate(rows) if place % HELD_OUT]
    known = {kind: to_go_on(folder / f"{kind}.safetensors", target, len(learned), settings) for kind in kinds if go_on}
    training = texts(target, learned[:part])
    held_out = texts(target, rows[::HELD_OUT])
    print(f"{len(training)} answers, {sum(len(t.tokens) - t.start for t in training)} tokens to predict", flush=True)
    if target.device.type == "cpu":
        target.to(torch.bfloat16)  # whose products take a processor half as long
    folder.mkdir(parents=True, exist_ok=True)
    for kind in kinds:
        began = time.monotonic()
        torch.manual_seed(settings.seed)
        # Hydra has a depth fewer, because its files grow with the square of the depths.
        shape = {"medusa": {"heads": 4}, "hydra": {"heads": 3, "prefix": False}}
        head = known[kind] if go_on else KINDS[kind].for_target(target, **shape.get(kind, {}))
        before, loss = {}, float("inf")
        if go_on:  # these answers are among those of before
            loss = mean_loss(head, Ends(target), held_out, settings)
            before = {name: head.story[name] for name in ("answers", "predictions")}
            before |= {"before": head.story | {"held_out": loss}, "answers_of_an_epoch": len(training)}
        train_heads(head.requires_grad_(True).train(), target, training, held_out, settings)
        head.story |= about(began, target.device) | before | {"products": str(target.dtype)}
        if min(epoch["held_out"] for epoch in head.story["curve"]) >= loss:
            print(f"no epoch of {kind} has a held-out loss below {loss:.4f}; its file stays", flush=True)
            continue
        head.save(folder / f"{kind}.safetensors")
        print(kind, json.dumps(head.story["curve"]), [row[0] for row in head.accuracies], flush=True)


@torch.inference_mode()
def responses(draft: PreTrainedModel, rows: list[dict]) -> list[Response]:
    """Greedy answers with the draft's first choice after each prefix, and whether it is the answer's token."""
    known, found = draft_vocabulary(draft), []
    for row in tqdm(rows, desc="drafts"):
        ids = known.to_draft([*row["prompt"], *row["answer"]])
        logits = draft(torch.tensor([ids[:-1]], device=draft.device), use_cache=False).logits
        confidence, first = logits[0, len(row["prompt"]) - 1 :, : len(known)].float().softmax(-1).max(-1)
        drawn = np.asarray(known.to_target(first.tolist()), np.int32)
        accepted = (drawn == row["answer"]).astype(np.float32)
        prompt, answer = (row[name].astype(np.int32) for name in ("prompt", "answer"))
        found.append(Response(prompt, answer, drawn, accepted, confidence.cpu().numpy()))
    return found


def train_acceptance(rows: list[dict], out: Path, device: str, epochs: int, seed: int) -> None:
    """The paper's head with each seed, and one that reads the draft's probability too."""
    draft, _ = load_model(out / "draft", device, "float32")
    answered = responses(draft, rows)
    parts = [r for place, r in enumerate(answered) if place % HELD_OUT], answered[::HELD_OUT]
    fit, held_out = (examples(draft, part, seed=seed) for part in parts)
    folder = out / "head"
    folder.mkdir(parents=True, exist_ok=True)
    for place in range(SEEDS + 1):
        began, sees = time.monotonic(), place == SEEDS
        settings = Training(epochs=epochs, batch=512, seed=seed + place % SEEDS)
        head = train(fit, held_out, settings, draft=fingerprint(draft), sees_confidence=sees)
        head.story |= about(began, draft.device) | {"answers": len(rows), "mixing": 0.15, "labels": "greedy"}
        head.story["mean_acceptance"] = float(fit.acceptance.mean())
        name = "acceptance-confidence" if sees else f"acceptance-{place}" if place else "acceptance"
        head.save(folder / f"{name}.safetensors")
        print(name, json.dumps(head.story["curve"]), flush=True)


def choose_layer_and_heads(out: Path, device: str) -> None:
    """PLD+'s layer and heads, as the workbench chooses them for any model."""
    target, tokenizer = load_model("smollm2", device, "float32")
    pair = ModelPair(target, None, tokenizer)
    pair.choose_heads()
    heads = [list(map(int, head)) for head in pair.heads]
    chosen = {"target": fingerprint(target), "layer": pair.layer, "heads": heads}
    (out / "pld_plus.json").write_text(json.dumps(chosen, indent=1) + "\n", encoding="utf-8")


def main(
    answers: Path = paths.SMOLLM2 / "answers.npz",
    out: Annotated[Path, options.folder("of the companions")] = paths.SMOLLM2,
    kind: Annotated[list[str] | None, options.choice(ALL, "may be repeated (default: all)")] = None,
    count: Annotated[int, options.whole("greedy answers at most to learn from, one in 40 held out")] = 8000,
    epochs: Annotated[int, options.whole("rounds over the answers, the most for heads that draft")] = 20,
    batch: Annotated[int, options.whole("answers of a step")] = 16,
    part: Annotated[int | None, options.whole("answers that heads that draft learn from (default: all)")] = None,
    go_on: Annotated[
        bool, typer.Option(help="train the heads that are there further, with an optimiser that begins anew")
    ] = False,
    rate: Annotated[
        float | None, typer.Option(help="of heads that draft, at first (default: that of their recipe)")
    ] = None,
    device: options.Device = "auto",
    seed: Annotated[int, options.whole("of all that is drawn", 0)] = 0,
) -> None:
    """Train what SmolLM2 drafts with: Medusa, Hydra, EAGLE, acceptance heads of SpecDec++, and PLD+'s layer and heads."""
    repeatable()
    greedy = [row for row in unpack(answers) if row["heat"] == 0 and len(row["answer"]) > 4]
    rows = list({row["prompt"].tobytes(): row for row in greedy}.values())  # some prompts were answered twice
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))[:count]
    chosen = [rows[i] for i in order.tolist()]
    kinds = kind or ALL
    if (go_on or part or rate) and not set(kinds) <= set(KINDS):
        raise typer.BadParameter(
            f"--go-on, --part and --rate are for heads that draft; add --kind {' --kind '.join(KINDS)}"
        )
    if drafting := [name for name in kinds if name in KINDS]:
        train_drafting(drafting, chosen, out, device, HeadTraining(epochs, batch, rate, seed), part, go_on)
    if "acceptance" in kinds:
        train_acceptance(chosen, out, device, epochs, seed)
    if "pld+" in kinds:
        choose_layer_and_heads(out, device)


if __name__ == "__main__":
    typer.run(main)
