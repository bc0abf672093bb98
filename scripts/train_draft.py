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
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from own_answers import unpack
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from specdec_lib import load_model, paths
from specdec_lib.models.draft_vocabulary import DraftVocabulary
from specdec_lib.models.fingerprint import fingerprint

HELD_OUT = 20  # one row in so many
PROMPT_WEIGHT = 0.2  # of a prompt's token in the loss; an answer's weighs 1


def student(options: argparse.Namespace, target: PreTrainedModel, known: torch.Tensor) -> LlamaForCausalLM:
    """The draft model before training; row V of its embedding stands for all tokens that it does not know."""
    base = {
        "vocab_size": len(known) + 1,
        "max_position_embeddings": target.config.max_position_embeddings,
        "rope_parameters": target.config.rope_parameters,
        "bos_token_id": int((known == 1).nonzero()[0]),
        "eos_token_id": int((known == 2).nonzero()[0]),
        "pad_token_id": None,
        "tie_word_embeddings": True,
    }
    torch.manual_seed(options.seed)
    if options.start == "scratch":
        shape = {
            "hidden_size": options.width,
            "num_hidden_layers": options.layers,
            "intermediate_size": options.width * 8 // 3,
            "num_attention_heads": options.width // 64,
            "num_key_value_heads": options.width // 64,
        }
        return LlamaForCausalLM(LlamaConfig(**base, **shape))
    kept = [int(layer) for layer in options.keep.split(",")]
    config = target.config.to_dict() | base | {"num_hidden_layers": len(kept)}
    for name in ("architectures", "dtype", "quantization_config"):
        config.pop(name, None)
    model = LlamaForCausalLM(LlamaConfig(**config))
    with torch.no_grad():
        rows = target.model.embed_tokens.weight.float().cpu()
        model.model.embed_tokens.weight[:-1] = rows[known]
        model.model.embed_tokens.weight[-1] = rows.mean(0)
        for new, old in enumerate(kept):
            model.model.layers[new].load_state_dict(target.model.layers[old].state_dict())
        model.model.norm.load_state_dict(target.model.norm.state_dict())
    return model


class Trainer:
    """A draft model, its target and the rows it learns from."""

    def __init__(self, options: argparse.Namespace):
        self.options = options
        self.target, self.tokenizer = load_model("smollm2", options.device, "float32")
        self.device, self.weights = self.target.device, fingerprint(self.target)
        if self.device.type == "cuda":
            self.target.to(torch.bfloat16)
        self.target.requires_grad_(False)
        self.rows = unpack(options.answers)
        self.lengths = [len(row["prompt"]) + len(row["answer"]) for row in self.rows]
        self.held_out = [i for i in range(len(self.rows)) if i % HELD_OUT == 0]
        self.training = [i for i in range(len(self.rows)) if i % HELD_OUT]
        counts = np.zeros(self.target.config.vocab_size, np.int64)
        for i in self.training:
            np.add.at(counts, self.rows[i]["answer"], 4)
            np.add.at(counts, self.rows[i]["prompt"], 1)
        counts[:3] = counts.max() + 1  # the chat markers
        known = np.sort(np.argsort(-counts, kind="stable")[: options.vocabulary])
        self.vocabulary = DraftVocabulary(torch.from_numpy(known))
        self.known = self.vocabulary.ids.to(self.device)
        self.ids_of = torch.full((self.target.config.vocab_size,), len(known))
        self.ids_of[self.vocabulary.ids] = torch.arange(len(known))
        answered = torch.from_numpy(np.concatenate([self.rows[i]["answer"] for i in self.held_out]))
        self.covered = float((self.ids_of[answered] < len(known)).float().mean())
        self.model = student(options, self.target, self.vocabulary.ids).to(self.device)
        self.output = self.target.get_output_embeddings().weight[self.known]

    def groups(self, chosen: Sequence[int], seed: int) -> list[list[int]]:
        """Rows of similar length, about ``--window`` tokens together, in random order."""
        generator = random.Random(seed)
        order = sorted(chosen, key=lambda i: (self.lengths[i] // 32, generator.random()))
        groups: list[list[int]] = [[]]
        for i in order:
            widest = max(self.lengths[j] for j in [*groups[-1], i])
            if groups[-1] and widest * (len(groups[-1]) + 1) > self.options.window:
                groups.append([])
            groups[-1].append(i)
        generator.shuffle(groups)
        return groups

    def compare(self, group: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Probabilities of the target, log probabilities of the draft, both (n, V), and the weights of the n positions."""
        ids = torch.zeros(len(group), max(self.lengths[i] for i in group), dtype=torch.long)
        weight = torch.zeros(ids.shape)
        for place, i in enumerate(group):
            prompt, answer = self.rows[i]["prompt"], self.rows[i]["answer"]
            ids[place, : self.lengths[i]] = torch.from_numpy(np.concatenate([prompt, answer]))
            weight[place, : self.lengths[i] - 1] = PROMPT_WEIGHT
            weight[place, len(prompt) - 1 : self.lengths[i] - 1] = 1.0
        weight = weight.to(self.device)
        places = weight > 0
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
            with torch.no_grad():
                states = self.target.model(ids.to(self.device), use_cache=False).last_hidden_state[places]
                wanted = F.linear(states, self.output).float().softmax(-1)
            states = self.model.model(self.ids_of[ids].to(self.device), use_cache=False).last_hidden_state[places]
            own = self.model.lm_head(states)[..., :-1].float().log_softmax(-1)
        return wanted, own, weight[places]

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """On answers held out: cross-entropy, how often the first choices agree, and the mass that both have in common."""
        self.model.eval()
        sums = np.zeros(4)
        for group in self.groups(self.held_out, 0):
            wanted, own, weight = self.compare(group)
            at = weight == 1
            loss = -(wanted * own).sum(-1)[at].sum()
            same = (wanted.argmax(-1) == own.argmax(-1))[at].sum()
            common = torch.minimum(wanted, own.exp()).sum(-1)[at].sum()
            sums += [float(loss), float(same), float(common), int(at.sum())]
        self.model.train()
        return {name: round(float(sums[i] / sums[3]), 4) for i, name in enumerate(("loss", "agreement", "acceptance"))}

    def train(self) -> None:
        """Train, and keep the epoch with the least loss on held-out answers."""
        options = self.options
        optimizer = torch.optim.AdamW(self.model.parameters(), lr=options.rate, betas=(0.9, 0.98), weight_decay=0.01)
        total = options.epochs * len(self.groups(self.training, 0))
        tokens, size = sum(self.lengths[i] for i in self.training), self.model.num_parameters()
        print(f"{tokens} tokens, {size / 1e6:.2f} M parameters, {self.covered:.3f} of answers covered", flush=True)
        begun, step, curve, best = time.monotonic(), 0, [], math.inf
        for epoch in range(options.epochs):
            for group in self.groups(self.training, options.seed * 1000 + epoch + 1):
                # The rate follows the clock too, so that training that has to end in time ends well.
                done = min(1.0, max(step / total, (time.monotonic() - begun) / 60 / options.minutes))
                rate = options.rate * min(1.0, (step + 1) / 100) * 0.5 * (1 + math.cos(math.pi * done))
                for setting in optimizer.param_groups:
                    setting["lr"] = rate
                wanted, own, weight = self.compare(group)
                loss = -((wanted * own).sum(-1) * weight).sum() / weight.sum()
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                optimizer.step()
                step += 1
                if step % 200 == 0:
                    print(
                        f"step {step} of {total}, {time.monotonic() - begun:.0f} s, loss {loss.item():.3f}", flush=True
                    )
                if done >= 1:
                    break
            seconds = round(time.monotonic() - begun)
            curve.append({"epoch": epoch + 1, "step": step, "seconds": seconds} | self.evaluate())
            print(json.dumps(curve[-1]), flush=True)
            if curve[-1]["loss"] < best:
                best = curve[-1]["loss"]
                self.save(curve, tokens)
            if done >= 1:
                break

    def save(self, curve: list[dict], tokens: int) -> None:
        """The draft in bfloat16, its vocabulary, and how it came about."""
        out, options = self.options.out, self.options
        self.model.to(torch.bfloat16).save_pretrained(out)
        self.model.float()
        self.vocabulary.save(out)
        self.tokenizer.save_pretrained(out)
        used = ("start",) if options.start == "scratch" else ("start", "keep")
        story = {
            name: getattr(options, name)
            for name in (*used, "vocabulary", "epochs", "minutes", "window", "rate", "seed")
        }
        story |= {
            "layers": self.model.config.num_hidden_layers,
            "width": self.model.config.hidden_size,
            "target": self.weights,
            "answers": len(self.training),
            "tokens": tokens,
            "parameters": self.model.num_parameters(),
            "covered": round(self.covered, 4),
            "device": torch.cuda.get_device_name() if self.device.type == "cuda" else "cpu",
            "torch": torch.__version__,
            "curve": curve,
        }
        (out / "training.json").write_text(json.dumps(story, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--answers", type=Path, default=paths.SMOLLM2 / "answers.npz")
    parser.add_argument("--out", type=Path, default=paths.SMOLLM2 / "draft")
    parser.add_argument("--start", choices=("scratch", "layers"), default="scratch")
    parser.add_argument("--keep", default="0,29", help="layers of the target")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--vocabulary", type=int, default=8191)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--window", type=int, default=16384, help="tokens of a step")
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--minutes", type=float, default=600, help="the rate has fallen to zero by then at the latest")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seed", type=int, default=0)
    Trainer(parser.parse_args()).train()


if __name__ == "__main__":
    main()
