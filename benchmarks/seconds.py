"""``make bench``: how fast SmolLM2 decodes here, with transformers and with llama.cpp, on one thread and in turns.

Writes ``data/results/cpu/seconds.csv``, which the page ``book/seconds.md`` shows. Seconds are those that the thread ran: a turn
of another program on its core does not count, and on an idle machine they are those of the clock.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import chdir
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import transformers
import typer
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.generation.streamers import BaseStreamer

from specdec_lib import DraftTree, generate, load_model, paths, report
from specdec_lib.chapters.ch06_gpu_benchmarks import with_ids_of
from specdec_lib.commands import options
from specdec_lib.decoding.results import PARTS
from specdec_lib.decoding.served_models import vocabulary_size
from specdec_lib.decoding.target import Target
from specdec_lib.drafters.pass_prices import PassPrices
from specdec_lib.experiments import prompts
from specdec_lib.experiments.pass_costs import chain_of
from specdec_lib.experiments.recorded_runs import render
from specdec_lib.experiments.statistics import median
from specdec_lib.experiments.workbench import ModelPair
from specdec_lib.methods import METHODS, PLAIN, build, draft_length
from specdec_lib.models import smollm2
from specdec_lib.wheels import fetch

#: By kind of prompt: its task, a word of it, and a size in tokens; the reporting half's prompt of the nearest size is taken.
KINDS = {
    "summary": ("summarisation", "", 700),
    "rename": ("code editing", "ename", 100),
    "completion": ("code completion", "", 150),
    "chat": ("conversation", "", 50),
}
OURS = (PLAIN, "PLD", "PLD+ (h)", "SpecDec", "EAGLE", "One tree")
#: What ours are compared with in a round: transformers' ways, each with ours that does the same, and llama.cpp's.
PEERS = {"transformers": PLAIN, "transformers_lookup": "PLD", "transformers_assisted": "SpecDec"}
LLAMA = {"llama": False, "llama_lookup": True}
WIDTHS, CONTEXT = (1, 2, 4, 8, 16, 32), 400
FIRST_TOKEN = (
    "import time; from specdec_lib import generate, load_model; model, tokenizer = load_model('smollm2'); "
    "generate(model, tokenizer('Hello')['input_ids'], max_new_tokens=1); print(time.process_time())"
)
#: Decodes token ids and calls the function at each block of new tokens.
Run = Callable[[list[int], Callable[..., None]], Sequence[int]]
clock = time.process_time


def chosen(tokenizer: Any) -> dict[str, list[int]]:
    """The prompt of each kind, as token ids."""
    found = {}
    for kind, (task, word, size) in KINDS.items():
        asked = [render(each, tokenizer) for each in prompts.load("report", [task]) if word in each.turns[0]]
        found[kind] = min(asked, key=lambda ids: abs(len(ids) - size))
    return found


class _Noted(BaseStreamer):
    """Calls a function at each block of tokens after the prompt."""

    def __init__(self, note: Callable[..., None]):
        self.note, self.prompt = note, True

    def put(self, value: torch.Tensor) -> None:
        if not self.prompt:
            self.note()
        self.prompt = False

    def end(self) -> None:
        pass


def of_transformers(model: PreTrainedModel, new: int, **options: Any) -> Run:
    """``model.generate``, greedy."""

    def run(ids: list[int], note: Callable[..., None]) -> list[int]:
        prompt = torch.tensor([ids])
        given = {"do_sample": False, "max_new_tokens": new, "pad_token_id": 0, "streamer": _Noted(note), **options}
        return model.generate(prompt, attention_mask=torch.ones_like(prompt), **given)[0, len(ids) :].tolist()

    return run


def of_ours(model: PreTrainedModel, drafter: Any, new: int, steps: list) -> Run:
    """Our ``generate`` with a drafter that has seen no other prompt; the steps are kept."""

    def run(ids: list[int], note: Callable[..., None]) -> list[int]:
        if drafter is not None:
            drafter.reset()
        done = generate(model, ids, drafter, max_new_tokens=new, on_tokens=note)
        steps.extend(done.steps)
        return done.tokens

    return run


def of_llama(file: Path, lookup: bool, new: int) -> Run:
    """llama.cpp on the GGUF file itself, whose 4 bits a weight it computes with."""
    from llama_cpp import Llama
    from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

    drafter = LlamaPromptLookupDecoding(3, draft_length("PLD", {})) if lookup else None
    threads = {"n_threads": 1, "n_threads_batch": 1}
    model = Llama(str(file), n_ctx=1536, draft_model=drafter, logits_all=lookup, verbose=False, **threads)

    def run(ids: list[int], note: Callable[..., None]) -> list[int]:
        model.reset()  # else it keeps what it computed of an equal prompt
        tokens: list[int] = []
        for token in model.generate(ids, temp=0.0):
            note()
            tokens.append(token)
            if token == model.token_eos() or len(tokens) == new:
                return tokens

    return run


def runs_of(pair: ModelPair, plain: PreTrainedModel, new: int, steps: Mapping[str, list]) -> dict[str, Run]:
    """What can be run here, by name; of the rest it is printed what is missing."""
    drafters, missing = build(pair, OURS)
    runs = {_slug(name): of_ours(pair.target, drafter, new, steps[name]) for name, drafter in drafters.items()}
    runs["transformers"] = of_transformers(plain, new)
    lookup = {"prompt_lookup_num_tokens": draft_length("PLD", {}), "max_matching_ngram_size": 3}
    runs["transformers_lookup"] = of_transformers(plain, new, **lookup)
    draft = with_ids_of(pair.draft, vocabulary_size(plain))
    runs["transformers_assisted"] = of_transformers(plain, new, assistant_model=draft)
    if importlib.util.find_spec("llama_cpp"):
        runs |= {name: of_llama(fetch(smollm2.FILE), lookup, new) for name, lookup in LLAMA.items()}
    missing |= {name: "the extra bench" for name in LLAMA if name not in runs}
    print("".join(f"left out: {name}, which needs {what}\n" for name, what in missing.items()), end="")
    return runs


def _slug(name: str) -> str:
    return METHODS[name].slug if name in METHODS else name


def speeds(runs: Mapping[str, Run], asked: Mapping[str, list[int]], rounds: int) -> dict[str, Any]:
    """Tokens per second after the first token, seconds to the first, and ratios within a round, by kind and method."""
    rate, first, tokens = defaultdict(list), defaultdict(list), {}
    for number in range(rounds + 1):
        for kind, ids in asked.items() if number else [("chat", asked["chat"])]:  # the first round warms up
            order = [*runs][number % len(runs) :] + [*runs][: number % len(runs)]
            for name in order:
                moments: list[float] = []
                began = clock()
                tokens[kind, name] = list(runs[name](ids, lambda *_: moments.append(clock())))
                if number:
                    rate[kind, name].append((len(tokens[kind, name]) - 1) / (clock() - moments[0]))
                    first[kind, name].append(moments[0] - began)
            print(f"round {number} of {rounds}: {kind}", flush=True)
    out: dict[str, Any] = {}
    for kind, name in product(asked, [*map(_slug, OURS), *PEERS, *LLAMA]):
        if name not in runs:
            out |= {f"{kind}_{name}_{what}": None for what in ("tokens_per_s", "first_token_s", "over_plain")}
            continue
        out[f"{kind}_{name}_tokens_per_s"] = median(rate[kind, name])
        out[f"{kind}_{name}_first_token_s"] = median(first[kind, name])
        out[f"{kind}_{name}_equal"] = tokens[kind, name] == tokens[kind, PLAIN]
        if name != PLAIN:
            out[f"{kind}_{name}_over_plain"] = _ratio(rate[kind, name], rate[kind, PLAIN])
        if name in PEERS:
            ours = _slug(PEERS[name])
            out[f"{kind}_{ours}_over_{name}"] = _ratio(rate[kind, ours], rate[kind, name])
    return out


def _ratio(ours: Sequence[float], theirs: Sequence[float]) -> Any:
    return median(np.asarray(ours) / np.asarray(theirs))


def _timed(run: Callable[[], Any], clock: Callable[[], float]) -> float:
    began = clock()
    run()
    return clock() - began


@torch.inference_mode()
def passes(models: Mapping[str, PreTrainedModel], rounds: int, clock: Callable[[], float] = clock) -> dict[str, Any]:
    """Prices of passes by width, by name of the model, and where the time of a pass over one token goes."""
    out: dict[str, Any] = {}
    for name, model in models.items():
        spent, parts, within = defaultdict(list), defaultdict(list), defaultdict(float)

        def begin(module: nn.Module, *_: Any) -> None:
            within[module] -= clock()

        def end(module: nn.Module, *_: Any) -> None:
            within[module] += clock()

        many = torch.ones(sum(weights.numel() for weights in model.parameters()))
        with Target(model, CONTEXT + 2 * max(WIDTHS)) as target:
            target.extend(chain_of(model, CONTEXT))
            for _ in range(rounds + 1):
                for width in WIDTHS:
                    tree = DraftTree.chain(chain_of(model, width - 1))
                    spent[width].append(_timed(lambda: target.verify(5, tree), clock))
                spent["read"].append(_timed(many.sum, clock))
                layers = [module for module in model.modules() if isinstance(module, nn.Linear)]
                hooks = [each.register_forward_pre_hook(begin) for each in layers]
                hooks += [each.register_forward_hook(end) for each in layers]
                within.clear()
                whole = _timed(lambda: target.verify(5, DraftTree.chain([])), clock)
                for hook in hooks:
                    hook.remove()
                last = within[model.get_output_embeddings()]
                parts["output_layer"].append(last / whole)
                parts["other_products"].append((sum(within.values()) - last) / whole)
                parts["rest"].append(1 - sum(within.values()) / whole)
        bytes_read = 4 * len(many)
        out[f"{name}_pass_ms"] = median([1e3 * each for each in spent[1][1:]])
        out[f"{name}_read_gb_per_s"] = median([bytes_read / each / 1e9 for each in spent["read"][1:]])
        out[f"{name}_pass_over_read"] = _ratio(spent["read"][1:], spent[1][1:])
        out |= {f"{name}_w{width}_over_w1": _ratio(spent[width][1:], spent[1][1:]) for width in WIDTHS[1:]}
        out |= {f"{name}_share_{part}": median(shares[1:]) for part, shares in parts.items()}
    return out


def to_first_token(rounds: int) -> list[float]:
    """Seconds that a new process runs to import the library, load the model and write a token."""
    spent = []
    for _ in range(rounds):
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        run = subprocess.run(
            [sys.executable, "-c", FIRST_TOKEN], check=True, env=environment, stdout=subprocess.PIPE, text=True
        )
        spent.append(float(run.stdout.split()[-1]))
    return spent


def main(
    rounds: Annotated[int, options.whole("of turns")] = 7,
    tokens: Annotated[int, options.whole("of an answer")] = 64,
    out: Annotated[Path, options.folder("of the table")] = paths.DATA / "results" / "cpu",
) -> None:
    """Measure how fast SmolLM2 decodes here, with transformers and with llama.cpp, on one thread and in turns."""
    out.mkdir(parents=True, exist_ok=True)
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    load = os.getloadavg()[0]
    target, tokenizer = load_model(smollm2.NAME, "cpu", "float32")
    plain = AutoModelForCausalLM.from_pretrained(smollm2.folder(), dtype=torch.float32).eval()
    draft, _ = load_model("smollm2-draft", "cpu", "float32")
    pair = ModelPair(target, draft, tokenizer)
    asked, steps = chosen(tokenizer), defaultdict(list)
    measured = {"to_first_token_s": median(to_first_token(5))}
    measured |= passes({"ours": target, "transformers": plain, "draft": draft}, 2 * rounds)
    torch.set_num_threads(os.cpu_count() or 1)
    measured |= passes({"all_threads": target}, 2 * rounds, time.perf_counter)
    torch.set_num_threads(1)
    widths = {1: 1.0} | {width: measured[f"ours_w{width}_over_w1"].value for width in WIDTHS[1:]}
    token = measured["draft_pass_ms"].value / measured["ours_pass_ms"].value
    pair.prices = PassPrices(widths, drafted_token=token)
    measured |= speeds(runs_of(pair, plain, tokens, steps), asked, rounds)
    for name, done in steps.items():
        whole = sum(getattr(step, part) for step in done for part in PARTS)
        measured[f"{_slug(name)}_outside_passes"] = 1 - sum(step.verify_seconds for step in done) / whole
    counted = {f"{kind}_prompt_tokens": len(ids) for kind, ids in asked.items()}
    counted |= {"threads": os.cpu_count(), "tokens": tokens, "rounds": rounds, "load": load}
    with chdir(out):
        report.save("seconds", counted, measured)


if __name__ == "__main__":
    typer.run(main)
