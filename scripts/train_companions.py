"""Train SmolLM2's heads that draft (Medusa, Hydra, EAGLE) on answers that own_answers.py wrote."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch
from own_answers import unpack
from transformers import PreTrainedModel

from specdec_lib import load_model
from specdec_lib.heads.draft_training import HeadTraining, Text, train_heads
from specdec_lib.heads.drafting import KINDS

HELD_OUT = 40  # one answer in so many
TOGETHER = 32  # answers that the target reads in one pass


@torch.inference_mode()
def texts(target: PreTrainedModel, rows: list[dict]) -> list[Text]:
    """The target's final states of each prompt and answer."""
    found = {}
    order = sorted(range(len(rows)), key=lambda i: len(rows[i]["prompt"]) + len(rows[i]["answer"]))
    for first in range(0, len(order), TOGETHER):
        tokens = [
            torch.from_numpy(rows[i][name]) for i in order[first : first + TOGETHER] for name in ("prompt", "answer")
        ]
        joined = [torch.cat(pair) for pair in zip(tokens[::2], tokens[1::2], strict=True)]
        ids = torch.nn.utils.rnn.pad_sequence(joined, batch_first=True)
        states = target.model(ids.to(target.device), use_cache=False).last_hidden_state.to(torch.bfloat16).cpu()
        for place, i in enumerate(order[first : first + TOGETHER]):
            found[i] = Text(joined[place], states[place, : len(joined[place])].clone(), len(rows[i]["prompt"]))
    return [found[i] for i in range(len(rows))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("_build/companions"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--kind", action="append", choices=list(KINDS), help="may be repeated (default: all)")
    parser.add_argument("--answers", type=int, default=6000)
    parser.add_argument("--heads", type=int, default=4, help="depths of Medusa and Hydra")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch", type=int, default=8, help="answers of a step")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    target, _ = load_model("smollm2", options.device, "float32")
    rows = [row for row in unpack(options.data / "answers.npz") if row["heat"] == 0 and len(row["answer"]) > 4]
    chosen = torch.randperm(len(rows), generator=torch.Generator().manual_seed(options.seed))[: options.answers]
    known = texts(target, [rows[i] for i in chosen.tolist()])
    held_out = known[::HELD_OUT]
    training = [text for place, text in enumerate(known) if place % HELD_OUT]
    print(f"{len(training)} answers, {sum(len(t.tokens) - t.start for t in training)} tokens to predict", flush=True)
    options.out.mkdir(parents=True, exist_ok=True)
    for kind in options.kind or KINDS:
        began = time.monotonic()
        torch.manual_seed(options.seed)
        shape = {"medusa": {"heads": options.heads}, "hydra": {"heads": options.heads, "prefix": False}}
        head = KINDS[kind].for_target(target, **shape.get(kind, {}))
        settings = HeadTraining(options.epochs, options.batch, seed=options.seed)
        train_heads(head, target, training, held_out, settings, options.data / f"{kind}.checkpoint", progress=False)
        head.story |= {
            "seconds": round(time.monotonic() - began),
            "torch": torch.__version__,
            "device": torch.cuda.get_device_name() if target.device.type == "cuda" else "cpu",
        }
        head.save(options.out / f"{kind}.safetensors")
        shares = [row[0] for row in head.accuracies]
        print(kind, json.dumps(head.story["curve"]), f"first choice right by depth {shares}", flush=True)


if __name__ == "__main__":
    main()
