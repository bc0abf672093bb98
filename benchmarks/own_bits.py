"""``make bench``: SmolLM2 at its file's own 4 bits beside llama.cpp on the same file, in turns, on one thread and on all.

Prints each mark with its interval and writes ``data/results/cpu/own_bits.csv``, which chapter 6 reads. On one thread seconds are
those that the thread ran, on several those of the clock: run it on an idle machine, some 25 minutes, and ten more with ``--big``.
The same command goes on where it was interrupted.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import chdir
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer

from benchmarks import big_file, seconds
from specdec_lib import DraftTree, generate, load_model, paths, report
from specdec_lib.commands import options
from specdec_lib.decoding.lean_runtime import Lean
from specdec_lib.decoding.runtime import OF_MODEL
from specdec_lib.decoding.served_models import vocabulary_size
from specdec_lib.decoding.target import Target
from specdec_lib.drafters.pass_costs import PassCosts
from specdec_lib.experiments.costs.draft_costs import drafting_costs, long_text
from specdec_lib.experiments.costs.measured_passes import chain_of
from specdec_lib.experiments.data import prompts
from specdec_lib.experiments.data.prompt import render
from specdec_lib.experiments.statistics.intervals import Interval, mean_interval, median_interval
from specdec_lib.experiments.workbench import ModelPair
from specdec_lib.files import tree_digest, write_atomic
from specdec_lib.methods import METHODS, build, draft_length, tree_sources
from specdec_lib.models import smollm2
from specdec_lib.report.display.provenance import cpu_model
from specdec_lib.wheels import fetch

WIDTHS, CONTEXT = (1, 2, 4, 5, 8, 11, 16, 32), 300
#: Speculative ways of ours, of which the best one is asked about; the last two are published methods with short drafts.
SHORT = {"h_short": "PLD+ (h)", "eagle_short": "EAGLE"}
WAYS = (*(word for word in seconds.OURS if word != "plain"), *SHORT)
#: Tokens of a pass of :data:`SHORT`: published drafts are as wide as suits a GPU.
NARROW = 4
PROMPTS, FORCED = 50, 32
#: Seconds from the start of a process to its first token, and its peak of memory above the imports in bytes, as Linux counts it
#: for this program: what ``resource`` says is never below the peak of the process that started it.
FRESH = """
import sys
from pathlib import Path
from specdec_lib import generate, load_model
import specdec_lib.models.packed_models, transformers.models.llama.modeling_llama

def peak():
    return 1024 * int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])

before = peak()
model, tokenizer = load_model(sys.argv[1], dtype="file")
above = peak() - before
ids = tokenizer.apply_chat_template([{"role": "user", "content": "What is a prime number?"}], add_generation_prompt=True)
ids = ids["input_ids"] if hasattr(ids, "keys") else ids
generate(model, ids, max_new_tokens=1)
print(above, flush=True)
"""


def clock_for(threads: int) -> Callable[[], float]:
    """What the thread ran, or with several the clock on the wall."""
    return time.process_time if threads == 1 else time.perf_counter


def llama(file: Path, threads: int, lookup: bool = False) -> Any:
    """A model of llama.cpp."""
    from llama_cpp import Llama
    from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

    drafter = LlamaPromptLookupDecoding(3, draft_length("PLD", {})) if lookup else None
    counts = {"n_threads": threads, "n_threads_batch": threads}
    return Llama(str(file), n_ctx=1536, draft_model=drafter, logits_all=lookup, verbose=False, **counts)


@torch.inference_mode()
def passes(model: Any, file: Path | None, threads: int, rounds: int) -> tuple[dict, dict]:
    """Seconds of passes by width, of ours and of llama.cpp, in turns."""
    clock = clock_for(threads)
    torch.set_num_threads(threads)
    ours, theirs = defaultdict(list), defaultdict(list)
    peer = None if file is None else llama(file, threads)
    tokens = chain_of(model, CONTEXT)
    if peer is not None:
        peer.eval(tokens)
    with Target(model, CONTEXT + 2 * max(WIDTHS)) as target:
        target.extend(tokens)
        for number in range(rounds + 1):
            for width in WIDTHS:
                tree = DraftTree.chain(chain_of(model, width - 1))
                began = clock()
                target.verify(5, tree)
                spent = clock() - began
                if number:
                    ours[width].append(spent)
                if peer is not None:
                    peer.n_tokens = CONTEXT
                    began = clock()
                    peer.eval([5, *tree.tokens])
                    if number:
                        theirs[width].append(clock() - began)
    return ours, theirs


def speeds(pair: ModelPair, file: Path | None, threads: int, rounds: int, tokens: int) -> tuple[Any, Any]:
    """Tokens per second and seconds to the first token, by kind of prompt and way, a round each."""
    torch.set_num_threads(threads)
    seconds.clock = clock_for(threads)
    drafters, missing = build(pair, list(seconds.OURS.values()))
    drafters |= {word: METHODS[name].sized(pair, NARROW) for word, name in SHORT.items() if name in drafters}
    print("".join(f"left out: {name}, which needs {what}\n" for name, what in missing.items()), end="")
    runs = {
        word: seconds.of_ours(pair.target, drafters[name], tokens, [])
        for word, name in (seconds.OURS | {word: word for word in SHORT}).items()
        if name in drafters
    }
    if file is not None:
        runs |= {name: _of(llama(file, threads, name == "llama_lookup"), tokens) for name in seconds.LLAMA}
    rate, first, written = seconds.speeds(runs, seconds.chosen(pair.tokenizer), rounds)
    for (kind, way), each in written.items():
        if way not in seconds.LLAMA and each != written[kind, "plain"]:
            raise AssertionError(f"{way} wrote other tokens than plain decoding: {kind}")
    return rate, first


def _of(model: Any, new: int) -> seconds.Run:
    def run(ids: list[int], note: Callable[..., None]) -> list[int]:
        model.reset()
        tokens: list[int] = []
        for token in model.generate(ids, temp=0.0):
            note()
            tokens.append(token)
            if token == model.token_eos() or len(tokens) == new:
                break
        return tokens

    return run


@torch.inference_mode()
def quality(model: Any, tokenizer: Any) -> dict[str, Any]:
    """Against the de-quantised model in float32: KL divergence, and how often the most likely token is the same."""
    whole, _ = load_model(smollm2.NAME, "cpu", "float32")
    divergences, equal = [], []
    every = prompts.load("report")
    for prompt in every[:: max(1, len(every) // PROMPTS)][:PROMPTS]:
        ids = render(prompt, tokenizer)
        text = generate(whole, ids, max_new_tokens=FORCED, eos_token_id=[]).tokens
        rows = []
        for each in (whole, model):
            with Target(each, len(ids) + FORCED) as target:
                first = target.extend(ids)[None].clone()
                rows.append(torch.cat([first, target.verify(text[0], DraftTree.chain(text[1:-1]))]).double())
        expected, got = (each.log_softmax(-1) for each in rows)
        divergences.append(float((expected.exp() * (expected - got)).sum(-1).mean()))
        equal.append(float((expected.argmax(-1) == got.argmax(-1)).double().mean()))
    return {
        "quality_prompts": len(equal),
        "kl_divergence": mean_interval(divergences),
        "equal_greedy_choices": mean_interval(equal),
    }


def fresh(place: str, threads: int) -> tuple[float, float]:
    """Seconds from the start of a new process to its first token, and its peak of memory above the imports."""
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    command, began = [sys.executable, "-c", FRESH, place], time.perf_counter()
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        peak, spent = process.stdout.readline(), time.perf_counter() - began
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return spent, float(peak)


def busy(model: Any, rounds: int) -> Interval:
    """How much longer passes of 1, 5 and 16 tokens take on all threads while a program runs on each core."""
    torch.set_num_threads(os.cpu_count() or 1)

    def spent() -> np.ndarray:
        with torch.inference_mode(), Target(model, CONTEXT + 64) as target:
            target.extend(chain_of(model, CONTEXT))
            found = []
            for _ in range(rounds):
                began = time.perf_counter()
                for width in (1, 5, 16):
                    target.verify(5, DraftTree.chain(chain_of(model, width - 1)))
                found.append(time.perf_counter() - began)
        return np.array(found)

    idle = spent()
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
    try:
        time.sleep(1)
        return median_interval(spent() / np.median(idle))
    finally:
        for other in others:
            other.kill()


def on_threads(threads: int, rounds: int, tokens: int, file: Path | None) -> dict[str, Any]:
    """Passes by width, and speeds of all ways on each kind of prompt, on so many threads."""
    model, tokenizer = load_model(smollm2.NAME, dtype="file")
    draft, _ = load_model("smollm2-draft", "cpu", "float32")
    OF_MODEL[draft] = Lean(draft, bits=8)
    pair, on, found = ModelPair(model, draft, tokenizer), f"t{threads}", {}
    ours, theirs = passes(model, file, threads, 3 * rounds)
    drafted, _ = passes(draft, None, threads, 2)
    one = median_interval(ours[1]).value
    spent = {width: 1e3 * median_interval(own).value for width, own in ours.items()}
    text = long_text(tokenizer, vocabulary_size(model), CONTEXT)[:CONTEXT]
    step, drafting = drafting_costs(model, {}, tree_sources(pair), text, 32, spent)
    widths = {width: ms / spent[1] for width, ms in spent.items()}
    pair.costs = PassCosts(widths, step, median_interval(drafted[1]).value / one, drafting=drafting)
    for width in WIDTHS:
        found[f"{on}_w{width}_ms"] = median_interval(1e3 * np.array(ours[width]))
        if theirs:
            found[f"{on}_llama_w{width}_ms"] = median_interval(1e3 * np.array(theirs[width]))
            found[f"{on}_w{width}_over_llama"] = seconds._ratio(ours[width], theirs[width])
    rate, first = speeds(pair, file, threads, rounds, tokens)
    for (kind, way), each in rate.items():
        found[f"{on}_{kind}_{way}_tokens_per_s"] = median_interval(each)
        if way != "plain":
            found[f"{on}_{kind}_{way}_over_plain"] = seconds._ratio(each, rate[kind, "plain"])
    found[f"{on}_first_token_s"] = median_interval(first["summary", "plain"])
    if file is not None:
        found[f"{on}_first_token_over_llama"] = seconds._ratio(first["summary", "plain"], first["summary", "llama"])
        for kind in seconds.KINDS:
            found[f"{on}_{kind}_plain_over_llama"] = seconds._ratio(rate[kind, "plain"], rate[kind, "llama"])
            peer = max(seconds.LLAMA, key=lambda way: median_interval(rate[kind, way]).value)
            way = max((w for w in WAYS if (kind, w) in rate), key=lambda w: median_interval(rate[kind, w]).value)
            found[f"{on}_{kind}_best"], found[f"{on}_{kind}_best_peer"] = way, peer
            found[f"{on}_{kind}_best_over_llama"] = seconds._ratio(rate[kind, way], rate[kind, peer])
    return found


def from_the_start(threads: int) -> dict[str, Any]:
    """What new processes take until their first token, in seconds and in memory."""
    starts = [fresh(smollm2.NAME, threads) for _ in range(5)]
    return {
        "start_to_first_token_s": median_interval([spent for spent, _ in starts]),
        "peak_over_file": median_interval([peak for _, peak in starts]).value / fetch(smollm2.FILE).stat().st_size,
    }


def one_billion(threads: int, peer: bool) -> dict[str, Any]:
    """Memory and one-token passes of a file of some billion weights."""
    with tempfile.TemporaryDirectory() as scratch:
        big = Path(scratch) / "llama-1b.gguf"
        big_file.write(big)
        fresh(str(big), threads)  # what is compared or written once
        _, peak = fresh(str(big), threads)
        large, _ = load_model(big, dtype="file")
        ours, theirs = passes(large, big if peer else None, threads, 2)
        found = {"big_peak_over_file": peak / big.stat().st_size, "big_w1_ms": median_interval(1e3 * np.array(ours[1]))}
        return found | ({"big_plain_over_llama": seconds._ratio(theirs[1], ours[1])} if theirs else {})


def marks(found: dict[str, Any], every: int) -> list[tuple[str, Any, str]]:
    """What was asked for: its name, the number that was measured, and the one that was asked for."""
    asked: list[tuple[str, str, str]] = []
    for threads in sorted({1, every}):
        on, words = f"t{threads}", f"{threads} threads"
        for kind in seconds.KINDS:
            best = f"{found.get(f'{on}_{kind}_best')} over {found.get(f'{on}_{kind}_best_peer')}"
            asked += [
                (f"{kind}, {words}: one tree over plain", f"{on}_{kind}_one_tree_over_plain", "1.0"),
                (f"{kind}, {words}: plain over llama.cpp", f"{on}_{kind}_plain_over_llama", "0.9"),
                (f"{kind}, {words}: {best}", f"{on}_{kind}_best_over_llama", "1.0, and 1.3 on two prompts"),
            ]
        over = f"{on}_first_token_over_llama"
        asked.append((f"700-token prompt, {words}: first token over llama.cpp's", over, "at most 1.2"))
    asked += [
        (f"passes of {width} over llama.cpp's, 1 thread", f"t1_w{width}_over_llama", f"at most {most}")
        for width, most in ((4, 0.55), (8, 0.55), (16, 0.5))
    ]
    asked += [
        ("process start to first token, s", "start_to_first_token_s", "3"),
        ("passes on a busy machine over an idle one", "busy_over_idle", "at most 3"),
        ("1B file: peak over its size", "big_peak_over_file", "at most 1.5"),
        (f"1B file, {every} threads: plain over llama.cpp", "big_plain_over_llama", "0.9"),
    ]
    return [(name, found[key], wanted) for name, key, wanted in asked if key in found]


def main(
    rounds: Annotated[int, options.whole_number("of turns")] = 4,
    tokens: Annotated[int, options.whole_number("of an answer")] = 64,
    out: Annotated[Path, options.folder("of the table")] = paths.DATA / "results" / "cpu",
    big: Annotated[bool, typer.Option(help="Also a file of some billion weights, which it writes first.")] = False,
) -> None:
    """Measure, print the marks, and write the table at the end; parts that are measured stay until all of them are."""
    out.mkdir(parents=True, exist_ok=True)
    file = fetch(smollm2.FILE) if importlib.util.find_spec("llama_cpp") else None
    if file is None:
        print("left out: llama.cpp, which needs the extra bench")
    every = os.cpu_count() or 1
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        **{f"{n} threads": partial(on_threads, n, rounds, tokens, file) for n in sorted({1, every})},
        "start": partial(from_the_start, every),
        "busy": lambda: {"busy_over_idle": busy(load_model(smollm2.NAME, dtype="file")[0], 4 * rounds)},
        "quality": lambda: quality(*load_model(smollm2.NAME, dtype="file")),
    }
    if big:
        parts["one billion"] = partial(one_billion, every, file is not None)
    asked = [rounds, tokens, file is not None, tree_digest(paths.PACKAGE)]
    kept = out / "own_bits.part.json"
    done = json.loads(kept.read_text()) if kept.is_file() else {}
    done = done if done.get("asked") == asked else {"asked": asked}
    for name, measure in parts.items():
        if name not in done:
            print(f"measuring: {name}", flush=True)
            done[name] = measure() | {f"load_{name.replace(' ', '_')}": os.getloadavg()[0]}
            write_atomic(kept, json.dumps(done))
    found: dict[str, Any] = {}
    for name in parts:
        found |= {
            key: Interval(*value) if isinstance(value, list | tuple) else value for key, value in done[name].items()
        }
    for name, value, wanted in marks(found, every):
        print(f"{name}: {value:.3g} (asked: {wanted})")
    counts = {key: value for key, value in found.items() if key in done["quality"]}
    with chdir(out):
        about = {"threads": every, "rounds": rounds, "tokens": tokens, "processor": cpu_model()}
        report.save("own_bits", about | counts, {key: value for key, value in found.items() if key not in counts})
    if big:
        kept.unlink()


if __name__ == "__main__":
    typer.run(main)
