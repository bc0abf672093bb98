"""``make bench``: how fast SmolLM2 decodes here, with transformers and with llama.cpp, on one thread and in turns.

Writes ``data/results/cpu/seconds.csv``, which chapter 6 shows. Seconds are those that the thread ran: a turn
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
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
import transformers
import typer
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.generation.streamers import BaseStreamer

from specdec_lib import DraftTree, generate, load_model, paths, report
from specdec_lib.commands import options
from specdec_lib.decoding.results import PARTS
from specdec_lib.decoding.served_models import vocabulary_size
from specdec_lib.decoding.target import Target
from specdec_lib.drafters.pass_costs import PassCosts
from specdec_lib.experiments.costs.measured_passes import chain_of
from specdec_lib.experiments.costs.timing import with_ids_of
from specdec_lib.experiments.data import prompts
from specdec_lib.experiments.data.prompt import render
from specdec_lib.experiments.statistics.intervals import median_interval
from specdec_lib.experiments.workbench import ModelPair
from specdec_lib.methods import PLAIN, build, draft_length
from specdec_lib.models import smollm2
from specdec_lib.wheels import fetch

#: By kind of prompt: its task, a word of it, and a size in tokens; the reporting half's prompt of the nearest size is taken.
KINDS = {
    "summary": ("summarisation", "", 700),
    "rename": ("code editing", "ename", 100),
    "completion": ("code completion", "", 150),
    "chat": ("conversation", "", 50),
}
#: By the word in the table's keys.
OURS = {"plain": PLAIN, "pld": "PLD", "h": "PLD+ (h)", "specdec": "SpecDec", "eagle": "EAGLE", "one_tree": "One tree"}
#: llama.cpp's ways: without drafts, and with those that it looks up in the prompt.
LLAMA = ("llama", "llama_lookup")
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


def of_llama(file: Path, drafter: Any, new: int) -> Run:
    """llama.cpp on the GGUF file itself, whose 4 bits a weight it computes with, and with one of its drafters or none."""
    from llama_cpp import Llama

    threads = {"n_threads": 1, "n_threads_batch": 1}
    model = Llama(str(file), n_ctx=1536, draft_model=drafter, logits_all=drafter is not None, verbose=False, **threads)

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
    drafters, missing = build(pair, list(OURS.values()))
    known = {word: name for word, name in OURS.items() if name in drafters}
    runs = {word: of_ours(pair.target, drafters[name], new, steps[name]) for word, name in known.items()}
    runs["transformers"] = of_transformers(plain, new)
    lookup = {"prompt_lookup_num_tokens": draft_length("PLD", {}), "max_matching_ngram_size": 3}
    runs["transformers_lookup"] = of_transformers(plain, new, **lookup)
    draft = with_ids_of(pair.draft, vocabulary_size(plain))
    runs["transformers_assisted"] = of_transformers(plain, new, assistant_model=draft)
    if importlib.util.find_spec("llama_cpp"):
        from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

        lookup = LlamaPromptLookupDecoding(3, draft_length("PLD", {}))
        drafters = dict(zip(LLAMA, (None, lookup), strict=True))
        runs |= {name: of_llama(fetch(smollm2.FILE), drafter, new) for name, drafter in drafters.items()}
    missing |= {name: "the extra bench" for name in LLAMA if name not in runs}
    print("".join(f"left out: {name}, which needs {what}\n" for name, what in missing.items()), end="")
    return runs


#: What each round measured, by kind of prompt and way of decoding.
ByRound = Mapping[tuple[str, str], Sequence[float]]


def speeds(
    runs: Mapping[str, Run], asked: Mapping[str, list[int]], rounds: int
) -> tuple[ByRound, ByRound, dict[tuple[str, str], Sequence[int]]]:
    """Tokens per second after the first token, seconds to the first, and the last round's tokens."""
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
    return rate, first, tokens


def numbers_of_speeds(rate: ByRound, first: ByRound) -> dict[str, Any]:
    """The table's medians, and ratios within a round; None for what could not be run here."""

    def speed(kind: str, way: str) -> Any:
        return median_interval(rate[kind, way]) if (kind, way) in rate else None

    def ratio(kind: str, ours: str, theirs: str = PLAIN) -> Any:
        known = (kind, ours) in rate and (kind, theirs) in rate
        return _ratio(rate[kind, ours], rate[kind, theirs]) if known else None

    def wait(kind: str, way: str) -> Any:
        return median_interval(first[kind, way]) if (kind, way) in first else None

    ways = ("transformers", "transformers_lookup", "transformers_assisted", *OURS, *LLAMA)
    theirs = {"plain": "transformers", "pld": "transformers_lookup", "specdec": "transformers_assisted"}
    return {
        **{f"{kind}_{way}_tokens_per_s": speed(kind, way) for kind in KINDS for way in ways},
        **{f"{kind}_{way}_over_plain": ratio(kind, way) for way in ways if way != PLAIN for kind in KINDS},
        **{f"summary_{way}_over_{other}": ratio("summary", way, other) for way, other in theirs.items()},
        **{f"summary_{way}_first_token_s": wait("summary", way) for way in (PLAIN, "llama")},
    }


def _ratio(ours: Sequence[float], theirs: Sequence[float]) -> Any:
    return median_interval(np.asarray(ours) / np.asarray(theirs))


def _timed(run: Callable[[], Any], clock: Callable[[], float]) -> float:
    began = clock()
    run()
    return clock() - began


class Passes(NamedTuple):
    """What each round measured of a model's passes, the first round left out."""

    #: Seconds by width.
    seconds: dict[int, list[float]]
    #: Seconds to sum as many numbers as the model has.
    reading: list[float]
    #: The output layer's and the other matrix products' shares of a pass over one token.
    output_layer: list[float]
    other_products: list[float]


@torch.inference_mode()
def passes(models: Mapping[str, PreTrainedModel], rounds: int, clock: Callable[[], float] = clock) -> dict[str, Passes]:
    """Passes by name of the model."""
    out: dict[str, Passes] = {}
    for name, model in models.items():
        spent: dict[int, list[float]] = defaultdict(list)
        reading, output_layer, other_products = [], [], []
        within: dict[nn.Module, float] = defaultdict(float)

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
                reading.append(_timed(many.sum, clock))
                layers = [module for module in model.modules() if isinstance(module, nn.Linear)]
                hooks = [each.register_forward_pre_hook(begin) for each in layers]
                hooks += [each.register_forward_hook(end) for each in layers]
                within.clear()
                whole = _timed(lambda: target.verify(5, DraftTree.chain([])), clock)
                for hook in hooks:
                    hook.remove()
                last = within[model.get_output_embeddings()]
                output_layer.append(last / whole)
                other_products.append((sum(within.values()) - last) / whole)
        later = {width: own[1:] for width, own in spent.items()}
        out[name] = Passes(later, reading[1:], output_layer[1:], other_products[1:])
    return out


def numbers_of_passes(passes: Mapping[str, Passes]) -> dict[str, Any]:
    """The table's costs of passes and shares of a pass's time."""

    def cost(model: str, width: int) -> Any:
        return _ratio(passes[model].seconds[width], passes[model].seconds[1])

    def of_reading(model: str) -> Any:
        return _ratio(passes[model].reading, passes[model].seconds[1])

    return {
        "ours_pass_over_read": of_reading("ours"),
        "transformers_pass_over_read": of_reading("transformers"),
        "ours_share_output_layer": median_interval(passes["ours"].output_layer),
        "ours_share_other_products": median_interval(passes["ours"].other_products),
        **{
            f"{model}_w{width}_over_w1": cost(model, width)
            for model in ("ours", "transformers", "all_threads")
            for width in WIDTHS[1:]
        },
    }


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
    rounds: Annotated[int, options.whole_number("of turns")] = 7,
    tokens: Annotated[int, options.whole_number("of an answer")] = 64,
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
    to_first = median_interval(to_first_token(5))
    passed = passes({"ours": target, "transformers": plain, "draft": draft}, 2 * rounds)
    torch.set_num_threads(os.cpu_count() or 1)
    passed |= passes({"all_threads": target}, 2 * rounds, time.perf_counter)
    torch.set_num_threads(1)
    spent = passed["ours"].seconds
    one = median_interval(spent[1]).value
    widths = {width: _ratio(each, spent[1]).value for width, each in spent.items()}
    pair.costs = PassCosts(widths, drafted_token=median_interval(passed["draft"].seconds[1]).value / one)
    rate, first, written = speeds(runs_of(pair, plain, tokens, steps), asked, rounds)
    for (kind, way), each in written.items():
        if each != written[kind, PLAIN]:
            print(f"{way} wrote other tokens than plain decoding: {kind}")
    whole = sum(getattr(step, part) for step in steps["PLD"] for part in PARTS)
    counted = {
        "summary_prompt_tokens": len(asked["summary"]),
        "chat_prompt_tokens": len(asked["chat"]),
        "threads": os.cpu_count(),
        "tokens": tokens,
        "rounds": rounds,
        "load": load,
    }
    measured = {
        "to_first_token_s": to_first,
        **numbers_of_passes(passed),
        **numbers_of_speeds(rate, first),
        "pld_outside_passes": 1 - sum(step.verify_seconds for step in steps["PLD"]) / whole,
    }
    with chdir(out):
        report.save("seconds", counted, measured)


if __name__ == "__main__":
    typer.run(main)
