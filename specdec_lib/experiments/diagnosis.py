"""What methods that draft from tokens alone would save on recorded answers, and what of the texts explains it.

No model is needed. The recorded tokens decide what any draft would have had accepted
(:mod:`specdec_lib.decoding.loop`), and the costs of passes what that saves.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from tqdm.auto import tqdm
from transformers import PreTrainedTokenizerBase

from specdec_lib import methods, paths
from specdec_lib.datastores import SuffixIndex
from specdec_lib.datastores.tokens import tokenizer_vocabulary
from specdec_lib.decoding.contract import Capture, Drafter
from specdec_lib.decoding.loop import Limits, Trace, replay
from specdec_lib.decoding.results import Generation
from specdec_lib.decoding.sampling import Sampling
from specdec_lib.drafters.one_tree import OneTree
from specdec_lib.drafters.pass_costs import MERGING, PassCosts
from specdec_lib.drafters.tree_probabilities import TreeProbabilities
from specdec_lib.experiments.data.answers import Answer
from specdec_lib.experiments.data.overlap import overlap
from specdec_lib.experiments.data.prompt import Prompt
from specdec_lib.experiments.other_engines import ENGINE_OPTIONS
from specdec_lib.experiments.runs import results
from specdec_lib.experiments.runs.recorded_runs import Recording, in_state
from specdec_lib.experiments.statistics.intervals import Counts, Interval, mean_interval, pooled_rate

#: Tokens in a row that must stand in the prompt as well, so that they count as copied.
COPIED_RUN = 4
#: Bytes of the prompt's end that DEFLATE can copy from.
_WINDOW = 32_768


class TokensAlone:
    """A :class:`specdec_lib.methods.Workbench` without models: it has costs, weights of one tree, and a datastore if given.

    Whatever else a method asks for raises :class:`specdec_lib.methods.Unavailable`. The weights are those that come with the
    SmolLM2 unless ``weights`` names a file of ``python -m specdec_lib fit-tree``.
    """

    _OF_MODELS = {
        "target": "the model",
        "draft": "a draft model",
        "draft_runtime": "a draft model",
        "dense": "the model's hidden states",
        "layer": "the model's hidden states",
        "heads": "the model's attention",
        "acceptance_head": "a draft model and its acceptance head",
        "draft_heads": "heads that were trained for the model",
        "sparse": "a datastore (--store)",
    }

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        costs: PassCosts,
        store: SuffixIndex | None = None,
        weights: str | Path | None = None,
    ):
        self.tokenizer, self.costs, self._weights = tokenizer, costs, weights
        if store is not None:
            self.sparse = store

    def __getattr__(self, name: str) -> Any:
        if name in self._OF_MODELS:
            raise methods.Unavailable(self._OF_MODELS[name])
        raise AttributeError(name)

    @cached_property
    def tree_probabilities(self) -> TreeProbabilities:
        """The weights of one tree: they tell of sources, not of models, and go on learning."""
        return TreeProbabilities.load(self._weights or paths.SMOLLM2 / "one_tree.safetensors")

    def length(self, method: str) -> int:
        """Draft length of a method: its row's."""
        return methods.draft_length(method, {})


def drafters_for(bench: methods.Workbench) -> tuple[dict[str, Drafter], dict[str, str]]:
    """The methods whose drafts depend on tokens alone, by name; and of each other method what it needs."""
    built, missing = methods.build(bench, methods.METHODS)
    for name, drafter in list(built.items()):
        if drafter.replays != "any" or drafter.capture != Capture():
            missing[name] = "what the model computes at each pass"
            del built[name]
    return built, missing


def as_recordings(answers: Sequence[Answer], tokenizer: PreTrainedTokenizerBase) -> list[Recording]:
    """Answers as recordings, whose tokens are the tokenizer's. A prompt is tokenized as it stands, special tokens included."""
    vocabulary = tokenizer_vocabulary(tokenizer)
    recordings = []
    for number, (prompt, answer, chat) in enumerate(answers, start=1):
        asked = list(tokenizer(prompt, add_special_tokens=not chat)["input_ids"])
        tokens = list(tokenizer(answer, add_special_tokens=False)["input_ids"])
        trace = Trace(asked, tokens, Sampling(), vocabulary, Limits(len(tokens)), "length")
        recordings.append(Recording(Prompt(str(number), "answers", (prompt,), chat=False), 0, trace))
    return recordings


def copied_tokens(prompt: Sequence[int], answer: Sequence[int]) -> int:
    """How many of an answer's tokens lie in :data:`COPIED_RUN` tokens in a row that stand in the prompt as well."""
    run = COPIED_RUN
    known = {tuple(prompt[i : i + run]) for i in range(len(prompt) - run + 1)}
    copied, end = 0, 0
    for i in range(len(answer) - run + 1):
        if tuple(answer[i : i + run]) in known:
            copied += i + run - max(i, end)
            end = i + run
    return copied


def deflate_bits(text: str, after: str = "") -> int:
    """Bits that DEFLATE needs for a text, which may copy from the end of the text that it comes after."""
    packer = zlib.compressobj(9, wbits=-15, zdict=after.encode()[-_WINDOW:])
    return 8 * len(packer.compress(text.encode()) + packer.flush())


class Text(NamedTuple):
    """What the texts are like, pooled over answers: the share of copied tokens (:func:`copied_tokens`), BLEU-4 of an answer
    against its prompt, and the bits a character that DEFLATE needs for an answer by itself and after its prompt."""

    copied: Interval
    overlap: Interval
    bits_alone: Interval
    bits_given: Interval


class Prediction(NamedTuple):
    """What one method is predicted to do: ``drafter`` is what was replayed, with its settings, ``speedup`` that over plain
    decoding at the given costs, and ``width`` the mean number of tokens of a pass."""

    method: str
    drafter: str
    tokens_per_pass: Interval
    speedup: Interval
    width: float


@dataclass(frozen=True)
class Diagnosis:
    """What :func:`diagnose` found. ``needs`` says what each method without a prediction needs, ``free`` which drafting the
    costs have no time for, and ``each`` has for each answer its tokens, copied share and tokens per pass by method."""

    tokens: int
    costs: str
    text: Text
    predictions: list[Prediction]
    needs: Mapping[str, str]
    free: list[str]
    each: list[dict[str, Any]]
    engine_options: Mapping[str, Mapping[str, str]] = field(default_factory=lambda: ENGINE_OPTIONS)

    @property
    def recommended(self) -> str | None:
        """The method whose speed-up has the highest lower end, plain decoding where none has one above 1; None where one
        answer tells no interval."""
        known = [one for one in self.predictions if one.speedup.known]
        if not known:
            return None
        best = max(known, key=lambda one: one.speedup.low)
        return best.method if best.speedup.low > 1 else methods.PLAIN

    def advice(self) -> str:
        """The recommendation in one or two sentences."""
        name = self.recommended
        if name is None:
            return "One answer tells no interval, so nothing is recommended; give more of them."
        if name == methods.PLAIN:
            return "Decode plainly: no method is faster by its whole interval at these costs."
        (best,) = (one for one in self.predictions if one.method == name)
        return (
            f"Use {name}: at these costs it is expected to decode {best.speedup:.2f} times as fast as plain decoding. No "
            "other method has a higher lower end of its interval."
        )

    def about(self) -> dict[str, Any]:
        """All of it as JSON can hold it; what is not known is null."""
        return {
            "answers": len(self.each),
            "tokens": self.tokens,
            "costs": self.costs,
            "recommended": self.recommended,
            "text": {name: _ends(value) for name, value in self.text._asdict().items()},
            "methods": [
                one._asdict() | {"tokens_per_pass": _ends(one.tokens_per_pass), "speedup": _ends(one.speedup)}
                for one in self.predictions
            ],
            "needs": dict(self.needs),
            "engine_options": self.engine_options,
            "free": self.free,
            "each": self.each,
        }


def _ends(interval: Interval) -> dict[str, float | None]:
    return {name: number if math.isfinite(number) else None for name, number in interval._asdict().items()}


def diagnose(answers: Sequence[Answer], bench: methods.Workbench, costs: PassCosts, progress: bool = True) -> Diagnosis:
    """Predict what methods would save on recorded answers, of which those with two tokens or more count: the first token
    comes from the prompt's own pass, whatever drafts."""
    recordings = as_recordings(answers, bench.tokenizer)
    keep = [place for place, recording in enumerate(recordings) if len(recording.trace.tokens) > 1]
    if not keep:
        raise ValueError(f"none of the {len(answers)} answers has two tokens; expected longer answers")
    answers, recordings = [answers[place] for place in keep], [recordings[place] for place in keep]
    drafters, needs = drafters_for(bench)
    predictions, each = [], [_copied(recording) for recording in recordings]
    asked = {name: _asked(name, drafter) for name, drafter in drafters.items()}
    free = sorted({source for sources in asked.values() for source in sources} - {MERGING, *costs.drafting})
    with tqdm(total=len(drafters) * len(recordings), desc="replaying", unit="answer", disable=not progress) as bar:
        for name, drafter in drafters.items():

            def run(recording: Recording, drafter: Drafter = drafter) -> Generation:
                bar.update()
                return replay(recording.trace, drafter)

            runs = in_state(recordings, drafter, methods.METHODS[name].state, run)
            rows = results.table(recordings, {name: runs})
            rows = results.with_cost(rows, costs.widths, lambda name: {"passes": costs.step_of(*asked[name])})
            # Plain decoding emits a token for the cost of a pass over one token, which is 1, and of a step's own work.
            rows["alone"] = (1.0 + costs.step) * rows.tokens
            width = sum(step.width for run in runs for step in run.steps) / rows.passes.sum()
            predictions.append(
                Prediction(name, repr(drafter), results.rate(rows), results.rate(rows, ("alone", "cost")), width)
            )
            for row, run in zip(each, runs, strict=True):
                row["tokens_per_pass"][name] = run.stats["tokens_per_forward"]
    text = _text(answers, each)
    return Diagnosis(sum(row["tokens"] for row in each), costs.name, text, predictions, needs, free, each)


def _asked(name: str, drafter: Drafter) -> tuple[str, ...]:
    """Return the names under which a draft's cost is given: the method's own, or those of one tree's sources."""
    return (MERGING, *drafter.sources) if isinstance(drafter, OneTree) else (name,)


def _copied(recording: Recording) -> dict[str, Any]:
    tokens = recording.trace.tokens
    share = copied_tokens(recording.trace.prompt, tokens) / len(tokens)
    return {"tokens": len(tokens), "copied": share, "tokens_per_pass": {}}


def _text(answers: Sequence[Answer], each: Sequence[Mapping[str, Any]]) -> Text:
    tokens = [row["tokens"] for row in each]
    characters = [len(one.answer) for one in answers]
    return Text(
        pooled_rate(Counts([row["copied"] * row["tokens"] for row in each], tokens)),
        mean_interval([overlap(one.prompt, one.answer) for one in answers]),
        pooled_rate(Counts([deflate_bits(one.answer) for one in answers], characters)),
        pooled_rate(Counts([deflate_bits(one.answer, one.prompt) for one in answers], characters)),
    )
