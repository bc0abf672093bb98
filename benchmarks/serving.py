"""How fast vLLM serves SmolLM2 here: plain, with its own drafters, and with this library's, in turns.

Run it with the Python that has vLLM (``make bench-vllm``). Writes ``data/results/cpu/serving.csv``, which the book reads, after
each round, and ``serving-costs.json``, what passes take. What it measured is kept in ``serving.part.json``: the same command goes
on after an interruption. One engine works at a time. What is imported at the top of this file, an engine's worker imports too:
where it finds numba, vLLM 0.32 ends.
"""

from __future__ import annotations

import copy
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

#: What is asked, by the name of the published set; where it is not at hand, the book's own prompts of that name. Of the code that
#: PLD+ edits too few records are published.
TASKS = {
    "summarisation": "spec-bench/summarization",
    "code editing": "humanevalpack/python",
    "code completion": "humaneval",
    "conversation": "mt-bench",
}
SIZES = (1, 2, 4, 8, 16, 32)
#: Most tokens of a draft.
MOST = 8
PROMPTS = 64
SPECULATIVE: dict[str, dict[str, Any] | None] = {
    "plain": None,
    # Arctic Inference's SuffixDecoding. It forgets answers, as ours does: the same prompts come again at other numbers of requests.
    "suffix": {"method": "suffix", "num_speculative_tokens": 32, "suffix_decoding_max_cached_requests": 0},
    "ours": {"method": "custom_class", "model": "benchmarks.serving.Switch", "num_speculative_tokens": MOST},
}
#: vLLM's own drafter, with the settings of its documentation; in the engine of ours, which schedules like that of ``ngram``.
NGRAM = {"num_speculative_tokens": 5, "prompt_lookup_max": 4, "prompt_lookup_min": 4}
#: Names of the file that tells the engine of ours how to draft, and of the costs that it reads.
WAY, COSTS = "SPECDEC_BENCH_WAY", "SPECDEC_BENCH_COSTS"


class Switch:
    """A proposer that a file names, and its most tokens; a new one at each change.

    ``adaptive`` is what a user's settings with costs give, ``fixed`` the same drafter at a fixed length, ``published``
    SuffixDecoding as its authors cut its drafts, by their match alone, and ``ngram`` vLLM's own.
    """

    def __init__(self, vllm_config: Any):
        self.config, self.way, self.inner, self.hits = vllm_config, "", None, None
        self._choose()

    def load_model(self, *_: Any, **__: Any) -> None:
        """Load nothing."""

    def _choose(self) -> None:
        way = Path(os.environ[WAY]).read_text()
        if way != self.way:
            self.way, self.inner = way, self._ngram() if way.startswith("ngram") else self._ours(way)

    def _ngram(self) -> Any:
        from vllm.v1.spec_decode.ngram_proposer import NgramProposer

        config = copy.copy(self.config)
        config.speculative_config = copy.copy(self.config.speculative_config)
        for name, value in NGRAM.items():
            setattr(config.speculative_config, name, value)
        return partial(NgramProposer(config).propose, NGRAM["num_speculative_tokens"])

    def _ours(self, way: str) -> Any:
        from specdec_lib.vllm import drafter_of_settings, proposer

        settings = {"drafter": "SuffixDecoding"} | ({} if way.startswith("published") else {"costs": os.environ[COSTS]})
        made = proposer(
            partial(drafter_of_settings, settings, MOST), os.environ[COSTS] if way.startswith("adaptive") else None
        )(self.config)
        if way.startswith("adaptive"):  # what it knows of drafts stays, what it remembers of answers does not
            made.hits = self.hits = self.hits or made.hits
        return made.propose

    def propose(self, *arguments: Any, **named: Any) -> list[list[int]]:
        """Ask the one that the file names."""
        self._choose()
        length = int(self.way.split()[1])
        return [draft[:length] for draft in self.inner(*arguments, **named)]


def asked(count: int = PROMPTS) -> tuple[str, str, list[list[int]]]:
    """The model's folder, whose prompts these are, and so many of them, of each task in turn, as token ids."""
    from transformers import AutoTokenizer

    from specdec_lib.experiments.data import prompts, tasks
    from specdec_lib.experiments.data.prompt import render
    from specdec_lib.experiments.data.published_sets.files import MissingData
    from specdec_lib.models import smollm2

    tokenizer = AutoTokenizer.from_pretrained(smollm2.folder())
    try:
        whose, sets = "the papers'", [tasks.load_task(name) for name in TASKS.values()]
    except MissingData as missing:
        print(f"the book's own prompts are asked, because {missing}", file=sys.stderr)
        whose, sets = "the book's", [prompts.load("report", [task]) for task in TASKS]
    # The shortest fit into an engine's cache at once, so that reading prompts takes hardly any time.
    chosen = [sorted((render(prompt, tokenizer) for prompt in task), key=len)[: count // len(TASKS)] for task in sets]
    return str(smollm2.folder()), whose, [ids for together in zip(*chosen, strict=True) for ids in together]


class Served:
    """One engine, and what its counters said last."""

    def __init__(self, model: str, name: str, longest: int):
        from vllm import LLM

        about = SPECULATIVE[name]
        self.llm = LLM(
            model, dtype="float32", max_model_len=longest, max_num_seqs=max(SIZES), speculative_config=about,
            # Where it speculates, vLLM 0.32 schedules so. Plain decoding is scheduled alike.
            enforce_eager=True, disable_log_stats=False, async_scheduling=False,
        )  # fmt: skip
        self.counted = name == "ours"

    def counters(self) -> tuple[int, int, int]:
        """Drafts, drafted and accepted tokens so far, of the engine of this process that was made last: it alone is counted."""
        found = {metric.name: getattr(metric, "value", 0) for metric in self.llm.get_metrics()}
        names = "num_drafts", "num_draft_tokens", "num_accepted_tokens"
        return tuple(int(found.get(f"vllm:spec_decode_{name}", 0)) for name in names)

    def run(self, prompts: Sequence[Sequence[int]], size: int, tokens: int) -> dict[str, float]:
        """Keep ``size`` requests in the engine until there are no more, and count what comes while it is full."""
        from vllm import SamplingParams

        engine, before = self.llm.llm_engine, self.counters()
        coming, running, began, first, last = list(enumerate(prompts)), {}, 0.0, {}, {}
        asked: dict[str, str] = {}
        counts: dict[str, int] = defaultdict(int)
        number = 0

        def add() -> None:
            nonlocal number
            place, ids = coming.pop(0)
            # Lengths differ, so that requests do not end together.
            new = tokens // 2 + (place * 7) % (tokens // 2 + 1)
            name = f"{id(self)}-{time.monotonic_ns()}-{number}"
            number += 1
            asked[name] = [*TASKS][place % len(TASKS)]
            running[name] = engine.add_request(
                name, {"prompt_token_ids": list(ids)}, SamplingParams(temperature=0, max_tokens=new, ignore_eos=True)
            )

        while len(running) < size:
            add()
        total, began = 0, time.perf_counter()
        while len(running) == size:
            for output in engine.step():
                now = time.perf_counter()
                name = output.request_id
                said = len(output.outputs[0].token_ids)
                total += said - counts[name]
                counts[name] = said
                first.setdefault(name, (now, said))
                last[name] = now, said
                if output.finished:
                    running.pop(name)
                    if coming:
                        add()
        seconds = time.perf_counter() - began
        engine.abort_request(list(running.values()) if all(running.values()) else list(running))
        while engine.has_unfinished_requests():
            engine.step()
        each = {n: (last[n][0] - first[n][0]) / (last[n][1] - first[n][1]) for n in last if last[n][1] > first[n][1]}
        drafts, drafted, accepted = (now - then for now, then in zip(self.counters(), before, strict=True))
        found = {"tokens_per_s": total / seconds, "ms_per_token": _mean_ms(each.values()), "emitted": total}
        for task in TASKS:
            if of_task := [taken for name, taken in each.items() if asked[name] == task]:
                found[task] = _mean_ms(of_task)
        if not self.counted:
            return found
        return found | {
            "accepted_length": 1 + accepted / drafts if drafts else 1.0,
            "drafted": drafted,
            "accepted": accepted,
        }


def _mean_ms(seconds: Collection[float]) -> float:
    return 1000 * sum(seconds) / len(seconds)


#: What one run gave, by way, size and quantity: a number for each round.
Measured = Mapping[tuple[str, int, str], Sequence[float]]


def numbers_of(measured: Measured) -> dict[str, Any]:
    """Medians over rounds with their intervals, and ratios within a round."""
    from specdec_lib.experiments.statistics.intervals import median_interval

    found: dict[str, Any] = {}
    for (way, size, quantity), values in measured.items():
        if quantity in ("tokens_per_s", "ms_per_token", "accepted_length"):
            found[f"{way}_b{size}_{quantity}"] = median_interval(values)
    for way, size, quantity in measured:
        if way == "ours" and quantity in TASKS:
            pairs = zip(measured["plain", size, quantity], measured[way, size, quantity], strict=True)
            found[f"ours_over_plain_b{size}_{quantity.replace(' ', '_')}"] = median_interval([a / b for a, b in pairs])
        if quantity != "tokens_per_s":
            continue
        own = measured[way, size, quantity]
        for other in ("plain", "ngram"):
            if way not in ("plain", other) and (other, size, quantity) in measured:
                pairs = zip(own, measured[other, size, quantity], strict=True)
                found[f"{way}_over_{other}_b{size}"] = median_interval([a / b for a, b in pairs])
        if way.startswith(("fixed", "published")):
            pairs = zip(measured["ours", size, quantity], own, strict=True)
            found[f"ours_over_{way}_b{size}"] = median_interval([a / b for a, b in pairs])
    return found


#: The least that ours has to reach: over plain decoding with one request, and with any number of them.
ONE, ANY = 1.25, 0.98


def marks(found: Mapping[str, Any]) -> dict[str, Any]:
    """Whether the lower ends of the intervals reach the marks; None without an interval of everything that a mark needs.

    ``pays_up_to`` is the largest number of requests up to which ours is faster than plain decoding, 0 for none.
    """

    def reach(least: float, *keys: str, more: bool = False) -> bool | None:
        if not all(key in found and found[key].known for key in keys):
            return None
        return all(found[key].low > least if more else found[key].low >= least for key in keys)

    pays = 0
    for size in SIZES:
        if not reach(1.0, f"ours_over_plain_b{size}", more=True):
            break
        pays = size
    return {
        "mark_one_request": reach(ONE, "ours_over_plain_b1"),
        "mark_every_batch": reach(ANY, *(f"ours_over_plain_b{size}" for size in SIZES)),
        "mark_fixed_lengths": reach(1.0, *(f"ours_over_fixed{n}_b4" for n in range(1, MOST + 1)), more=True),
        "mark_ngram": reach(1.0, *(f"ours_over_ngram_b{size}" for size in SIZES), more=True),
        "pays_up_to": pays,
    }


class Parts:
    """What each run gave, by round, size and way; on disk after each, and read again by the same command."""

    def __init__(self, path: Path, options: Mapping[str, Any]):
        self.path, self.options, self.runs = path, json.loads(json.dumps(options)), {}
        if path.is_file():
            kept = json.loads(path.read_text(encoding="utf-8"))
            if kept["options"] != self.options:
                raise ValueError(f"{path} is of a run with {kept['options']}; remove it, or give these options again")
            self.runs = kept["runs"]
            print(f"{len(self.runs)} runs are known from {path}")

    def __contains__(self, key: tuple[int, int, str]) -> bool:
        return "/".join(map(str, key)) in self.runs

    def add(self, key: tuple[int, int, str], run: Mapping[str, float]) -> None:
        self.runs["/".join(map(str, key))] = dict(run)
        aside = self.path.with_suffix(".new")
        aside.write_text(json.dumps({"options": self.options, "runs": self.runs}), encoding="utf-8")
        aside.replace(self.path)

    def measured(self, rounds: int) -> dict[tuple[str, int, str], list[float]]:
        """By way, size and quantity, a number for each of the first rounds."""
        found: dict[tuple[str, int, str], list[float]] = defaultdict(list)
        for key in sorted(self.runs, key=lambda key: int(key.split("/")[0])):
            number, size, way = key.split("/")
            for quantity, value in self.runs[key].items() if int(number) < rounds else ():
                found[way, int(size), quantity].append(value)
        return found


def main(
    rounds: Annotated[int, typer.Option(help="Of turns; an interval of a median needs six.")] = 6,
    tokens: Annotated[int, typer.Option(help="Most tokens of an answer; the least is half of it.")] = 40,
    out: Annotated[Path, typer.Option(help="Folder of the tables.")] = Path("data/results/cpu"),
    sizes: Annotated[str, typer.Option(help="Requests at once.")] = ",".join(map(str, SIZES)),
    fixed_at: Annotated[int, typer.Option(help="Requests at once at which fixed lengths are tried; 0 for none.")] = 4,
    ways: Annotated[str, typer.Option(help="Which engines.")] = ",".join(SPECULATIVE),
    costs: Annotated[
        str, typer.Option(help="What passes take: a file of calibrate-vllm or a name; else it is measured.")
    ] = "",
) -> None:
    """Measure how fast vLLM serves SmolLM2 here."""
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
    out.mkdir(parents=True, exist_ok=True)
    # vLLM warns that speculation on a processor is much slower without it.
    os.environ.setdefault("LD_PRELOAD", str(Path(sys.prefix) / "lib" / "libiomp5.so"))
    sys.path.insert(0, str(Path(__file__).parents[1]))  # engines find their modules where this process does
    load = os.getloadavg()[0]
    wanted = [int(size) for size in sizes.split(",")]
    # In a process of its own: an engine is a child that imports what this one has at its top, and numba must not be there.
    asking = "import json; from benchmarks import serving; print(json.dumps(serving.asked()))"
    made = subprocess.run([sys.executable, "-c", asking], check=True, stdout=subprocess.PIPE, text=True)
    folder, whose, prompts = json.loads(made.stdout.splitlines()[-1])
    longest = max(map(len, prompts)) + 2 * tokens + MOST + 8
    if not costs:
        costs = str((out / "serving-costs.json").resolve())
    parts = Parts(
        out / "serving.part.json",
        {
            "tokens": tokens,
            "sizes": wanted,
            "fixed_at": fixed_at,
            "ways": ways,
            "costs": Path(costs).name,
            "prompts": whose,
        },
    )
    if not parts.runs and Path(costs) == (out / "serving-costs.json").resolve():
        command = [sys.executable, "-m", "specdec_lib", "calibrate-vllm", folder, "--out", costs]
        options = ["--tokens", str(MOST), "--engine", '{"dtype": "float32", "enforce_eager": true}']
        subprocess.run([*command, *options], check=True)
    way = Path(tempfile.mkdtemp()) / "way"
    way.write_text(f"adaptive {MOST}")
    os.environ |= {WAY: str(way), COSTS: costs}
    names = ways.split(",")
    if "suffix" in names and importlib.util.find_spec("arctic_inference") is None:
        names.remove("suffix")
        print("suffix is left out: it needs the package arctic-inference")
    engines = {name: Served(folder, name, longest) for name in names}  # that of ours last
    fixed = {f"fixed{length}": f"fixed {length}" for length in range(1, MOST + 1)}
    others = {"published": f"published {MOST}", "ngram": f"ngram {MOST}", "ours": f"adaptive {MOST}"}
    of_ours = fixed | others if "ours" in names else {}
    for engine in engines.values():  # reads all prompts, whose keys and values stay in the engine's cache
        engine.run(prompts, max(wanted), 4)
    about = {"threads": os.cpu_count(), "tokens": tokens, "prompts": len(prompts), "prompts_of": whose, "load": load}
    for number in range(rounds):
        for size in wanted:
            # A round has its own prompts where a few are enough, as many of each task.
            count = min(len(prompts), (size // 2 + 2) * len(TASKS))
            chosen = [prompts[(number * count + place) % len(prompts)] for place in range(count)]
            once = {*fixed, "published"}
            turns = [name for name in dict.fromkeys([*engines, *of_ours]) if name not in once or size == fixed_at]
            for name in turns[number % len(turns) :] + turns[: number % len(turns)]:
                if (number, size, name) in parts:
                    continue
                # The numbers make it another drafter, which has seen no answer.
                way.write_text(f"{of_ours.get(name)} {number} {size}")
                engine = engines["ours" if name in of_ours else name]
                run = engine.run(chosen, size, tokens)
                parts.add((number, size, name), run)
                print(
                    f"round {number + 1} of {rounds}, {size} requests, {name}: {run['tokens_per_s']:.1f} tokens/s",
                    flush=True,
                )
        found = write(out, about | {"rounds": number + 1}, parts.measured(number + 1))
    parts.path.unlink()
    for name, value in marks(found).items():
        print(name, value)


def write(out: Path, about: Mapping[str, Any], measured: Measured) -> dict[str, Any]:
    """Write ``serving.csv`` and return its timed numbers; each way and size has all its rounds."""
    from vllm import __version__

    from specdec_lib import report
    from specdec_lib.report.display.provenance import cpu_model

    found = numbers_of(measured)
    here = Path.cwd()
    os.chdir(out)
    report.save("serving", {**about, "processor": cpu_model(), "vllm": __version__}, found | marks(found))
    os.chdir(here)
    return found


if __name__ == "__main__":
    typer.run(main)
