"""What a proposer saves in vLLM at measured costs of passes, without a clock: batches are replayed on answers that are known.

A timed ratio of two ways to cut drafts moves by some percent from round to round; here it depends on tokens and costs alone.
Batches, prompts and lengths are those of ``serving.py``, whose file of costs is read (``--costs``). With ``--choose`` other prompts
are asked, and SuffixDecoding's drafts of several lengths are compared: so the proposer's own length was chosen.

    PYTHONPATH=. python benchmarks/replayed_batches.py
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import chdir
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any
from unittest.mock import patch

import numpy as np
import torch
import typer

from benchmarks import serving
from specdec_lib import load_model, report, vllm
from specdec_lib.commands import options
from specdec_lib.drafters import SuffixDecoding
from specdec_lib.experiments.statistics.intervals import median_interval
from specdec_lib.files import write_atomic

#: Offsets of SuffixDecoding that ``--choose`` compares.
OFFSETS = (0.0, 1.0, 2.0, 3.0)
#: Seconds of drafting for one request: the larger of two measurements on an Intel Xeon, 0.091 and 0.136 ms. They are an input: a
#: replay knows no clock but that of the costs.
DRAFTING = 0.000136
Propose = Callable[[Sequence[Sequence[int]], np.ndarray, np.ndarray], list[list[int]]]


@torch.inference_mode()
def answers(prompts: Sequence[Sequence[int]], tokens: int, kept: Path) -> list[list[int]]:
    """SmolLM2's greedy answers of so many tokens, also past the end token, as ``serving.py`` asks for them; kept in a file."""
    if kept.is_file() and (known := json.loads(kept.read_text()))["prompts"] == [*map(list, prompts)]:
        return known["answers"]
    model, _ = load_model("smollm2", "cpu", "float32")
    said: list[list[int]] = []
    for ids in prompts:
        out = model.generate(
            torch.tensor([ids]),
            attention_mask=torch.ones(1, len(ids), dtype=torch.long),
            max_new_tokens=tokens,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
        said.append(out[0, len(ids) :].tolist())
        print(f"{len(said)} of {len(prompts)} answers", flush=True)
    write_atomic(kept, json.dumps({"prompts": [*map(list, prompts)], "answers": said}))
    return said


def ngram(sampled: Sequence[Sequence[int]], counts: np.ndarray, rows: np.ndarray) -> list[list[int]]:
    """vLLM's ``ngram`` with the settings of ``serving.py``: what followed the first occurrence of the last tokens."""
    size, most = serving.NGRAM["prompt_lookup_max"], serving.NGRAM["num_speculative_tokens"]
    drafts = []
    for place in range(len(sampled)):
        text = rows[place, : counts[place]]
        same = (np.lib.stride_tricks.sliding_window_view(text[:-1], size) == text[-size:]).all(1)
        begin = int(same.argmax()) + size
        drafts.append(text[begin : begin + most].tolist() if same.any() else [])
    return drafts


@dataclass
class Clock:
    """Time that passes as the costs say; the proposer reads it too."""

    now: float = 0.0

    def perf_counter(self) -> float:
        return self.now


@dataclass
class Request:
    """One request in the batch: its answer's tokens, how many it may say, and how many it said."""

    answer: list[int]
    most: int
    said: int = 0
    draft: list[int] = field(default_factory=list)


class Replay:
    """Batches on known answers at the costs of passes."""

    def __init__(self, asked: Sequence[Sequence[int]], said: list[list[int]], costs: Any, tokens: int):
        self.asked, self.said, self.costs, self.tokens, self.clock = asked, said, costs, tokens, Clock()
        longest = max(map(len, asked)) + 2 * tokens
        self.config = SimpleNamespace(
            speculative_config=SimpleNamespace(num_speculative_tokens=serving.MOST),
            model_config=SimpleNamespace(max_model_len=longest, get_vocab_size=lambda: 49_152, model="smollm2"),
            scheduler_config=SimpleNamespace(max_num_seqs=max(serving.SIZES)),
        )

    def speed(self, chosen: Sequence[int], size: int, propose: Propose | None, cut: int = serving.MOST) -> float:
        """Tokens per second while ``size`` requests are served at once, as :meth:`serving.Served.run` counts them."""
        with patch.object(vllm, "time", self.clock):  # the proposer compares its own time with what it saves
            return self._speed(chosen, size, propose, cut)

    def _speed(self, chosen: Sequence[int], size: int, propose: Propose | None, cut: int) -> float:
        coming, running = list(enumerate(chosen)), []
        rows = np.zeros((size, self.config.model_config.max_model_len), np.int32)
        counts = np.zeros(size, np.int64)

        def add() -> None:
            place, which = coming.pop(0)
            ids, row = self.asked[which], len(running)
            running.append(Request(self.said[which], self.tokens // 2 + (place * 7) % (self.tokens // 2 + 1)))
            rows[row, : len(ids)], counts[row] = ids, len(ids)

        while len(running) < size:
            add()
        total, began = 0, self.clock.now
        while len(running) == size:
            drafted = sum(len(request.draft) for request in running)
            self.clock.now += float(self.costs.curve(size, drafted)[drafted])
            sampled = []
            for row, request in enumerate(running):
                coming_next, accepted = request.answer[request.said :], 0
                while accepted < len(request.draft) and request.draft[accepted] == coming_next[accepted]:
                    accepted += 1
                new = coming_next[: min(accepted + 1, request.most - request.said)]
                rows[row, counts[row] : counts[row] + len(new)] = new
                counts[row] += len(new)
                request.said += len(new)
                total += len(new)
                sampled.append(new)
            if propose is not None:
                for request, draft in zip(running, propose(sampled, counts, rows), strict=True):
                    request.draft = draft[:cut]
                self.clock.now += DRAFTING * size
            for row in reversed(range(size)):
                if running[row].said >= running[row].most:  # the last one takes its place, as in vLLM
                    last = len(running) - 1
                    rows[row], counts[row], running[row] = rows[last], counts[last], running[last]
                    del running[last]
                    if coming:
                        add()
        return total / (self.clock.now - began)

    def rounds(self, number: int, sizes: Sequence[int], drafter: Callable[[], Any]) -> dict[str, list[float]]:
        """Ratios of speed, one for each round: over plain decoding, vLLM's ``ngram``, and at four requests each fixed length."""
        found, hits = defaultdict(list), None
        for turn in range(number):
            for size in sizes:
                count = min(len(self.asked), (size // 2 + 2) * len(serving.TASKS))
                chosen = [(turn * count + place) % len(self.asked) for place in range(count)]
                sized = vllm.proposer(drafter, self.costs)(self.config)
                sized.hits = hits = hits or sized.hits
                ours = self.speed(chosen, size, sized.propose)
                found[f"ours_over_plain_b{size}"].append(ours / self.speed(chosen, size, None))
                found[f"ours_over_ngram_b{size}"].append(ours / self.speed(chosen, size, ngram))
                for length in range(1, serving.MOST + 1) if size == 4 else ():
                    fixed = vllm.proposer(drafter)(self.config)
                    other = self.speed(chosen, size, fixed.propose, length)
                    found[f"ours_over_fixed{length}_b4"].append(ours / other)
                if size == 4:
                    other = self.speed(chosen, size, vllm.proposer(SuffixDecoding)(self.config).propose)
                    found["ours_over_published_b4"].append(ours / other)
        return found


def main(
    rounds: Annotated[int, options.whole_number("of other prompts each")] = 12,
    tokens: Annotated[int, options.whole_number("most tokens of an answer")] = 40,
    costs: Annotated[Path, typer.Option(help="what passes take, of calibrate-vllm")] = Path(
        "data/results/cpu/serving-costs.json"
    ),
    out: Annotated[Path, options.folder("of the table")] = Path("data/results/cpu"),
    kept: Annotated[Path, options.folder("where answers are kept")] = Path("_build"),
    choose: Annotated[
        bool, typer.Option("--choose", help="compare lengths of drafts on other prompts instead")
    ] = False,
) -> None:
    """Replay batches of vLLM at measured costs of passes."""
    _, _, prompts = serving.asked(2 * serving.PROMPTS if choose else serving.PROMPTS)
    prompts = prompts[serving.PROMPTS :] if choose else prompts
    longest = tokens + serving.MOST
    said = answers(prompts, longest, kept / f"replayed-batches-{'choose' if choose else 'ask'}.json")
    replay = Replay(prompts, said, vllm.read_costs(costs), tokens)
    if choose:
        for offset in OFFSETS:
            found = replay.rounds(rounds, serving.SIZES, lambda offset=offset: SuffixDecoding(offset=offset))
            shown = {size: np.mean(found[f"ours_over_plain_b{size}"]) for size in serving.SIZES}
            print(
                f"offset {offset:.0f}: mean {np.mean([*shown.values()]):.3f}", {k: f"{v:.3f}" for k, v in shown.items()}
            )
        return
    settings = {"drafter": "SuffixDecoding", "costs": str(costs)}
    found = replay.rounds(rounds, serving.SIZES, lambda: vllm.drafter_of_settings(settings, serving.MOST))
    with chdir(out):
        report.save(
            "replayed",
            {"rounds": rounds, "prompts": len(prompts), "tokens": tokens},
            {key: median_interval(values) for key, values in found.items()},
        )


if __name__ == "__main__":
    typer.run(main)
