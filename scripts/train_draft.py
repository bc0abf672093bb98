"""Train draft models for SmolLM2 on its own answers, each with a vocabulary of the most frequent tokens; two ways to begin.

From scratch: a narrow Llama. From layers: some layers of the target, with its embeddings. Both learn the target's own
distributions (forward KL over the cut vocabulary) at every position of prompts and answers. choose_draft.py takes the fastest.
"""

from __future__ import annotations

import copy
import json
import math
import random
import time
from collections import namedtuple
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import torch.nn.functional as F
import typer
from own_answers import unpack
from train_companions import KeptText, kept_texts, repeatable
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from specdec_lib import load_model, paths
from specdec_lib.commands import options
from specdec_lib.models.draft_vocabulary import DraftVocabulary
from specdec_lib.models.fingerprint import fingerprint

HELD_OUT = 20  # one prompt in so many
PROMPT_WEIGHT = 0.2  # of a prompt's token in the loss; an answer's weighs 1
WINDOW = 16384  # tokens of a step
#: How a draft is made, as its ``training.json`` keeps it; ``keep`` are layers of the target.
Recipe = namedtuple("Recipe", "start keep width layers vocabulary rate")
RECIPES = {
    "four-layers": Recipe("scratch", (), 256, 4, 8191, 2e-3),
    "two-layers": Recipe("scratch", (), 256, 2, 8191, 2e-3),
    "fewer-tokens": Recipe("scratch", (), 256, 2, 4095, 2e-3),
    "of-layers": Recipe("layers", (0, 29), 576, 2, 8191, 8e-4),
}


def student(recipe: Recipe, target: PreTrainedModel, known: torch.Tensor, seed: int) -> LlamaForCausalLM:
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
    torch.manual_seed(seed)
    if recipe.start == "scratch":
        shape = {
            "hidden_size": recipe.width,
            "num_hidden_layers": recipe.layers,
            "intermediate_size": recipe.width * 8 // 3,
            "num_attention_heads": recipe.width // 64,
            "num_key_value_heads": recipe.width // 64,
        }
        return LlamaForCausalLM(LlamaConfig(**base, **shape))
    config = target.config.to_dict() | base | {"num_hidden_layers": recipe.layers}
    for name in ("architectures", "dtype", "quantization_config"):
        config.pop(name, None)
    model = LlamaForCausalLM(LlamaConfig(**config))
    with torch.no_grad():
        rows = target.model.embed_tokens.weight.float().cpu()
        model.model.embed_tokens.weight[:-1] = rows[known]
        model.model.embed_tokens.weight[-1] = rows.mean(0)
        for new, old in enumerate(recipe.keep):
            model.model.layers[new].load_state_dict(target.model.layers[old].state_dict())
        model.model.norm.load_state_dict(target.model.norm.state_dict())
    return model


class Trainer:
    """A draft model, its target and the answers that it learns from, with the target's states."""

    def __init__(self, recipe: Recipe, target: PreTrainedModel, known_texts: list[KeptText], epochs: int, seed: int):
        self.recipe, self.target, self.texts, self.epochs, self.seed = recipe, target, known_texts, epochs, seed
        self.device = target.device
        self.lengths = [len(text.tokens) for text in self.texts]
        asked: dict[bytes, int] = {}  # a prompt that was answered more than once is held out with all its answers
        number = [asked.setdefault(t.tokens[: t.start].numpy().tobytes(), len(asked)) for t in self.texts]
        self.held_out = [i for i, prompt in enumerate(number) if prompt % HELD_OUT == 0]
        self.training = [i for i, prompt in enumerate(number) if prompt % HELD_OUT]
        counts = np.zeros(self.target.config.vocab_size, np.int64)
        for i in self.training:
            tokens, start = self.texts[i].tokens.numpy(), self.texts[i].start
            np.add.at(counts, tokens[start:], 4)
            np.add.at(counts, tokens[:start], 1)
        counts[:3] = counts.max() + 1  # the chat markers
        known = np.sort(np.argsort(-counts, kind="stable")[: recipe.vocabulary])
        self.vocabulary = DraftVocabulary(torch.from_numpy(known))
        self.known = self.vocabulary.ids.to(self.device)
        self.ids_of = torch.full((self.target.config.vocab_size,), len(known))
        self.ids_of[self.vocabulary.ids] = torch.arange(len(known))
        answered = torch.cat([self.texts[i].tokens[self.texts[i].start :] for i in self.held_out])
        self.covered = float((self.ids_of[answered] < len(known)).float().mean())
        self.model = student(recipe, self.target, self.vocabulary.ids, seed).to(self.device)
        self.output = self.target.get_output_embeddings().weight[self.known].detach()

    def groups(self, chosen: Sequence[int], seed: int) -> list[list[int]]:
        """Texts of similar length, about ``WINDOW`` tokens together, in random order."""
        generator = random.Random(seed)
        order = sorted(chosen, key=lambda i: (self.lengths[i] // 32, generator.random()))
        groups: list[list[int]] = [[]]
        for i in order:
            widest = max(self.lengths[j] for j in [*groups[-1], i])
            if groups[-1] and widest * (len(groups[-1]) + 1) > WINDOW:
                groups.append([])
            groups[-1].append(i)
        generator.shuffle(groups)
        return groups

    def compare(self, group: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Probabilities of the target, log probabilities of the draft, both (n, V), and the weights of the n positions."""
        pad = torch.nn.utils.rnn.pad_sequence
        ids = pad([self.texts[i].tokens for i in group], batch_first=True)
        seen = pad([self.texts[i].states for i in group], batch_first=True)
        weight = torch.zeros(ids.shape)
        for place, i in enumerate(group):
            weight[place, : self.lengths[i] - 1] = PROMPT_WEIGHT
            weight[place, self.texts[i].start - 1 : self.lengths[i] - 1] = 1.0
        places = weight > 0
        weight = weight[places].to(self.device)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
            wanted = F.linear(seen[places].to(self.device, self.output.dtype), self.output).float().softmax(-1)
            rows, columns = (axis.to(self.device) for axis in places.nonzero(as_tuple=True))
            states = self.model.model(self.ids_of[ids].to(self.device), use_cache=False).last_hidden_state[
                rows, columns
            ]
            own = self.model.lm_head(states)[..., :-1].float().log_softmax(-1)
        return wanted, own, weight

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
        peak = self.recipe.rate
        optimizer = torch.optim.AdamW(self.model.parameters(), lr=peak, betas=(0.9, 0.98), weight_decay=0.01)
        total = self.epochs * len(self.groups(self.training, 0))
        tokens, size = sum(self.lengths[i] for i in self.training), self.model.num_parameters()
        print(f"{tokens} tokens, {size / 1e6:.2f} M parameters, {self.covered:.3f} of answers covered", flush=True)
        begun, step, curve, best = time.monotonic(), 0, [], math.inf
        for epoch in range(self.epochs):
            for group in self.groups(self.training, self.seed * 1000 + epoch + 1):
                rate = peak * min(1.0, (step + 1) / 100) * 0.5 * (1 + math.cos(math.pi * min(1.0, step / total)))
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
        copy.deepcopy(self.model).to(torch.bfloat16).save_pretrained(out)
        self.vocabulary.save(out)
        story = self.recipe._asdict() | {
            "epochs": self.epochs,
            "seed": self.seed,
            "target": fingerprint(self.target),
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
    out: Annotated[Path, options.folder("of the drafts")] = Path("_build/companions/drafts"),
    name: Annotated[list[str] | None, options.choice(tuple(RECIPES), "may be repeated (default: all)")] = None,
    epochs: Annotated[int, options.whole_number("rounds over the answers")] = 8,
    data: Annotated[Path, options.folder("of the target's states")] = Path("_build/companions"),
    device: options.Device = "auto",
    seed: Annotated[int, options.whole_number("of all that is drawn", 0)] = 0,
) -> None:
    """Train draft models for SmolLM2 on its own answers; finished ones stay. The target's states take 7 GB of disk."""
    repeatable()
    target, tokenizer = load_model("smollm2", device, "float32")
    known = kept_texts(target, unpack(answers), data)
    for recipe in [one for one in name or RECIPES if not (out / one).exists()]:
        aside = out / f"{recipe}.unfinished"
        Trainer(RECIPES[recipe], target, known, epochs, seed).train(aside)
        tokenizer.save_pretrained(aside)
        aside.rename(out / recipe)


if __name__ == "__main__":
    typer.run(main)
