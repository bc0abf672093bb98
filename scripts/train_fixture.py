"""Train a pair like the pocket pair from nothing: a tokenizer, a small Llama target, and a smaller draft distilled from it.

The text is Python's standard library. The pair that ships was made by an earlier, longer recipe
(``data/models/pocket/README.md``). Thousands of steps take hours on two cores. ``--steps 2 --batch 2 --length 128 --modules 20``
shows in seconds that everything works.
"""

from __future__ import annotations

import json
import platform
import random
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import torch
import torch.nn.functional as F
import transformers
import typer
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from specdec_lib.commands import options
from specdec_lib.experiments.data.stores import stdlib_modules

VOCABULARY, CONTEXT = 4096, 2048
END, USER, ASSISTANT, PAD = SPECIAL = ["<|end|>", "<|user|>", "<|assistant|>", "<|pad|>"]
#: Words, single digits, punctuation, line breaks with the indentation that follows, other blanks.
SPLIT = r" ?[A-Za-z]+| ?[0-9]| ?[^\sA-Za-z0-9]+|\n[ \n]*|[^\S\n]+|\s"
CHAT_TEMPLATE = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] }}"
    "{% if m['role'] == 'assistant' %}{{ '<|end|>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
SHAPES = {
    "target": {"hidden_size": 320, "num_hidden_layers": 8, "num_attention_heads": 5, "intermediate_size": 864},
    "draft": {"hidden_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 352},
}
REPORT_EVERY = 50  # steps


def train_tokenizer(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """Byte-level BPE with the chat template of the pair."""
    tokenizer = Tokenizer(models.BPE())
    by_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(SPLIT), "isolated"), by_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=SPECIAL, initial_alphabet=alphabet)
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=PAD,
        additional_special_tokens=[USER, ASSISTANT],
        model_max_length=CONTEXT,
        chat_template=CHAT_TEMPLATE,
    )


def rows(tokenizer: PreTrainedTokenizerFast, texts: list[str], length: int) -> torch.Tensor:
    """The tokens of all texts one after another, in rows of ``length`` and one more: int64, shape (rows, length + 1)."""
    stream = torch.tensor([token for ids in tokenizer(texts, verbose=False)["input_ids"] for token in ids])
    if len(stream) <= length:
        raise ValueError(
            f"{len(texts)} texts have {len(stream)} tokens, fewer than a row of {length}; give more --modules"
        )
    return stream.unfold(0, length + 1, length)


def loss_of(model: LlamaForCausalLM, batch: torch.Tensor, teacher: LlamaForCausalLM | None) -> torch.Tensor:
    """Cross-entropy of the next token; with a teacher the divergence of the model's distribution from the teacher's (nats)."""
    with torch.autocast(batch.device.type, torch.bfloat16):
        logits = model(batch[:, :-1], use_cache=False).logits.flatten(0, 1).float()
        if teacher is None:
            return F.cross_entropy(logits, batch[:, 1:].flatten())
        with torch.no_grad():
            wanted = teacher(batch[:, :-1], use_cache=False).logits.flatten(0, 1).float()
    return F.kl_div(logits.log_softmax(-1), wanted.log_softmax(-1), log_target=True, reduction="batchmean")


@torch.inference_mode()
def evaluate(model: LlamaForCausalLM, heldout: torch.Tensor, teacher: LlamaForCausalLM | None) -> dict[str, float]:
    """Loss on held-out text (nats per token) and, with a teacher, the share of positions with the same first choice."""
    loss, same = [], []
    for batch in heldout.split(4):
        loss.append(loss_of(model, batch, None).item())
        if teacher is not None:
            first = [each(batch[:, :-1], use_cache=False).logits.argmax(-1) for each in (model, teacher)]
            same.append((first[0] == first[1]).float().mean().item())
    found = {"heldout_loss": sum(loss) / len(loss)}
    return found | ({"agreement": sum(same) / len(same)} if same else {})


def train(
    name: str,
    training: torch.Tensor,
    heldout: torch.Tensor,
    teacher: LlamaForCausalLM | None,
    steps: int,
    batch: int,
    rate: float,
    seed: int,
) -> tuple[LlamaForCausalLM, list[dict]]:
    """The trained model, float32, and its learning curve."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        **SHAPES[name],
        vocab_size=VOCABULARY,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=SPECIAL.index(END),
        pad_token_id=SPECIAL.index(PAD),
    )
    model = LlamaForCausalLM(config).to(training.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.95), weight_decay=0.1)
    warmup = max(1, min(100, steps // 10))
    schedule = torch.optim.lr_scheduler.LambdaLR(  # linear warm-up, then linear to zero
        optimizer, lambda step: min((step + 1) / warmup, (steps - step) / steps)
    )
    order = torch.Generator().manual_seed(seed)
    curve, begun = [], time.monotonic()
    for step in range(steps):
        chosen = torch.randint(len(training), (batch,), generator=order)
        loss = loss_of(model, training[chosen], teacher)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if (step + 1) % REPORT_EVERY == 0 or step + 1 == steps:
            row = {"step": step + 1, "loss": loss.item()} | evaluate(model, heldout, teacher)
            curve.append({key: round(value, 4) for key, value in row.items()})
            left = (time.monotonic() - begun) / (step + 1) * (steps - step - 1) / 60
            print(f"{name}: {json.dumps(curve[-1])}, {left:.0f} min left", flush=True)
    return model.eval(), curve


def main(
    out: Annotated[Path, options.folder("a new one, which receives target/ and draft/")],
    steps: Annotated[int, options.whole_number("of each of the two")] = 5000,
    batch: Annotated[int, options.whole_number("rows of a step")] = 16,
    length: Annotated[int, options.whole_number("tokens of a row")] = 768,
    rate: Annotated[float, typer.Option(help="highest learning rate")] = 2e-3,
    modules: Annotated[
        int | None, options.whole_number("at most so many of the standard library (default: all)")
    ] = None,
    device: options.Device = "cpu",
    seed: Annotated[int, options.whole_number("of all that is drawn", 0)] = 0,
) -> None:
    """Train a pair like the pocket pair from nothing: a tokenizer, a small Llama target, and a draft distilled from it."""
    asked = {**locals(), "out": str(out)}
    if out.exists():
        raise typer.BadParameter(f"{out} exists; name a new folder, so that no trained pair is overwritten")
    texts = [text + END for text in stdlib_modules().values()]
    random.Random(seed).shuffle(texts)
    held_out, documents = texts[:40], texts[40:][:modules]
    tokenizer = train_tokenizer(documents)
    training = rows(tokenizer, documents, length).to(device)
    heldout = rows(tokenizer, held_out, length)[:16].to(device)
    print(f"{len(documents)} documents, {len(training)} rows of {length} tokens", flush=True)
    teacher = None
    for name in SHAPES:
        model, curve = train(name, training, heldout, teacher, steps, batch, rate, seed)
        model.to(torch.bfloat16).save_pretrained(out / name)
        tokenizer.save_pretrained(out / name)
        story = asked | {
            "parameters": model.num_parameters(),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "curve": curve,
        }
        (out / name / "training.json").write_text(json.dumps(story, indent=1) + "\n", encoding="utf-8")
        teacher = model.float()


if __name__ == "__main__":
    typer.run(main)
