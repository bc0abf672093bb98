"""Train a draft model for a chat model, on the model's own answers: a vocabulary of the most frequent tokens, two ways to begin.

``--start scratch``: a narrow Llama. ``--start layers``: some layers of the target, with its embeddings. Both learn the target's
own distributions (forward KL over the cut vocabulary) at every position of prompts and answers.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

from specdec_lib import load_model
from specdec_lib.models.fingerprint import fingerprint

HELD_OUT = 20  # one row in so many
WINDOW_TOKENS = 4096  # of a step


def rows_of(folder: Path) -> list[dict]:
    """Prompts and answers that scripts/own_answers.py made, each once."""
    names = ("answers", "edits", "choosing")
    rows = [
        row for name in names for path in sorted(folder.glob(f"{name}-*.json")) for row in json.loads(path.read_text())
    ]
    return [row for row in rows if len(row["answer"]) > 4]


def states(target, rows: list[dict], path: Path) -> np.ndarray:
    """Final states of the target at every token of every row, bfloat16 as int16, in order; kept in a file."""
    lengths = [len(row["prompt"]) + len(row["answer"]) for row in rows]
    shape = (sum(lengths), target.config.hidden_size)
    stamp = path.with_suffix(".done")
    if not stamp.is_file() or stamp.read_text() != str(shape):
        kept = np.lib.format.open_memmap(path, "w+", np.int16, shape)
        starts = np.cumsum([0, *lengths])
        order = sorted(range(len(rows)), key=lengths.__getitem__)
        begun = time.monotonic()
        with torch.inference_mode():
            for first in range(0, len(order), 16):
                batch = order[first : first + 16]
                ids = torch.full((len(batch), max(lengths[i] for i in batch)), 2)
                for place, i in enumerate(batch):
                    ids[place, : lengths[i]] = torch.tensor(rows[i]["prompt"] + rows[i]["answer"])
                found = target.model(ids).last_hidden_state.to(torch.bfloat16).view(torch.int16).numpy()
                for place, i in enumerate(batch):
                    kept[starts[i] : starts[i + 1]] = found[place, : lengths[i]]
                if first % 640 == 0:
                    print(f"states: {first} of {len(order)} rows, {time.monotonic() - begun:.0f} s", flush=True)
        kept.flush()
        stamp.write_text(str(shape))
    return np.load(path, mmap_mode="r")


class Batches:
    """Rows side by side with the target's states, about so many tokens in each."""

    def __init__(self, rows, kept, ids_of):
        self.rows, self.kept, self.ids_of = rows, kept, ids_of
        self.lengths = [len(row["prompt"]) + len(row["answer"]) for row in rows]
        self.starts = np.cumsum([0, *self.lengths])

    def groups(self, chosen, seed):
        """Lists of row numbers of similar length, in random order."""
        generator = random.Random(seed)
        order = sorted(chosen, key=lambda i: (self.lengths[i] // 32, generator.random()))
        groups, now = [], []
        for i in order:
            if now and max(self.lengths[j] for j in [*now, i]) * (len(now) + 1) > WINDOW_TOKENS:
                groups.append(now)
                now = []
            now.append(i)
        groups.append(now)
        generator.shuffle(groups)
        return groups

    def batch(self, group):
        """Draft ids, states, and which positions predict: an answer's tokens weigh 1, a prompt's 0.2."""
        width = max(self.lengths[i] for i in group)
        ids = torch.zeros(len(group), width, dtype=torch.long)
        weight = torch.zeros(len(group), width)
        hidden = torch.zeros(len(group), width, self.kept.shape[1], dtype=torch.bfloat16)
        for place, i in enumerate(group):
            n, prompt = self.lengths[i], len(self.rows[i]["prompt"])
            ids[place, :n] = torch.tensor(self.rows[i]["prompt"] + self.rows[i]["answer"])
            weight[place, : n - 1] = 0.2
            weight[place, prompt - 1 : n - 1] = 1.0
            hidden[place, :n] = torch.from_numpy(np.array(self.kept[self.starts[i] : self.starts[i + 1]])).view(
                torch.bfloat16
            )
        return self.ids_of[ids], hidden, weight


def student(options, target, vocabulary):
    """The draft model before training."""
    base = dict(
        vocab_size=len(vocabulary) + 1,
        max_position_embeddings=target.config.max_position_embeddings,
        rope_parameters=target.config.rope_parameters,
        bos_token_id=int((vocabulary == 1).nonzero()[0]) if 1 in vocabulary else None,
        eos_token_id=int((vocabulary == 2).nonzero()[0]),
        pad_token_id=None,
        tie_word_embeddings=True,
    )
    torch.manual_seed(options.seed)
    if options.start == "scratch":
        shape = dict(
            hidden_size=options.width, num_hidden_layers=options.layers, intermediate_size=options.width * 8 // 3
        )
        heads = dict(num_attention_heads=options.width // 64, num_key_value_heads=options.width // 64)
        return LlamaForCausalLM(LlamaConfig(**base, **shape, **heads))
    kept = [int(layer) for layer in options.keep.split(",")]
    config = target.config.to_dict() | base | {"num_hidden_layers": len(kept)}
    model = LlamaForCausalLM(
        LlamaConfig(**{k: v for k, v in config.items() if k not in ("architectures", "dtype", "quantization_config")})
    )
    with torch.no_grad():
        model.model.embed_tokens.weight[:-1] = target.model.embed_tokens.weight[vocabulary].float()
        model.model.embed_tokens.weight[-1] = target.model.embed_tokens.weight.float().mean(0)
        for new, old in enumerate(kept):
            model.model.layers[new].load_state_dict(
                {k: v.float() for k, v in target.model.layers[old].state_dict().items()}
            )
        model.model.norm.load_state_dict({k: v.float() for k, v in target.model.norm.state_dict().items()})
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("_build/companions"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--start", choices=("scratch", "layers"), default="layers")
    parser.add_argument("--keep", default="0,29", help="layers of the target")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--vocabulary", type=int, default=8191)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--rate", type=float, default=8e-4)
    parser.add_argument("--minutes", type=float, default=30, help="the rate has fallen to zero by then at the latest")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    target, tokenizer = load_model("smollm2", dtype="bfloat16")
    rows = rows_of(options.data / "answers")
    kept = states(target, rows, options.data / "states.npy")
    held = [i for i in range(len(rows)) if i % HELD_OUT == 0]
    training = [i for i in range(len(rows)) if i % HELD_OUT]
    counts = np.zeros(target.config.vocab_size, np.int64)
    for i in training:
        np.add.at(counts, rows[i]["answer"], 4)
        np.add.at(counts, rows[i]["prompt"], 1)
    counts[[0, 1, 2]] = counts.max() + 1
    vocabulary = torch.from_numpy(np.sort(np.argsort(-counts)[: options.vocabulary]).copy())
    ids_of = torch.full((target.config.vocab_size,), len(vocabulary))
    ids_of[vocabulary] = torch.arange(len(vocabulary))
    covered = np.mean([float((ids_of[torch.tensor(rows[i]["answer"])] < len(vocabulary)).float().mean()) for i in held])
    batches = Batches(rows, kept, ids_of)
    model = student(options, target, vocabulary)
    output = target.get_output_embeddings().weight.detach()[vocabulary]  # bfloat16
    size = sum(p.numel() for p in model.parameters())
    tokens = sum(batches.lengths[i] for i in training)
    print(
        f"{len(rows)} rows, {tokens} tokens to train on, {size / 1e6:.2f} M parameters, {covered:.3f} of answers covered",
        flush=True,
    )

    def losses(group, train=True):
        ids, hidden, weight = batches.batch(group)
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            wanted = F.linear(hidden, output).float()
        with torch.autocast("cpu", torch.bfloat16):
            own = model(ids, use_cache=False).logits[..., :-1]
        own = own.float()
        places = weight > 0
        wanted, own, weight = wanted[places], own[places], weight[places]
        p, log_q = wanted.softmax(-1), own.log_softmax(-1)
        loss = -(p * log_q).sum(-1)
        if train:
            return (loss * weight).sum() / weight.sum()
        answers = weight == 1
        same = (wanted.argmax(-1) == own.argmax(-1))[answers].float()
        common = torch.minimum(p, log_q.exp()).sum(-1)[answers]
        return loss[answers].sum().item(), same.sum().item(), common.sum().item(), int(answers.sum())

    def evaluate():
        model.eval()
        with torch.inference_mode():
            sums = np.sum([losses(group, train=False) for group in batches.groups(held, 0)], axis=0)
        model.train()
        return {"loss": sums[0] / sums[3], "agreement": sums[1] / sums[3], "overlap": sums[2] / sums[3]}

    optimizer = torch.optim.AdamW(model.parameters(), lr=options.rate, betas=(0.9, 0.98), weight_decay=0.01)
    total = options.epochs * len(batches.groups(training, 0))
    begun, step, curve, best = time.monotonic(), 0, [], None
    print(json.dumps({"epoch": 0} | evaluate()), flush=True)
    for epoch in range(options.epochs):
        for group in batches.groups(training, options.seed * 1000 + epoch):
            done = max(step / total, (time.monotonic() - begun) / 60 / options.minutes)
            factor = min(1.0, (step + 1) / 100) * 0.5 * (1 + math.cos(math.pi * min(done, 1.0)))
            for setting in optimizer.param_groups:
                setting["lr"] = options.rate * factor
            loss = losses(group)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            step += 1
            if step % 100 == 0:
                print(f"step {step} of {total}, {time.monotonic() - begun:.0f} s, loss {loss.item():.3f}", flush=True)
            if done >= 1:
                break
        found = evaluate()
        curve.append(
            {"epoch": epoch + 1, "step": step, "seconds": round(time.monotonic() - begun)}
            | {k: round(v, 4) for k, v in found.items()}
        )
        print(json.dumps(curve[-1]), flush=True)
        if best is None or found["loss"] < best:
            best = found["loss"]
            model.to(torch.bfloat16).save_pretrained(options.out)
            model.float()
            save_file({"ids": vocabulary.long()}, str(options.out / "vocabulary.safetensors"))
            story = {
                k: str(v) if isinstance(v, Path) else v for k, v in vars(options).items() if k not in ("data", "out")
            }
            story |= {
                "target": fingerprint(target),
                "rows": len(rows),
                "tokens": tokens,
                "parameters": size,
                "covered": round(float(covered), 4),
                "curve": curve,
            }
            (options.out / "training.json").write_text(json.dumps(story, indent=1) + "\n")
        if done >= 1:
            break
    tokenizer.save_pretrained(options.out)


if __name__ == "__main__":
    main()
