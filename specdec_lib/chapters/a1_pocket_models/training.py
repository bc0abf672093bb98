"""Recipe of the pocket models: the target and drafts that the book runs on by default, and a second target.

``make pocket-data`` prepares the text (:mod:`specdec_lib.chapters.a1_pocket_models.training_text`);
``python -m specdec_lib pocket`` trains on it. The targets learn by next-token loss alone, each on its own; the drafts
by next-token loss and then by distillation from the target. Hidden matrices are trained with Muon (as shipped with
torch), embeddings and norms with AdamW. The rate is constant and the windows are short at first; over the last part the
windows are long and the rate falls to zero. A run can be lengthened from any checkpoint of its first part.
"""

from __future__ import annotations

import json
import math
import platform
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
import transformers
from tqdm.auto import tqdm
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from specdec_lib import paths
from specdec_lib.chapters.a1_pocket_models import carrying, training_rows, training_text
from specdec_lib.chapters.a1_pocket_models.muon import BatchedMuon
from specdec_lib.experiments import made_tasks
from specdec_lib.files import replacing
from specdec_lib.models.fingerprint import fingerprint

CONTEXT = 2048
#: Fields of a recipe that a run's checkpoint is not bound to: what may grow, and the shapes of all parts (its own is
#: seen in its parameters).
_FREE = ("target_steps", "draft_steps", "qwen_steps", "target", "draft", "draft_small", "draft_large", "qwen")
#: Tokens that a processor takes through the model at once: what a pass keeps then stays in its cache. A step adds up the
#: gradients of its passes.
TOKENS_PER_PASS = 2048
#: Steps whose rows are made at once.
_BLOCK = 32
#: Parts that are distilled from the target.
DRAFTS = ("draft", "draft_small", "draft_large")
#: What a run trains: the target, a draft or the second target.
PARTS = ("target", *DRAFTS, "qwen")


@dataclass(frozen=True)
class Shape:
    """Llama shape of one of the pair; heads are 64 wide in the target, 32 in the draft."""

    hidden_size: int
    layers: int
    heads: int
    intermediate_size: int

    def build(self, vocab_size: int) -> LlamaForCausalLM:
        """Freshly initialised model with tied embeddings."""
        return LlamaForCausalLM(LlamaConfig(**_settings(self, vocab_size), num_key_value_heads=self.heads))


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
        return Qwen3ForCausalLM(
            Qwen3Config(**_settings(self, vocab_size), num_key_value_heads=self.kv_heads, head_dim=32)
        )


def _settings(shape: Shape | QwenShape, vocab_size: int) -> dict:
    """What the configurations of all shapes have in common."""
    return {
        "vocab_size": vocab_size,
        "hidden_size": shape.hidden_size,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "intermediate_size": shape.intermediate_size,
        "max_position_embeddings": CONTEXT,
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": 0,
        "pad_token_id": 3,
        "attn_implementation": "sdpa",
    }


@dataclass(frozen=True)
class Recipe:
    """Everything that decides the outcome, besides the Python whose library is read."""

    vocab_size: int = 4096
    target: Shape = Shape(320, 8, 5, 864)
    draft: Shape = Shape(128, 3, 4, 352)
    draft_small: Shape = Shape(64, 2, 2, 176)
    draft_large: Shape = Shape(224, 4, 7, 608)
    qwen: QwenShape = QwenShape(192, 6, 6, 3, 512)
    length: int = 512
    long_length: int = 2048
    tokens_per_step: int = 12_288
    task_share: float = 0.6
    copying_steps: int = 1000
    target_steps: int = 12_500
    draft_steps: int = 2500
    qwen_steps: int = 5000
    distill_share: float = 1 / 2
    muon_rate: float = 6e-3
    adamw_rate: float = 2e-3
    last_share: float = 0.2
    warmup_steps: int = 100
    seed: int = 0

    def last_part(self, steps: int) -> int:
        """First step of the last part of a run, with long windows and a falling rate."""
        return steps - round(steps * self.last_share)


def rate_factor(step: int, steps: int, recipe: Recipe, begun: int = 0) -> float:
    """Share of the peak rate at ``step``: linear warm-up from ``begun`` on, constant, linear decay to zero over the last part."""
    warm = (step + 1 - begun) / recipe.warmup_steps
    return min(warm, 1.0, (steps - step) / max(1, steps - recipe.last_part(steps)))


class Batches:
    """Rows of each step of a run, made by :class:`specdec_lib.chapters.a1_pocket_models.training_rows.Rows` for a
    block of steps at a time."""

    def __init__(self, rows: training_rows.Rows, recipe: Recipe, steps: int):
        self.rows, self.recipe, self.steps = rows, recipe, steps
        self._held: tuple[tuple, tuple[np.ndarray, np.ndarray]] | None = None

    def __call__(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """Tokens and loss weights of one step; a function of the step, so that a resumed run sees the same rows."""
        recipe, last = self.recipe, self.recipe.last_part(self.steps)
        length, first = (recipe.length, 0) if step < last else (recipe.long_length, last)
        names = training_rows.COPYING_TASKS if step < recipe.copying_steps else tuple(training_rows.TASK_SHARES)
        tasks = {name: training_rows.TASK_SHARES[name] for name in names}
        batch = recipe.tokens_per_step // length
        number, place = divmod(step - first, _BLOCK)
        key = (number, length, names)
        if self._held is None or self._held[0] != key:
            self._held = key, self.rows.block(number, _BLOCK * batch, length, tasks)
        tokens, weights = self._held[1]
        return tokens[place * batch : (place + 1) * batch], weights[place * batch : (place + 1) * batch]


def rows_of_steps(batches: Batches, first: int, device: torch.device) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Tokens and loss weights of the steps from ``first`` on, on the device.

    For a GPU the next step's are made while this one's are worked on, and moved from pinned memory, so that neither
    waits.
    """
    if device.type != "cuda":
        for step in range(first, batches.steps):
            yield tuple(torch.from_numpy(rows).to(device) for rows in batches(step))
        return

    def made(step: int) -> tuple[torch.Tensor, torch.Tensor]:
        return tuple(torch.from_numpy(rows).pin_memory() for rows in batches(step))

    with ThreadPoolExecutor(1) as maker:
        coming = maker.submit(made, first)
        for step in range(first, batches.steps):
            rows = coming.result()
            if step + 1 < batches.steps:
                coming = maker.submit(made, step + 1)
            yield tuple(each.to(device, non_blocking=True) for each in rows)


def _optimizers(model: torch.nn.Module, recipe: Recipe) -> list[torch.optim.Optimizer]:
    hidden = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n and "lm_head" not in n]
    chosen = {id(p) for p in hidden}
    others = [p for p in model.parameters() if id(p) not in chosen]
    return [
        BatchedMuon(hidden, lr=recipe.muon_rate, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, lr=recipe.adamw_rate, betas=(0.9, 0.95), weight_decay=0.0, fused=others[0].is_cuda),
    ]


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
    return (each * w).sum()


def accumulate(loss_of: Callable, rows_per_pass: int, tokens: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Add the gradients of a step's mean loss, some rows at a time, and return that loss.

    Parameters
    ----------
    loss_of : callable
        Sum of the weighted losses of some rows' tokens: ``loss_of(tokens, weights)``.
    """
    total, losses = weights[:, 1:].sum(), []
    for some, own in zip(tokens.split(rows_per_pass), weights.split(rows_per_pass), strict=True):
        loss = loss_of(some, own) / total
        loss.backward()
        losses.append(loss.detach())
    return torch.stack(losses).sum()


def _recipe_key(recipe: Recipe) -> dict:
    return {name: value for name, value in asdict(recipe).items() if name not in _FREE}


def _key(model: PreTrainedModel, recipe: Recipe, teacher: PreTrainedModel | None) -> dict:
    """What a run's weights follow from, but for its length."""
    return {
        **_recipe_key(recipe),
        "shape": {name: list(p.shape) for name, p in model.named_parameters()},
        "teacher": None if teacher is None else fingerprint(teacher),
    }


def _held(checkpoint: Path, key: dict, steps: int, recipe: Recipe) -> dict | None:
    """The state in a checkpoint; None where there is none.

    Raises
    ------
    ValueError
        If it is of a run with another ``key``, or of the last part of a run whose length was not ``steps``.
    """
    if not checkpoint.exists():
        return None
    state = torch.load(checkpoint, weights_only=True, map_location="cpu")
    advice = "delete it to start again, or name another folder with --work"
    if "key" not in state:
        raise ValueError(f"{checkpoint} does not say which seed, recipe and teacher it was trained with; {advice}")
    held = json.loads(state["key"])
    differ = [name for name in key if held.get(name) != key[name]]
    if differ:
        raise ValueError(f"{checkpoint} is of a run with another {', '.join(differ)}; {advice}")
    if state["steps"] != steps and state["step"] > min(map(recipe.last_part, (steps, state["steps"]))):
        raise ValueError(
            f"{checkpoint} is of step {state['step']} of a run of {state['steps']} steps, whose last part "
            f"had begun or would have begun in one of {steps}; ask for {state['steps']} steps, {advice}"
        )
    return state


def train(
    model: PreTrainedModel,
    batches: Batches,
    recipe: Recipe,
    work: Path,
    name: str,
    probes: list,
    heldout: dict[str, np.ndarray],
    corpus: str,
    teacher: PreTrainedModel | None = None,
    distill_from: int = 0,
    every: int = 100,
    compiled: bool = True,
    pieces: Path | None = None,
    until: float = math.inf,
    before: list[dict] | None = None,
) -> list[dict]:
    """Train ``model`` in place; return its learning curve, which ends before the last step where time is over.

    Parameters
    ----------
    model : PreTrainedModel
        float32 parameters; the forward runs in bfloat16.
    batches : Batches
        Rows of each step, and how many steps there are.
    work : Path
        Folder of the checkpoint ``{name}.pt`` (plain tensors), from which a stopped run goes on, or a longer one.
    probes : list
        Held-out tasks for :func:`task_accuracy`, looked at each ``every`` steps.
    heldout : dict of str to uint16 array
        Held-out text for :func:`text_loss`, looked at as often.
    corpus : str
        Fingerprint of the text; a checkpoint names it.
    teacher : PreTrainedModel, optional
        Distilled from (Kullback-Leibler divergence over the whole vocabulary) from step ``distill_from`` on.
    every : int
        Steps between checkpoints.
    compiled : bool
        Compile the step: several times faster once compiled, which takes half a minute.
    pieces : Path, optional
        Folder that receives each checkpoint in pieces (:mod:`specdec_lib.chapters.a1_pocket_models.carrying`). Where
        ``work`` has no checkpoint the run goes on from them.
    until : float
        Moment of :func:`time.monotonic` at which the run must have ended: it does after the checkpoint from which the
        next would come too late.
    before : list of dict, optional
        Learning curve that led to the weights of ``model``: where there is no checkpoint the run goes on from its last
        step, with optimizers that start again.

    Returns
    -------
    list of dict
        ``step``, ``tokens``, ``loss`` (mean since the last row), ``distilling``, ``seconds``, ``accuracy``
        (per task), ``heldout`` (nats a token, per text).

    Raises
    ------
    ValueError
        If the checkpoint is of another seed, recipe, corpus, shape or teacher, or cannot become a run of so many steps.
    """
    device, steps = next(model.parameters()).device, batches.steps
    key = {**_key(model, recipe, teacher), "corpus": corpus}
    optimizers = _optimizers(model, recipe)
    checkpoint = work / f"{name}.pt"
    curve = list(before or ())
    first = begun = curve[-1]["step"] if curve else 0
    if pieces is not None and not checkpoint.exists():
        carrying.join(pieces, checkpoint)
    state = _held(checkpoint, key, steps, recipe)
    if state is not None:
        model.load_state_dict(state["model"])
        for optimizer, saved in zip(optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        first, curve, begun = state["step"], json.loads(state["curve"]), state.get("begun", 0)
    peaks = [recipe.muon_rate, recipe.adamw_rate]
    loss_of = torch.compile(_loss, dynamic=False) if compiled else _loss
    if device.type == "cpu":
        # torch's fused attention reaches a quarter of the rate of its matrix products there.
        for each in filter(None, (model, teacher)):
            each.set_attn_implementation("eager")
    losses, began, spent = [], time.perf_counter(), curve[-1]["seconds"] if curve else 0.0
    last = time.monotonic()
    coming = rows_of_steps(batches, first, device)
    for step in (bar := tqdm(range(first, steps), initial=first, total=steps, desc=name, mininterval=10)):
        tokens, weights = next(coming)
        distilling = teacher is not None and step >= distill_from
        rows_per_pass = max(1, TOKENS_PER_PASS // (tokens.shape[1] - 1)) if device.type == "cpu" else len(tokens)
        own_loss = partial(loss_of, model, teacher if distilling else None)
        loss = accumulate(own_loss, rows_per_pass, tokens, weights)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        factor = rate_factor(step, steps, recipe, begun)
        for optimizer, peak in zip(optimizers, peaks, strict=True):
            for group in optimizer.param_groups:
                group["lr"] = peak * factor
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        losses.append(loss)
        if (step + 1) % every == 0 or step + 1 == steps:
            mean = float(torch.stack(losses).mean())
            if not math.isfinite(mean):
                raise FloatingPointError(
                    f"{name}: the loss is {mean} at step {step}; lower muon_rate and start again "
                    "from the last checkpoint"
                )
            losses = []
            curve.append(
                {
                    "step": step + 1,
                    "tokens": (step + 1) * recipe.tokens_per_step,
                    "loss": mean,
                    "distilling": distilling,
                    "seconds": spent + time.perf_counter() - began,
                    "accuracy": task_accuracy(model, probes),
                    "heldout": text_loss(model, heldout),
                }
            )
            bar.set_postfix(loss=mean, **{k[:6]: v for k, v in curve[-1]["heldout"].items()})
            with replacing(checkpoint) as aside:
                torch.save(
                    {
                        "model": model.state_dict(),
                        "optimizers": [o.state_dict() for o in optimizers],
                        "step": step + 1,
                        "steps": steps,
                        "begun": begun,
                        "curve": json.dumps(curve),
                        "key": json.dumps(key),
                    },
                    aside,
                )
            with replacing(work / f"{name}.curve.json") as aside:
                aside.write_text(json.dumps(curve, indent=1))
            if pieces is not None:
                carrying.split(checkpoint, pieces)
            now = time.monotonic()
            if now + (now - last) > until:
                break
            last = now
    coming.close()
    return curve


def _stretches(tokens: np.ndarray, length: int, count: int) -> np.ndarray:
    """Evenly spaced stretches of ``length`` tokens and the one after, shape (count, length + 1): fewer of a short text,
    and all of one that is shorter than a stretch."""
    width = min(length + 1, len(tokens))
    starts = np.linspace(0, len(tokens) - width, min(count, len(tokens) // width)).astype(int)
    return np.stack([tokens[start : start + width] for start in starts]).astype(np.int64)


@torch.no_grad()
def _losses(model: PreTrainedModel, rows: np.ndarray) -> torch.Tensor:
    """Loss in nats of each token of the rows but the first, shape (rows, tokens - 1)."""
    device = next(model.parameters()).device
    ids = torch.from_numpy(rows).to(device)
    with torch.autocast(device.type, dtype=torch.bfloat16):
        logits = model(ids[:, :-1], use_cache=False).logits
    losses = F.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten(), reduction="none")
    return losses.reshape(len(rows), -1).cpu()


def text_loss(
    model: PreTrainedModel,
    texts: dict[str, np.ndarray],
    length: int = 512,
    windows: int = 12,
) -> dict[str, float]:
    """Mean loss in nats a token over ``windows`` evenly spaced windows of each text; one window where it is shorter."""
    return {name: float(_losses(model, _stretches(tokens, length, windows)).mean()) for name, tokens in texts.items()}


def loss_by_window(
    model: PreTrainedModel, texts: dict[str, np.ndarray], lengths: Sequence[int], stretches: int = 12
) -> dict[str, dict[str, float]]:
    """Mean loss in nats a token by the length of the window and by text.

    A stretch of text is as long as the longest window and is cut into windows of each length, so that each token is
    predicted once at each length.
    """
    found: dict[str, dict[str, float]] = {str(n): {} for n in lengths}
    for name, tokens in texts.items():
        rows = _stretches(tokens, max(lengths), stretches)
        for n in lengths:
            cuts = range(0, rows.shape[1] - 1, n)
            losses = [_losses(model, rows[k : k + 1, at : at + n + 1]) for k in range(len(rows)) for at in cuts]
            found[str(n)][name] = float(torch.cat(losses, 1).mean())
    return found


def make_probes(tokenizer: PreTrainedTokenizerFast, length: int, per_task: int = 24, seed: int = 0) -> list:
    """Held-out conversations: (task, token ids, answer mask) for :func:`task_accuracy`."""
    out = []
    for task in made_tasks.MAKERS:
        for prompt in made_tasks.prompts(task, per_task, seed):
            ids, is_answer = training_rows.conversation(tokenizer, prompt.turns, prompt.meta["answers"])
            if len(ids) <= length:
                out.append((task, ids, is_answer))
    return out


@torch.no_grad()
def answer_hits(model: PreTrainedModel, ids: Sequence[int], is_answer: Sequence[int]) -> list[bool]:
    """Whether each token of the answers of one conversation is the model's first choice under teacher forcing."""
    device = next(model.parameters()).device
    with torch.autocast(device.type, dtype=torch.bfloat16):
        best = model(torch.tensor([ids], device=device), use_cache=False).logits[0, :-1].argmax(-1).tolist()
    return [b == t for b, t, a in zip(best, ids[1:], is_answer[1:], strict=True) if a]


def task_accuracy(model: PreTrainedModel, probes: list) -> dict[str, float]:
    """Share of the answers' tokens that are the model's first choice under teacher forcing, per task."""
    right: dict[str, list[bool]] = {}
    for task, ids, is_answer in probes:
        right.setdefault(task, []).extend(answer_hits(model, ids, is_answer))
    return {task: sum(r) / len(r) for task, r in right.items()}


def export(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, folder: Path, story: dict, file_bytes: int = 2**32
) -> None:
    """Write an ordinary model directory in bfloat16 (safetensors), and ``training.json`` beside it.

    Weights that are larger than ``file_bytes`` together come in several files, as transformers writes and reads them.
    """
    aside = folder.with_name(folder.name + ".new")
    model.to(torch.bfloat16).save_pretrained(aside, max_shard_size=file_bytes)
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


def device_name(device: torch.device) -> str:
    """``"cpu"``, or the GPU's name."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def _story(
    part: str, shape: Shape | QwenShape, model: PreTrainedModel, recipe: Recipe, curve: list[dict], data: Path
) -> dict:
    return {
        "part": part,
        "parameters": sum(p.numel() for p in model.parameters()),
        "recipe": asdict(recipe),
        "shape": asdict(shape),
        "curve": curve,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "device": device_name(next(model.parameters()).device),
        "corpus": json.loads((data / "corpus.json").read_text()),
    }


def starting_weights(
    folder: Path, model: PreTrainedModel, recipe: Recipe, corpus: str
) -> tuple[dict[str, torch.Tensor], dict, list[dict]]:
    """Weights to begin with, where they come from, and the learning curve that led to them.

    The curve is empty where they were trained with another recipe or on another text: the run then begins at its first
    step.

    Raises
    ------
    ValueError
        If ``folder`` holds a model of another shape, or one that finished its run with this recipe.
    """
    told = json.loads((folder / "training.json").read_text(encoding="utf-8"))
    held = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    weights = held.state_dict()
    wanted = {name: tuple(values.shape) for name, values in model.state_dict().items()}
    if {name: tuple(values.shape) for name, values in weights.items()} != wanted:
        raise ValueError(f"{folder} holds a model of another shape; name weights of the part that is trained")
    same = told["corpus"].get("fingerprint") == corpus if isinstance(told.get("corpus"), dict) else False
    same = same and all(told["recipe"].get(name) == value for name, value in _recipe_key(recipe).items())
    curve = told["curve"] if same else []
    if curve and curve[-1]["step"] > recipe.last_part(told["steps"]):
        raise ValueError(
            f"the weights in {folder} are of step {curve[-1]['step']} of {told['steps']}, in the last part of their "
            "run, whose rate falls; name weights of an earlier step"
        )
    if same:
        return weights, told.get("start"), curve
    before = (told.get("start") or {}).get("tokens", 0)
    start = {"fingerprint": fingerprint(held), "tokens": before + told["curve"][-1]["tokens"]}
    return weights, start, curve


def train_part(
    part: str,
    recipe: Recipe,
    data: Path,
    work: Path,
    out: Path,
    qwen_out: Path,
    device: str,
    steps: int | None = None,
    every: int = 100,
    pieces: Path | None = None,
    seconds: float = math.inf,
    start: Path | None = None,
    under_way: Path | None = None,
) -> None:
    """Train one of :data:`PARTS` on prepared text, or go on with a run that was stopped, and export it.

    Parameters
    ----------
    part : str
    recipe : Recipe
    data : Path
        What :func:`specdec_lib.chapters.a1_pocket_models.training_text.prepare` wrote, or a file of
        :func:`specdec_lib.chapters.a1_pocket_models.carrying.compact`.
    work : Path
        Folder of the checkpoints.
    out, qwen_out : Path
        Folders that receive the target and the drafts, and the second target; the target there teaches the drafts.
    device : str
    steps : int, optional
        The recipe's by default.
    every : int
        Steps between checkpoints.
    pieces : Path, optional
        As for :func:`train`; its folder of the part's name receives the weights in files of at most
        :data:`~specdec_lib.chapters.a1_pocket_models.carrying.PIECE_BYTES` too.
    seconds : float
        The run ends after a checkpoint within so many; nothing is exported where that is not the last.
    start : Path, optional
        Model directory whose weights the run begins with, or goes on from, where it has no checkpoint: all tasks from
        its first step on, at half the rate.
    under_way : Path, optional
        Receives the weights of the last checkpoint as a model directory where the run ends before its last step;
        ``start`` goes on from it elsewhere.

    Raises
    ------
    FileNotFoundError
        If the text was not prepared.
    ValueError
        As for :func:`train`.
    """
    until = time.monotonic() + seconds
    if data.is_file():
        data = carrying.unpack(data, work / "data")
    steps = steps or {"target": recipe.target_steps, "qwen": recipe.qwen_steps}.get(part, recipe.draft_steps)
    text = training_text.load(data)
    work.mkdir(parents=True, exist_ok=True)
    out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(recipe.seed)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(paths.POCKET / "target")
    if start is not None:
        # Weights to begin with have learned to copy, and at the full rate they would first unlearn much.
        recipe = replace(recipe, copying_steps=0, muon_rate=recipe.muon_rate / 2, adamw_rate=recipe.adamw_rate / 2)
    rows = training_rows.Rows(tokenizer, text.stream, text.materials, recipe.task_share, recipe.seed)
    batches = Batches(rows, recipe, steps)
    probes = make_probes(tokenizer, recipe.length, per_task=8)
    shape = getattr(recipe, part)
    model = shape.build(recipe.vocab_size)
    origin, before = None, []
    if start is not None:
        weights, origin, before = starting_weights(start, model, recipe, text.fingerprint)
        model.load_state_dict(weights)
    model.to(device)
    teacher, distill_from = None, 0
    if part in DRAFTS:
        teacher = LlamaForCausalLM.from_pretrained(out / "target", dtype=torch.float32).to(device).eval()
        distill_from = round(steps * (1 - recipe.distill_share))
    curve = train(
        model,
        batches,
        recipe,
        work,
        part,
        probes,
        text.heldout,
        text.fingerprint,
        teacher,
        distill_from,
        every,
        pieces=pieces,
        until=until,
        before=before,
    )
    story = {**_story(part, shape, model, recipe, curve, data), "steps": steps, "start": origin}
    if curve[-1]["step"] < steps:
        if under_way is not None:
            export(model, tokenizer, under_way, story)
        print(f"stopped after step {curve[-1]['step']} of {steps}; the same command goes on from there")
        return
    story["heldout_loss"] = loss_by_window(model.eval(), text.heldout, (recipe.length, recipe.long_length))
    export(model, tokenizer, qwen_out if part == "qwen" else out / part, story)
    if pieces is not None:
        export(model, tokenizer, pieces / part, story, carrying.PIECE_BYTES)
