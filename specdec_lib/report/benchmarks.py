"""``make bench``: our speed beside transformers', the same work in one run, into ``_build/bench.json``.

Each measurement alternates between the two, so that a drift of the machine meets both. A row's ``value`` and
``peer_value`` are medians, ``p99`` the 99th percentile of ours (for rates: exceeded by 99 % of the samples), ``ratio`` the
median of the paired ratios ours / peer, and ``ratio_spread`` their 10th and 90th percentile.
"""
from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM, PreTrainedModel
from transformers.generation.candidate_generator import CandidateGenerator, PromptLookupCandidateGenerator
from tqdm.auto import tqdm

from specdec_lib import generate, load_model, paths
from specdec_lib.decoding.contract import Capture, Context, Drafter
from specdec_lib.decoding.sampling import Sampling
from specdec_lib.decoding.results import PARTS
from specdec_lib.decoding.target import Target
from specdec_lib.decoding.tree import DraftTree
from specdec_lib.drafters import DraftModel, PromptLookup, PromptLookupAttention, PromptLookupHidden
from specdec_lib.experiments import draft_costs, made_tasks
from specdec_lib.chapters.ch05_specdec_pp.head_study import head_cost
from specdec_lib.heads.acceptance import AcceptanceHead
from specdec_lib.report import benchmarks_dense, benchmarks_retrieval, benchmarks_wide
from specdec_lib.report.display import provenance
from specdec_lib.files import write_atomic

#: Tasks whose prompts the end-to-end rows run over: one of continuation, two of editing.
TASKS = ("code-completion", "rename", "replace-word")
MAX_NGRAM, PLD_TOKENS, DRAFT_TOKENS = 3, 10, 4
_DRAFT = [1, 2, 3, 4, 5]


def row(name: str, unit: str, ours: list[float], peers: list[float], peer: str, higher_is_better: bool = False) -> dict:
    """One row of the file from paired samples."""
    ratios = np.asarray(ours) / np.asarray(peers)
    return {"name": name, "unit": unit, "value": float(np.median(ours)),
            "p99": float(np.percentile(ours, 1 if higher_is_better else 99)), "peer": peer,
            "peer_value": float(np.median(peers)), "ratio": float(np.median(ratios)),
            "ratio_spread": [float(v) for v in np.percentile(ratios, [10, 90])], "samples": len(ours),
            "device": provenance.device_class()}


def _seconds(run: Callable[[], Any]) -> tuple[float, Any]:
    began = time.perf_counter()
    out = run()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - began, out


def _prompts(tokenizer, per_task: int) -> list[list[int]]:
    ids = []
    for task in TASKS:
        for prompt in made_tasks.prompts(task, per_task):
            if prompt.chat:
                text = tokenizer.apply_chat_template([{"role": "user", "content": prompt.text}], tokenize=False,
                                                     add_generation_prompt=True)
            else:
                text = prompt.text
            ids.append(tokenizer(text, add_special_tokens=False)["input_ids"])
    return ids


def end_to_end(per_task: int, repeats: int, max_new_tokens: int) -> list[dict]:
    """Tokens per second, prefill included, of plain decoding, PLD and SpecDec against transformers' own."""
    model, tokenizer = load_model("pocket")
    draft, _ = load_model("pocket-draft")
    settings = draft.generation_config
    settings.num_assistant_tokens, settings.num_assistant_tokens_schedule = DRAFT_TOKENS, "constant"
    settings.assistant_confidence_threshold = 0.0
    methods = {
        "plain": (None, {}, "transformers generate"),
        "pld": (PromptLookup(MAX_NGRAM, PLD_TOKENS, variant="transformers"),
                {"prompt_lookup_num_tokens": PLD_TOKENS, "max_matching_ngram_size": MAX_NGRAM},
                "transformers prompt_lookup_num_tokens"),
        "specdec": (DraftModel(draft, DRAFT_TOKENS), {"assistant_model": draft}, "transformers assistant_model"),
    }
    rows = []
    for name, (drafter, options, peer) in methods.items():
        ours, peers, equal, total = [], [], 0, 0
        for repeat in tqdm(range(repeats + 1), desc=f"{name}: repeats", leave=False):
            for ids in _prompts(tokenizer, per_task):
                tensor = torch.tensor([ids], device=model.device)
                if drafter is not None:
                    drafter.reset()  # cold, also in later repeats
                spent, run = _seconds(lambda: generate(model, ids, drafter, max_new_tokens=max_new_tokens))
                theirs, out = _seconds(lambda: model.generate(
                    tensor, attention_mask=torch.ones_like(tensor), do_sample=False, max_new_tokens=max_new_tokens,
                    **options))
                new = out.shape[1] - len(ids)
                if repeat:  # the first round warms both up
                    ours.append(len(run.tokens) / spent)
                    peers.append(new / theirs)
                    equal += run.tokens == out[0, len(ids):].tolist()
                    total += 1
        rows.append(row(f"{name}_tokens_per_s", "tokens/s", ours, peers, peer, higher_is_better=True)
                    | {"same_output": equal / total, "max_new_tokens": max_new_tokens})
    return rows


class _SameDraft(Drafter):
    """Proposes the same five tokens at each step: work for the loop, none for a drafter."""

    def propose(self, context: Context, limit: int) -> DraftTree:
        return DraftTree.chain(_DRAFT[:limit])


class _SameCandidates(CandidateGenerator):
    """The same for transformers' assisted decoding."""

    def get_candidates(self, input_ids, *args, **kwargs):
        return torch.cat([input_ids, torch.tensor([_DRAFT])], dim=1), None

    def update_candidate_strategy(self, *args, **kwargs):
        pass


def _bare_forward(model: PreTrainedModel, length: int, repeats: int) -> float:
    """Median milliseconds of the model alone on a block of a draft and its root, our cache and mask."""
    with torch.inference_mode(), Target(model, length + 64) as target:
        target.extend([1] * length)
        width = len(_DRAFT) + 1
        mask, positions = target._chain_mask(width), target._positions[length: length + width][None]
        ids = torch.tensor([[7, *_DRAFT]])
        spent = [_seconds(lambda: model(input_ids=ids, attention_mask=mask, position_ids=positions,
                                        past_key_values=target.cache, use_cache=True).logits)[0] for _ in range(repeats)]
    return 1e3 * float(np.median(spent))


def _bare_forward_transformers(model: PreTrainedModel, length: int, repeats: int) -> float:
    """The same with transformers' dynamic cache and no mask given, as its assisted decoding calls it."""
    spent = []
    with torch.inference_mode():
        cache = DynamicCache(config=model.config)
        model(torch.ones((1, length), dtype=torch.long), past_key_values=cache, use_cache=True)
        ids = torch.tensor([[7, *_DRAFT]])
        for _ in range(repeats):
            spent.append(_seconds(lambda: model(input_ids=ids, past_key_values=cache, use_cache=True).logits)[0])
            cache.crop(-ids.shape[1])
    return 1e3 * float(np.median(spent))


def loop_overhead(rounds: int) -> list[dict]:
    """Time of a verify step beyond the model's forward, on a model whose forward costs next to nothing."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=256, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=4, max_position_embeddings=4096, bos_token_id=None, eos_token_id=None,
        attn_implementation="sdpa")).eval()
    prompt, new = [1 + i % 250 for i in range(128)], 128
    tensor = torch.tensor([prompt])
    model._get_candidate_generator = lambda **kwargs: _SameCandidates()
    ours, peers = [], []
    middle = len(prompt) + new // 2
    for _ in tqdm(range(rounds), desc="loop overhead", leave=False):
        run = generate(model, prompt, _SameDraft(), max_new_tokens=new, eos_token_id=[])
        spent = [1e3 * sum(getattr(s, part) for part in PARTS) for s in run.steps]
        ours.append(float(np.median(spent)) - _bare_forward(model, middle, 60))
        # transformers has no clock per step: the difference of a long and a short run leaves out what comes once.
        times = []
        for count in (new // 4, new):
            seconds, out = _seconds(lambda: model.generate(
                tensor, attention_mask=torch.ones_like(tensor), do_sample=False, max_new_tokens=count,
                prompt_lookup_num_tokens=len(_DRAFT)))
            times.append((seconds, out.shape[1]))
        # Of a run's tokens the first comes from the prefill, which the difference leaves out.
        steps = (times[1][1] - times[0][1]) * run.stats["verification_rate"]
        peers.append(1e3 * (times[1][0] - times[0][0]) / steps - _bare_forward_transformers(model, middle, 60))
    return [row("loop_overhead_ms", "ms/step", ours, peers, "transformers assisted decoding")]


def prompt_lookup(samples: int) -> list[dict]:
    """Microseconds of one PLD proposal, half of them with a match, three new tokens since the last."""
    rows = []
    for label, length in (("1k", 1_000), ("4k", 4_000), ("32k", 32_000)):
        rng = random.Random(0)
        tokens = [rng.randrange(4096) for _ in range(length)]
        context = Context(tokens, length, 4096, Sampling())
        drafter = PromptLookup(MAX_NGRAM, PLD_TOKENS)
        drafter.start(context)
        drafter.propose(context, PLD_TOKENS)
        peer = PromptLookupCandidateGenerator(num_output_tokens=PLD_TOKENS, max_matching_ngram_size=MAX_NGRAM,
                                              max_length=10**9)
        ours, peers = [], []
        for i in range(samples):
            place = rng.randrange(length - 50)
            tokens += tokens[place: place + 3] if i % 2 else [rng.randrange(4096) for _ in range(3)]
            spent, _ = _seconds(lambda: drafter.propose(context, PLD_TOKENS))
            tensor = torch.tensor([tokens])
            theirs, _ = _seconds(lambda: peer.get_candidates(tensor))
            ours.append(1e6 * spent)
            peers.append(1e6 * theirs)
        rows.append(row(f"pld_draft_us_{label}", "µs", ours, peers, "transformers PromptLookupCandidateGenerator"))
    return rows


def prompt_lookup_plus(quick: bool) -> list[dict]:
    """Milliseconds of one PLD+ proposal, bytes it keeps a token, and the target's pass with and without capture."""
    tokens = random.Random(0).choices(range(4096), [1 / (i + 1) for i in range(4096)], k=9_000)
    heads = tuple((block, head) for block in range(8) for head in range(1))
    drafters = {"h": PromptLookupHidden(4), "a": PromptLookupAttention(heads)}
    lengths = {1_000: "1k", 4_000: "4k", 8_000: "8k"}
    rows = []
    for found in draft_costs.drafting(drafters, tokens, list(lengths), steps=50 if quick else 500):
        name = f"pld_plus_{found['method']}_draft_ms_{lengths[found['tokens']]}"
        rows.append(alone(name, "ms", found["median_ms"], found["p99_ms"]))
        if found["tokens"] == 1_000:
            memory = f"pld_plus_{found['method']}_bytes_per_token"
            rows.append(alone(memory, "bytes", found["bytes_per_token"], found["bytes_per_token"]))
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=4096, hidden_size=320, intermediate_size=864, num_hidden_layers=8, num_attention_heads=5,
        num_key_value_heads=5, max_position_embeddings=8192, bos_token_id=None, eos_token_id=None,
        attn_implementation="sdpa")).eval()
    captures = {"none": Capture(), **{name: drafter.capture for name, drafter in drafters.items()}}
    for found in draft_costs.capturing(model, captures, [1_000] if quick else list(lengths), repeats=5 if quick else 30):
        name = f"pld_plus_pass_ms_{found['capture']}_{lengths[found['tokens']]}"
        rows.append(alone(name, "ms", found["median_ms"], found["p99_ms"]))
    return rows


def alone(name: str, unit: str, value: float, p99: float) -> dict:
    """A row without a peer."""
    return {"name": name, "unit": unit, "value": value, "p99": p99, "peer": None, "peer_value": None, "ratio": None,
            "device": provenance.device_class()}


def acceptance_head(steps: int, repeats: int) -> list[dict]:
    """Time of the acceptance head with keeping its state, in percent of a step of the draft model; no peer."""
    draft, tokenizer = load_model("pocket-draft")
    ids = _prompts(tokenizer, 1)[0]
    rows = []
    for name in ("acceptance", "acceptance-confidence"):
        head = AcceptanceHead.load(paths.POCKET / "head" / f"{name}.safetensors", draft)
        shares = []
        for _ in tqdm(range(repeats), desc=f"{name} head", leave=False):
            spent = head_cost(draft, head, ids, steps, 1)
            shares.append(100 * (spent["head"] + spent["capture"]) / spent["draft"])
        rows.append({"name": f"{name.replace('-', '_')}_head_percent", "unit": "% step", "value": float(np.median(shares)),
                     "p99": float(np.percentile(shares, 99)), "peer": None, "samples": len(shares),
                     "device": provenance.device_class()})
    return rows


def main(argv: list[str] | None = None) -> int:
    """Measure everything and write the file."""
    parser = argparse.ArgumentParser(prog="python -m specdec_lib bench", description=main.__doc__)
    parser.add_argument("--out", type=Path, default=(paths.ROOT or Path.cwd()) / "_build" / "bench.json")
    parser.add_argument("--quick", action="store_true", help="few samples: to see that it runs")
    args = parser.parse_args(argv)
    transformers.logging.set_verbosity_error()
    # Forwards this small gain little from a second thread and lose much when another program takes its core.
    torch.set_num_threads(1)
    rows = loop_overhead(2 if args.quick else 20) + prompt_lookup(50 if args.quick else 500)
    rows += prompt_lookup_plus(args.quick) + benchmarks_retrieval.rows(args.quick) + benchmarks_dense.rows(args.quick)
    rows += acceptance_head(20, 3) if args.quick else acceptance_head(100, 20)
    rows += benchmarks_wide.rows(args.quick)
    rows = (end_to_end(1, 1, 32) if args.quick else end_to_end(4, 3, 96)) + rows
    write_atomic(args.out, json.dumps({"rows": rows, "provenance": provenance.collect()}, indent=1) + "\n")
    width = max(len(r["name"]) for r in rows)
    for r in rows:
        peer = "no peer" if r["peer"] is None else (f"peer {r['peer_value']:10.3f}   ratio {r['ratio']:.3f} "
                                                    f"({r['ratio_spread'][0]:.3f}-{r['ratio_spread'][1]:.3f})")
        tail = "         –" if r["p99"] is None else f"{r['p99']:10.3f}"
        print(f"{r['name']:{width}}  {r['value']:10.3f} {r['unit']:9} p99 {tail}   {peer}   {r['device']}")
    print(f"written to {args.out}")
    return 0
