"""Train a draft model for a chat model, on the model's own answers: a vocabulary of the most frequent tokens, two ways to begin.

``--start scratch``: a narrow Llama. ``--start layers``: some layers of the target, with its embeddings. Both learn the target's
own distributions (forward KL over the cut vocabulary) at every position of prompts and answers.
"""

from __future__ import annotations

import json
import math
import random
import time
from collections import namedtuple
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import torch
import torch.nn.functional as F
import typer
from own_answers import unpack
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from specdec_lib import load_model, paths
from specdec_lib.commands import options
from specdec_lib.models.draft_vocabulary import DraftVocabulary
from specdec_lib.models.fingerprint import fingerprint

HELD_OUT = 20  # one row in so many
PROMPT_WEIGHT = 0.2  # of a prompt's token in the loss; an answer's weighs 1
#: How a draft is made, as its ``training.json`` keeps it.
Recipe = namedtuple("Recipe", "start keep width layers vocabulary epochs window rate seed")


def student(recipe: Recipe, target: PreTrainedModel, known: torch.Tensor) -> LlamaForCausalLM:
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
    torch.manual_seed(recipe.seed)
    if recipe.start == "scratch":
        shape = {
            "hidden_size": recipe.width,
            "num_hidden_layers": recipe.layers,
            "intermediate_size": recipe.width * 8 // 3,
            "num_attention_heads": recipe.width // 64,
            "num_key_value_heads": recipe.width // 64,
        }
        return LlamaForCausalLM(LlamaConfig(**base, **shape))
    kept = [int(layer) for layer in recipe.keep.split(",")]
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

    def __init__(self, recipe: Recipe, answers: Path, device: str):
        self.recipe = recipe
        self.target, self.tokenizer = load_model("smollm2", device, "float32")
        self.device, self.weights = self.target.device, fingerprint(self.target)
        if self.device.type == "cuda":
            self.target.to(torch.bfloat16)
        self.target.requires_grad_(False)
        self.rows = unpack(answers)
        self.lengths = [len(row["prompt"]) + len(row["answer"]) for row in self.rows]
        self.held_out = [i for i in range(len(self.rows)) if i % HELD_OUT == 0]
        self.training = [i for i in range(len(self.rows)) if i % HELD_OUT]
        counts = np.zeros(self.target.config.vocab_size, np.int64)
        for i in self.training:
            np.add.at(counts, self.rows[i]["answer"], 4)
            np.add.at(counts, self.rows[i]["prompt"], 1)
        counts[:3] = counts.max() + 1  # the chat markers
        known = np.sort(np.argsort(-counts, kind="stable")[: recipe.vocabulary])
        self.vocabulary = DraftVocabulary(torch.from_numpy(known))
        self.known = self.vocabulary.ids.to(self.device)
        self.ids_of = torch.full((self.target.config.vocab_size,), len(known))
        self.ids_of[self.vocabulary.ids] = torch.arange(len(known))
        answered = torch.from_numpy(np.concatenate([self.rows[i]["answer"] for i in self.held_out]))
        self.covered = float((self.ids_of[answered] < len(known)).float().mean())
        self.model = student(recipe, self.target, self.vocabulary.ids).to(self.device)
        self.output = self.target.get_output_embeddings().weight[self.known]

    def groups(self, chosen: Sequence[int], seed: int) -> list[list[int]]:
        """Rows of similar length, about ``--window`` tokens together, in random order."""
        generator = random.Random(seed)
        order = sorted(chosen, key=lambda i: (self.lengths[i] // 32, generator.random()))
        groups: list[list[int]] = [[]]
        for i in order:
            widest = max(self.lengths[j] for j in [*groups[-1], i])
            if groups[-1] and widest * (len(groups[-1]) + 1) > self.recipe.window:
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

    def train(self, out: Path) -> None:
        """Train, and keep the epoch with the least loss on held-out answers."""
        recipe = self.recipe
        optimizer = torch.optim.AdamW(self.model.parameters(), lr=recipe.rate, betas=(0.9, 0.98), weight_decay=0.01)
        total = recipe.epochs * len(self.groups(self.training, 0))
        tokens, size = sum(self.lengths[i] for i in self.training), self.model.num_parameters()
        print(f"{tokens} tokens, {size / 1e6:.2f} M parameters, {self.covered:.3f} of answers covered", flush=True)
        begun, step, curve, best = time.monotonic(), 0, [], math.inf
        for epoch in range(recipe.epochs):
            for group in self.groups(self.training, recipe.seed * 1000 + epoch + 1):
                rate = recipe.rate * min(1.0, (step + 1) / 100) * 0.5 * (1 + math.cos(math.pi * min(1.0, step / total)))
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
            seconds = round(time.monotonic() - begun)
            curve.append({"epoch": epoch + 1, "step": step, "seconds": seconds} | self.evaluate())
            print(json.dumps(curve[-1]), flush=True)
            if curve[-1]["loss"] < best:
                best = curve[-1]["loss"]
                self.save(out, curve, tokens)

    def save(self, out: Path, curve: list[dict], tokens: int) -> None:
        """The draft in bfloat16, its vocabulary, and how it came about."""
        self.model.to(torch.bfloat16).save_pretrained(out)
        self.model.float()
        self.vocabulary.save(out)
        self.tokenizer.save_pretrained(out)
        story = self.recipe._asdict()
        if self.recipe.start == "scratch":
            del story["keep"]
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


def main(
    answers: Path = paths.SMOLLM2 / "answers.npz",
    out: Annotated[Path, options.folder("of the draft")] = paths.SMOLLM2 / "draft",
    start: Literal["scratch", "layers"] = "scratch",
    keep: Annotated[str, typer.Option(help="layers of the target, with --start layers")] = "0,29",
    width: Annotated[int, options.whole("from scratch: of a state")] = 256,
    layers: Annotated[int, options.whole("from scratch: how many")] = 4,
    vocabulary: Annotated[int, options.whole("tokens that the draft knows")] = 8191,
    epochs: Annotated[int, options.whole("rounds over the answers")] = 4,
    window: Annotated[int, options.whole("tokens of a step")] = 16384,
    rate: float = 2e-3,
    device: options.Device = "auto",
    seed: Annotated[int, options.whole("of all that is drawn", 0)] = 0,
) -> None:
    """Train a draft model for SmolLM2 on its own answers, with a vocabulary of the most frequent tokens."""
    recipe = Recipe(start, keep, width, layers, vocabulary, epochs, window, rate, seed)
    Trainer(recipe, answers, device).train(out)


if __name__ == "__main__":
    typer.run(main)
