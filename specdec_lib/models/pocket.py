"""Recipe of the pocket models: the target and draft that the book runs on by default, and a second target.

``python -m specdec_lib pocket`` makes the pair from nothing but the standard library of the Python it runs
under: the tokenizer, the target by next-token loss, the draft by next-token loss and then by distillation
from the target. ``--part qwen`` distills a target of another family from the finished one. Hidden matrices
are trained with Muon (as shipped with torch), embeddings and norms with AdamW; the rate is constant and falls
linearly over the last 30 % of the steps, so a run can be lengthened from a checkpoint of its constant part.
"""
from __future__ import annotations

import argparse
import json
import math
import platform
import shutil
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import load_file, save_file
from tqdm.auto import tqdm
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from .. import paths
from ..commands import exit_status
from ..decoding.files import replacing
from ..evaluation import corpus, mechanical
from . import pocket_data
from .fingerprint import fingerprint

CONTEXT = 2048
#: Fields of a recipe that a run's checkpoint is not bound to: what may grow, and the shapes of all parts (its own is
#: seen in its parameters).
_FREE = ("target_steps", "draft_steps", "qwen_steps", "target", "draft", "qwen")


@dataclass(frozen=True)
class Shape:
    """Llama shape of one of the pair; heads are 64 wide in the target, 32 in the draft."""

    hidden_size: int
    layers: int
    heads: int
    intermediate_size: int

    def build(self, vocab_size: int) -> LlamaForCausalLM:
        """Freshly initialised model with tied embeddings."""
        return LlamaForCausalLM(LlamaConfig(
            vocab_size=vocab_size, hidden_size=self.hidden_size, num_hidden_layers=self.layers,
            num_attention_heads=self.heads, num_key_value_heads=self.heads, intermediate_size=self.intermediate_size,
            max_position_embeddings=CONTEXT, tie_word_embeddings=True, bos_token_id=None, eos_token_id=0,
            pad_token_id=3, attn_implementation="sdpa"))


@dataclass(frozen=True)
class QwenShape:
    """Qwen3 shape of the second target: grouped queries, normed queries and keys, heads 32 wide."""

    hidden_size: int
    layers: int
    heads: int
    kv_heads: int
    intermediate_size: int

    def build(self, vocab_size: int) -> Qwen3ForCausalLM:
        """Freshly initialised model with tied embeddings."""
        return Qwen3ForCausalLM(Qwen3Config(
            vocab_size=vocab_size, hidden_size=self.hidden_size, num_hidden_layers=self.layers, head_dim=32,
            num_attention_heads=self.heads, num_key_value_heads=self.kv_heads, intermediate_size=self.intermediate_size,
            max_position_embeddings=CONTEXT, tie_word_embeddings=True, bos_token_id=None, eos_token_id=0,
            pad_token_id=3, attn_implementation="sdpa"))


@dataclass(frozen=True)
class Recipe:
    """Everything that decides the outcome, besides the Python whose library is read."""

    vocab_size: int = 4096
    target: Shape = Shape(320, 8, 5, 864)
    draft: Shape = Shape(128, 3, 4, 352)
    qwen: QwenShape = QwenShape(192, 6, 6, 3, 512)
    length: int = 512
    batch: int = 12
    tasks: int = 40_000
    task_rows: float = 0.75
    target_steps: int = 2000
    draft_steps: int = 600
    qwen_steps: int = 700
    distill_share: float = 1 / 3
    muon_rate: float = 6e-3
    adamw_rate: float = 2e-3
    decay_share: float = 0.3
    warmup_steps: int = 100
    seed: int = 0


def rate_factor(step: int, steps: int, recipe: Recipe) -> float:
    """Share of the peak rate at ``step``: linear warm-up, constant, linear decay to zero."""
    decay = max(1, round(steps * recipe.decay_share))
    return min((step + 1) / recipe.warmup_steps, 1.0, (steps - step) / decay)


def _optimizers(model: torch.nn.Module, recipe: Recipe) -> list[torch.optim.Optimizer]:
    hidden = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n and "lm_head" not in n]
    chosen = {id(p) for p in hidden}
    others = [p for p in model.parameters() if id(p) not in chosen]
    return [torch.optim.Muon(hidden, lr=recipe.muon_rate, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(others, lr=recipe.adamw_rate, betas=(0.9, 0.95), weight_decay=0.0)]


def _loss(model: torch.nn.Module, teacher: torch.nn.Module | None, tokens: torch.Tensor, weights: torch.Tensor):
    x, y, w = tokens[:, :-1], tokens[:, 1:].reshape(-1), weights[:, 1:].reshape(-1)
    with torch.autocast(tokens.device.type, dtype=torch.bfloat16):
        logits = model(x, use_cache=False).logits.flatten(0, 1)
    if teacher is None:
        each = F.cross_entropy(logits.float(), y, reduction="none")
    else:
        with torch.no_grad(), torch.autocast(tokens.device.type, dtype=torch.bfloat16):
            goal = teacher(x, use_cache=False).logits.flatten(0, 1)
        each = F.kl_div(logits.float().log_softmax(-1), goal.float().softmax(-1), reduction="none").sum(-1)
    return (each * w).sum() / w.sum()


def _recipe_key(recipe: Recipe) -> dict:
    return {name: value for name, value in asdict(recipe).items() if name not in _FREE}


def _key(model: PreTrainedModel, recipe: Recipe, teacher: PreTrainedModel | None) -> dict:
    """What a run's weights follow from, but for its length."""
    return {**_recipe_key(recipe), "shape": {name: list(p.shape) for name, p in model.named_parameters()},
            "teacher": None if teacher is None else fingerprint(teacher)}


def _held(checkpoint: Path, key: dict, steps: int) -> dict | None:
    """The state in a checkpoint; None where there is none.

    Raises
    ------
    ValueError
        If it is of a run with another ``key``, or longer than ``steps``.
    """
    if not checkpoint.exists():
        return None
    state = torch.load(checkpoint, weights_only=True, map_location="cpu")
    advice = "delete it to train anew, or name another folder with --work"
    if "key" not in state:
        raise ValueError(f"{checkpoint} does not say which seed, recipe and teacher it was trained with; {advice}")
    held = json.loads(state["key"])
    differ = [name for name in key if held.get(name) != key[name]]
    if differ:
        raise ValueError(f"{checkpoint} is of a run with another {', '.join(differ)}; {advice}")
    if state["step"] > steps:
        raise ValueError(f"{checkpoint} is of a run of {state['step']} steps already, {steps} were asked for; ask "
                         f"for as many or more, {advice}")
    return state


def train(model: PreTrainedModel, data: pocket_data.Sequences, steps: int, recipe: Recipe, work: Path, name: str,
          probes: list, teacher: PreTrainedModel | None = None, distill_from: int = 0, every: int = 200,
          compiled: bool = True) -> list[dict]:
    """Train ``model`` in place; return its learning curve.

    Parameters
    ----------
    model : PreTrainedModel
        float32 parameters; the forward runs in bfloat16.
    steps : int
        Steps of ``recipe.batch`` rows.
    work : Path
        Folder of the checkpoint ``{name}.pt`` (plain tensors), from which a stopped run goes on, or a longer one.
    probes : list
        Held-out tasks for :func:`task_accuracy`, looked at each ``every`` steps.
    teacher : PreTrainedModel, optional
        Distilled from (Kullback-Leibler divergence over the whole vocabulary) from step ``distill_from`` on.
    every : int
        Steps between checkpoints.
    compiled : bool
        Compile the step: several times faster once compiled, which takes half a minute.

    Returns
    -------
    list of dict
        ``step``, ``tokens``, ``loss`` (mean since the last row), ``distilling``, ``seconds``, ``accuracy``
        (per task).

    Raises
    ------
    ValueError
        If the checkpoint is of another seed, recipe, shape or teacher, or of more than ``steps``.
    """
    device = next(model.parameters()).device
    key = _key(model, recipe, teacher)
    optimizers = _optimizers(model, recipe)
    checkpoint = work / f"{name}.pt"
    first, curve = 0, []
    state = _held(checkpoint, key, steps)
    if state is not None:
        model.load_state_dict(state["model"])
        for optimizer, saved in zip(optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        first, curve = state["step"], json.loads(state["curve"])
    peaks = [recipe.muon_rate, recipe.adamw_rate]
    loss_of = torch.compile(_loss) if compiled else _loss
    losses, began, spent = [], time.perf_counter(), curve[-1]["seconds"] if curve else 0.0
    for step in (bar := tqdm(range(first, steps), initial=first, total=steps, desc=name, mininterval=10)):
        tokens, weights = data.batch(step, recipe.batch, recipe.seed)
        distilling = teacher is not None and step >= distill_from
        loss = loss_of(model, teacher if distilling else None, torch.from_numpy(tokens).to(device),
                       torch.from_numpy(weights).to(device))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        factor = rate_factor(step, steps, recipe)
        for optimizer, peak in zip(optimizers, peaks, strict=True):
            for group in optimizer.param_groups:
                group["lr"] = peak * factor
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
        if not math.isfinite(losses[-1]):
            raise FloatingPointError(f"{name}: the loss is {losses[-1]} at step {step}; lower muon_rate and resume")
        if (step + 1) % every == 0 or step + 1 == steps:
            curve.append({"step": step + 1, "tokens": (step + 1) * recipe.batch * recipe.length,
                          "loss": float(np.mean(losses)), "distilling": distilling,
                          "seconds": spent + time.perf_counter() - began, "accuracy": task_accuracy(model, probes)})
            bar.set_postfix(loss=curve[-1]["loss"], **{k[:6]: v for k, v in curve[-1]["accuracy"].items()})
            losses = []
            with replacing(checkpoint) as aside:
                torch.save({"model": model.state_dict(), "optimizers": [o.state_dict() for o in optimizers],
                            "step": step + 1, "curve": json.dumps(curve), "key": json.dumps(key)}, aside)
            with replacing(work / f"{name}.curve.json") as aside:
                aside.write_text(json.dumps(curve, indent=1))
    return curve


def make_probes(tokenizer: PreTrainedTokenizerFast, length: int, per_task: int = 24, seed: int = 0) -> list:
    """Held-out conversations: (task, token ids, answer mask) for :func:`task_accuracy`."""
    out = []
    for task in mechanical.MAKERS:
        for prompt in mechanical.prompts(task, per_task, seed):
            ids, is_answer = pocket_data.conversation(tokenizer, prompt.turns, prompt.meta["answers"])
            if len(ids) <= length:
                out.append((task, ids, is_answer))
    return out


@torch.no_grad()
def task_accuracy(model: PreTrainedModel, probes: list) -> dict[str, float]:
    """Share of the answers' tokens that are the model's first choice under teacher forcing, per task."""
    right: dict[str, list[int]] = {}
    device = next(model.parameters()).device
    for task, ids, is_answer in probes:
        with torch.autocast(device.type, dtype=torch.bfloat16):
            best = model(torch.tensor([ids], device=device), use_cache=False).logits[0, :-1].argmax(-1).tolist()
        right.setdefault(task, []).extend(int(b == t) for b, t, a in zip(best, ids[1:], is_answer[1:]) if a)
    return {task: sum(r) / len(r) for task, r in right.items()}


def export(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, folder: Path, story: dict) -> None:
    """Write an ordinary model directory in bfloat16 (safetensors), and ``training.json`` beside it."""
    aside = folder.with_name(folder.name + ".new")
    model.to(torch.bfloat16).save_pretrained(aside)
    tokenizer.save_pretrained(aside)
    (aside / "training.json").write_text(json.dumps(story, indent=1) + "\n")
    for file in aside.iterdir():
        file.chmod(0o644)
    old = folder.with_name(folder.name + ".old")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)
    aside.rename(folder)
    shutil.rmtree(old, ignore_errors=True)
    model.float()


def _story(part: str, shape: Shape | QwenShape, model: PreTrainedModel, recipe: Recipe, curve: list[dict]) -> dict:
    return {
        "part": part, "parameters": sum(p.numel() for p in model.parameters()), "recipe": asdict(recipe),
        "shape": asdict(shape), "curve": curve, "python": platform.python_version(), "torch": torch.__version__,
        "transformers": transformers.__version__, "device": next(model.parameters()).device.type,
        "trained_on": "standard library of the Python named here, modules held out by hash excepted, and mechanical "
                      "tasks made from it", "licence_of_text": "PSF-2.0",
        "modules": len(corpus.stdlib_modules("train")), "heldout_modules": len(corpus.stdlib_modules("heldout")),
    }


def _check_work(work: Path, part: str, recipe: Recipe) -> None:
    """Refuse, before hours of training, checkpoints that a run could not go on from.

    Raises
    ------
    ValueError
        As :func:`train`; and if the draft's was distilled from a target that is yet to be trained on.
    """
    steps = {"target": recipe.target_steps, "draft": recipe.draft_steps, "qwen": recipe.qwen_steps}
    held = {name: _held(work / f"{name}.pt", _recipe_key(recipe), steps[name])
            for name in (("target", "draft") if part == "both" else (part,))}
    if part == "both" and held["draft"] is not None:
        target = held["target"]
        if target is None or target["step"] < recipe.target_steps:
            raise ValueError(f"{work / 'draft.pt'} is of a run with another teacher: the target is yet to be trained "
                             f"to {recipe.target_steps} steps; delete it to train the draft anew behind the target, "
                             "or name another folder with --work")


def main(argv: list[str] | None = None) -> int:
    """Train the pair or the second target, or go on with a run that was stopped."""
    defaults = Recipe()
    parser = argparse.ArgumentParser(prog="python -m specdec_lib pocket", description=main.__doc__)
    parser.add_argument("--out", type=Path, default=paths.POCKET if paths.ROOT else Path("pocket"),
                        help="folder of target/ and draft/ (default: %(default)s)")
    parser.add_argument("--qwen-out", type=Path, default=paths.POCKET_QWEN if paths.ROOT else Path("pocket_qwen"),
                        help="folder that receives the second target (default: %(default)s)")
    parser.add_argument("--work", type=Path, default=Path("_build/pocket"), help="checkpoints of a run under way")
    parser.add_argument("--part", choices=["target", "draft", "both", "qwen"], default="both")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--target-steps", type=int, default=defaults.target_steps)
    parser.add_argument("--draft-steps", type=int, default=defaults.draft_steps)
    parser.add_argument("--qwen-steps", type=int, default=defaults.qwen_steps)
    parser.add_argument("--seed", type=int, default=defaults.seed)
    args = parser.parse_args(argv)
    recipe = replace(defaults, target_steps=args.target_steps, draft_steps=args.draft_steps,
                     qwen_steps=args.qwen_steps, seed=args.seed)
    return exit_status(lambda: _run(args, recipe), "interrupted; the same command goes on from the last checkpoint")


def _run(args: argparse.Namespace, recipe: Recipe) -> None:
    _check_work(args.work, args.part, recipe)
    args.work.mkdir(parents=True, exist_ok=True)
    args.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(recipe.seed)

    ready = args.work / "tokenizer"
    if ready.exists():
        tokenizer = PreTrainedTokenizerFast.from_pretrained(ready)
    else:
        tokenizer = pocket_data.train_tokenizer([m.text for m in corpus.stdlib_modules("train")], recipe.vocab_size, CONTEXT)
        with tempfile.TemporaryDirectory(dir=args.work, prefix=".tokenizer.") as aside:
            tokenizer.save_pretrained(Path(aside) / "tokenizer")
            (Path(aside) / "tokenizer").rename(ready)
    packed = args.work / f"sequences-{recipe.seed}.safetensors"
    if packed.exists():
        data = pocket_data.Sequences(**{k: v.numpy() for k, v in load_file(packed).items()})
    else:
        data = pocket_data.pack(tokenizer, recipe.tasks, recipe.length, recipe.task_rows, recipe.seed)
        with replacing(packed) as aside:
            save_file({"tokens": torch.from_numpy(data.tokens), "weights": torch.from_numpy(data.weights)}, aside)
    print(f"{len(data.tokens):,} rows of {recipe.length} tokens, {(data.weights > 1).mean():.0%} of them in answers")
    probes = make_probes(tokenizer, recipe.length)

    target = recipe.target.build(recipe.vocab_size).to(args.device)
    if args.part in ("target", "both"):
        curve = train(target, data, recipe.target_steps, recipe, args.work, "target", probes)
        export(target, tokenizer, args.out / "target", _story("target", recipe.target, target, recipe, curve))
    if args.part != "target":
        target = LlamaForCausalLM.from_pretrained(args.out / "target", dtype=torch.float32).to(args.device).eval()
    if args.part in ("draft", "both"):
        draft = recipe.draft.build(recipe.vocab_size).to(args.device)
        curve = train(draft, data, recipe.draft_steps, recipe, args.work, "draft", probes, teacher=target,
                      distill_from=round(recipe.draft_steps * (1 - recipe.distill_share)))
        export(draft, tokenizer, args.out / "draft", _story("draft", recipe.draft, draft, recipe, curve))
    if args.part == "qwen":
        qwen = recipe.qwen.build(recipe.vocab_size).to(args.device)
        # From the first step: the target's distribution teaches more a token than the text does.
        curve = train(qwen, data, recipe.qwen_steps, recipe, args.work, "qwen", probes, teacher=target, every=100)
        export(qwen, tokenizer, args.qwen_out, _story("qwen", recipe.qwen, qwen, recipe, curve))
