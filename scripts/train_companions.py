"""Train what SmolLM2 drafts with, on answers that own_answers.py wrote: Medusa, Hydra, EAGLE, and SpecDec++'s acceptance heads.

The acceptance heads are of the draft model that choose_draft.py ships. They learn from greedy answers, where a drafted token is
accepted if it is the answer's. ``--kind coarse-acceptance`` trains those of the coarser draft model of chapter 5, whose passes it
keeps in ``--data``; with ``--count 700 --epochs 3 --device cpu`` it made the shipped ones. ``--kind pld+`` chooses PLD+'s layer and
heads on the choosing half of the book's prompts.
``--go-on`` trains heads further that draft. So EAGLE's went on from its file of commit f658062f, with products in bfloat16:
``--kind eagle --go-on --part 2000 --epochs 3 --rate 2.5e-4``. Heads replace a file only if their held-out loss is less.

Hydra's have the released shape: four heads of four blocks with a prefix layer. They went on from the file of commit 7827661e, three
heads of one block: ``--kind hydra --go-on --count 11000 --sampled --epochs 1 --rate 2.5e-4 --dropout 0 --average 0.995 --vocabulary
8192``, and then the same with ``--epochs 2``. ``--minutes`` ends a run in the middle of an epoch, as it did both times. The same
command continues from the checkpoint, which is in ``--data`` with the states.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import sys
import time
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
import typer
from own_answers import unpack
from safetensors.torch import load_file, save_file
from tqdm import tqdm
from transformers import PreTrainedModel

from specdec_lib import load_model, paths
from specdec_lib.commands import options
from specdec_lib.experiments.coarser_draft import SHARE, coarser
from specdec_lib.experiments.workbench import ModelPair
from specdec_lib.files import replacing
from specdec_lib.heads.acceptance import Examples
from specdec_lib.heads.acceptance_data import Response, examples
from specdec_lib.heads.draft_training import Checkpoint, HeadTraining, mean_loss, products, train_heads
from specdec_lib.heads.drafting import KINDS, DraftHead, Ends, HydraHeads
from specdec_lib.heads.training import Training, train
from specdec_lib.models.draft_vocabulary import draft_vocabulary
from specdec_lib.models.fingerprint import fingerprint

HELD_OUT = 40  # one answer in so many
SEEDS = 5  # acceptance heads
ALL = (*KINDS, "acceptance", "coarse-acceptance", "pld+")


class Variant(NamedTuple):
    """Settings of acceptance heads: the loss's weight of rejections, depth, the learning rate (of 1e-4, 3e-4 and 1e-3 the one that
    with mixed examples lost least on held-out answers), and the mixing of :func:`~specdec_lib.heads.acceptance_data.examples`."""

    reject_weight: float = 6.0
    depth: int = 3
    rate: float = 1e-3
    mixing: float | None = 0.15


#: Acceptance heads of the coarser draft model by the names of their files, the paper's first; each with several training seeds.
VARIANTS = {
    "acceptance": Variant(),
    "equal-weights": Variant(reject_weight=1.0),
    "linear": Variant(depth=0),
    "unmixed": Variant(mixing=None),
}
VARIANT_SEEDS = 3
COARSE_HELD_OUT = 10  # one answer in so many: they are fewer


def repeatable() -> None:
    """Kernels that add in one order, so that a seed gives the same weights on one kind of machine.

    Products are in TF32 on a GPU, and in bfloat16 on a processor that multiplies it faster.
    """
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # without it cuBLAS may add in another order each time
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    if torch.cuda.is_available() or torch.cpu.get_capabilities().get("avx512_bf16", False):
        torch.set_float32_matmul_precision("medium")


class KeptText:
    """A :class:`~specdec_lib.heads.draft_training.Text` whose states are computed when first asked for, and kept on the disk."""

    def __init__(self, target: PreTrainedModel, row: dict, folder: Path):
        self.target, self.start = target, len(row["prompt"])
        self.tokens = torch.from_numpy(np.concatenate([row["prompt"], row["answer"]]))
        self.path = folder / f"{hashlib.sha256(self.tokens.numpy().tobytes()).hexdigest()[:24]}.safetensors"

    @property
    def states(self) -> torch.Tensor:
        """The target's final states, bfloat16 (n, d)."""
        if not self.path.exists():
            with torch.inference_mode(), products(self.target.device):
                read = self.target.model(self.tokens[None].to(self.target.device), use_cache=False)
            with replacing(self.path) as aside:
                save_file({"states": read.last_hidden_state[0].to("cpu", torch.bfloat16)}, aside)
        return load_file(self.path)["states"]


def kept_texts(target: PreTrainedModel, rows: list[dict], data: Path) -> list[KeptText]:
    """Prompts and answers, whose states are kept in a folder of the target's."""
    folder = data / "states" / fingerprint(target)[:16]
    folder.mkdir(parents=True, exist_ok=True)
    return [KeptText(target, row, folder) for row in rows]


def about(began: float, device: torch.device) -> dict[str, Any]:
    """Where and with what something was trained."""
    name = torch.cuda.get_device_name() if device.type == "cuda" else "cpu"
    return {"seconds": round(time.monotonic() - began), "torch": torch.__version__, "device": name}


def widened(old: HydraHeads, new: HydraHeads) -> HydraHeads:
    """New heads that begin with the first blocks of others: a further depth with the last one's, read so many tokens later."""
    width = new.options["width"]
    with torch.no_grad():
        for depth, block in enumerate(new.first):
            known = old.first[min(depth, old.depth - 1)]
            for layer, own in ((known.map, block.map), (known.linear, block.linear)):
                read = layer.weight[:, width:]
                own.weight.zero_()
                own.weight[:, :width] = layer.weight[:, :width]
                own.weight[:, -read.shape[1] :] = read
                own.bias.copy_(layer.bias)
    return new


def to_go_on(path: Path, target: PreTrainedModel, answers: int, settings: HeadTraining, shape: dict) -> DraftHead:
    """A head that learned from some of these answers: with its seed more of them hold out none that it knows."""
    head = KINDS[path.stem].load(path, target).to(target.device)
    known = head.story["learned_from"] if "learned_from" in head.story else head.story["answers"]
    if known > answers or head.story["training"]["seed"] != settings.seed:
        before = f"{known} answers with seed {head.story['training']['seed']}"
        sys.exit(f"{path} learned from {before}; expected at most {answers} with {settings.seed}")
    if any(head.options[name] != value for name, value in shape.items()):
        torch.manual_seed(settings.seed)
        head, known = widened(head, type(head).for_target(target, **shape)), head
        head.story = known.story | {"options": known.options}
    return head


def train_drafting(
    kinds: list[str],
    rows: list[dict],
    sampled: list[dict],
    out: Path,
    data: Path,
    device: str,
    settings: HeadTraining,
    part: int | None,
    go_on: bool,
    minutes: float,
) -> None:
    """Heads of some kinds, and how often their choices were right on answers held out, which are greedy."""
    target, _ = load_model("smollm2", device, "float32")
    kept_back = {row["prompt"].tobytes() for row in rows[::HELD_OUT]}
    learned = [row for place, row in enumerate(rows) if place % HELD_OUT]
    learned += [row for row in sampled if row["prompt"].tobytes() not in kept_back]
    folder = out / "heads"
    shapes: dict[str, dict] = {"medusa": {"heads": 4}, "hydra": {"heads": 4, "layers": 4}, "eagle": {}}
    known = {
        kind: to_go_on(folder / f"{kind}.safetensors", target, len(learned), settings, shapes[kind])
        for kind in kinds
        if go_on
    }
    training, held_out = (kept_texts(target, some, data) for some in (learned[:part], rows[::HELD_OUT]))
    print(f"{len(training)} answers, {sum(len(t.tokens) - t.start for t in training)} tokens to predict", flush=True)
    folder.mkdir(parents=True, exist_ok=True)
    for kind in kinds:
        began = time.monotonic()
        torch.manual_seed(settings.seed)
        head = known[kind] if go_on else KINDS[kind].for_target(target, **shapes[kind])
        before, loss = {}, float("inf")
        checkpoint = Checkpoint(data / f"{kind}.safetensors", minutes * 60)
        if go_on:
            came_from = data / f"{kind}-before.json"
            if not checkpoint.path.exists():  # a later part of this training finds the heads that this one writes
                came_from.write_text(json.dumps(head.story), encoding="utf-8")
            elif not came_from.exists():
                sys.exit(
                    f"{came_from} is missing, which says what {checkpoint.path} went on from: delete the checkpoint to begin anew"
                )
            before = {"before": json.loads(came_from.read_text(encoding="utf-8"))}
            if "options" in head.story:
                head.begin(held_out[0].states)
            else:
                loss = mean_loss(head.eval(), Ends(target), held_out, settings)
        train_heads(head.requires_grad_(True), target, training, held_out, settings, checkpoint=checkpoint)
        head.story |= about(began, target.device) | before | {"learned_from": len(learned)}
        print(kind, json.dumps(head.story["curve"]), [row[0] for row in head.accuracies], flush=True)
        if math.isfinite(loss) and mean_loss(head, Ends(target), held_out, settings) >= loss:
            print(f"no epoch of {kind} has a held-out loss below {loss:.4f}; its file stays", flush=True)
            continue
        head.save(folder / f"{kind}.safetensors")


@torch.inference_mode()
def response(draft: PreTrainedModel, row: dict) -> Response:
    """A greedy answer with the draft's first choice after each prefix, and whether it is the answer's token."""
    known = draft_vocabulary(draft)
    ids = known.to_draft([*row["prompt"], *row["answer"]])
    read = torch.tensor([ids[:-1]], device=draft.device)
    logits = draft(read, use_cache=False, logits_to_keep=len(row["answer"])).logits[0, :, : len(known)].float()
    likeliest, first = logits.max(-1)
    confidence = (likeliest - logits.logsumexp(-1)).exp()
    drawn = np.asarray(known.to_target(first.tolist()), np.int32)
    accepted = (drawn == row["answer"]).astype(np.float32)
    prompt, answer = (row[name].astype(np.int32) for name in ("prompt", "answer"))
    return Response(prompt, answer, drawn, accepted, confidence.cpu().numpy())


def train_acceptance(rows: list[dict], out: Path, device: str, epochs: int, seed: int) -> None:
    """The paper's head with each seed, and one that reads the draft's probability too."""
    draft, _ = load_model(out / "draft", device, "float32")
    answered = [response(draft, row) for row in tqdm(rows, desc="drafts")]
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


def kept_examples(
    draft: PreTrainedModel, rows: list[dict], mixings: set[float | None], data: Path, seed: int
) -> list[dict[float | None, Examples]]:
    """What each answer teaches acceptance heads with each mixing, kept on the disk in a folder of the draft model's."""
    folder, found = data / "examples" / fingerprint(draft)[:16], []
    folder.mkdir(parents=True, exist_ok=True)
    for place, row in enumerate(tqdm(rows, desc="examples"), start=seed):
        name = hashlib.sha256(np.concatenate([row["prompt"], row["answer"]]).tobytes()).hexdigest()[:24]
        files = {mixing: folder / f"{name}-{mixing}-{place}.safetensors" for mixing in mixings}
        if not all(path.exists() for path in files.values()):
            answered = response(draft, row)
            for mixing, path in files.items():
                made = examples(draft, [answered], mixing, place)
                with replacing(path) as aside:
                    save_file({"states": made.states.to(draft.dtype), "acceptance": made.acceptance}, aside)
        kept = {mixing: load_file(path) for mixing, path in files.items()}
        found.append({mixing: Examples(one["states"].float(), one["acceptance"]) for mixing, one in kept.items()})
    return found


def joined(parts: list[Examples]) -> Examples:
    """Examples of several answers as those of one."""
    return Examples(torch.cat([part.states for part in parts]), torch.cat([part.acceptance for part in parts]))


def train_coarse_acceptance(rows: list[dict], out: Path, data: Path, device: str, epochs: int, seed: int) -> None:
    """Heads of the coarser draft model with the paper's settings and with others, each with several seeds.

    Its passes are in bfloat16: it is as large as the target, and a head learns the same from states that are a little rounder.
    """
    target, _ = load_model("smollm2", device, "float32")
    draft = coarser(target).to(torch.bfloat16)
    answered = kept_examples(draft, rows, {variant.mixing for variant in VARIANTS.values()}, data, seed)
    folder = out / "head-coarse"
    folder.mkdir(parents=True, exist_ok=True)
    for name, variant in VARIANTS.items():
        own = [answer[variant.mixing] for answer in answered]
        fit, held_out = (
            joined([e for place, e in enumerate(own) if place % COARSE_HELD_OUT]),
            joined(own[::COARSE_HELD_OUT]),
        )
        for place in range(VARIANT_SEEDS):
            began = time.monotonic()
            settings = Training(variant.reject_weight, epochs, rate=variant.rate, seed=seed + place)
            head = train(fit, held_out, settings, variant.depth, fingerprint(draft))
            head.story |= about(began, draft.device) | {
                "answers": len(rows),
                "mixing": variant.mixing,
                "labels": "greedy",
            }
            means = {"mean_acceptance": fit, "held_out_acceptance": held_out}
            head.story |= {key: float(part.acceptance.mean()) for key, part in means.items()} | {"rounded_share": SHARE}
            head.save(folder / f"{name}-{place}.safetensors")
            print(name, place, json.dumps(head.story["curve"]), flush=True)


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
    count: Annotated[int, options.whole_number("greedy answers at most to learn from, one in 40 held out")] = 8000,
    epochs: Annotated[int, options.whole_number("rounds over the answers, the most for heads that draft")] = 20,
    batch: Annotated[int, options.whole_number("answers of a step")] = 16,
    part: Annotated[int | None, options.whole_number("answers that heads that draft learn from (default: all)")] = None,
    sampled: Annotated[
        bool, typer.Option(help="heads that draft learn from answers sampled at temperature 1 too")
    ] = False,
    go_on: Annotated[
        bool, typer.Option(help="train the heads that are there further, with an optimiser that begins anew")
    ] = False,
    rate: Annotated[
        float | None, typer.Option(help="of heads that draft, at first (default: that of their recipe)")
    ] = None,
    vocabulary: Annotated[int, options.whole_number("most frequent tokens that heads that draft learn; 0: all", 0)] = 0,
    average: Annotated[
        float, typer.Option(help="share that a step leaves of the average of the weights, which is kept")
    ] = 0.0,
    dropout: Annotated[float | None, typer.Option(help="in heads that draft (default: that of their recipe)")] = None,
    minutes: Annotated[float, typer.Option(help="after which the training of a kind ends, to go on later")] = math.inf,
    data: Annotated[Path, options.folder("of the target's states and the checkpoints")] = Path("_build/companions"),
    device: options.Device = "auto",
    seed: Annotated[int, options.whole_number("of all that is drawn", 0)] = 0,
) -> None:
    """Train what SmolLM2 drafts with: Medusa, Hydra, EAGLE, acceptance heads of SpecDec++, and PLD+'s layer and heads."""
    repeatable()
    written = [row for row in unpack(answers) if len(row["answer"]) > 4]
    greedy = [row for row in written if row["heat"] == 0]
    rows = list({row["prompt"].tobytes(): row for row in greedy}.values())  # some prompts were answered twice
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))[:count]
    chosen = [rows[i] for i in order.tolist()]
    kinds = kind or ALL
    if (go_on or part or rate) and not set(kinds) <= set(KINDS):
        raise typer.BadParameter(
            f"--go-on, --part and --rate are for heads that draft; add --kind {' --kind '.join(KINDS)}"
        )
    if drafting := [name for name in kinds if name in KINDS]:
        settings = HeadTraining(epochs, batch, rate, seed, vocabulary, average, dropout)
        warm = [row for row in written if row["heat"] == 1] if sampled else []
        train_drafting(drafting, chosen, warm, out, data, device, settings, part, go_on, minutes)
    if "acceptance" in kinds:
        train_acceptance(chosen, out, device, epochs, seed)
    if "coarse-acceptance" in kinds:
        train_coarse_acceptance(chosen, out, data, device, epochs, seed)
    if "pld+" in kinds:
        choose_layer_and_heads(out, device)


if __name__ == "__main__":
    typer.run(main)
