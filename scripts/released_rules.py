"""What rules of released codes are worth that this library does otherwise.

Trees and rules of drafting are compared in tokens per pass, shapes of heads in first choices that were right after the same short
training. Writes ``data/results/cpu/released.csv``, which the pages of the methods show.
"""

from __future__ import annotations

import math
import random
import sys
import time
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import chdir
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import pandas as pd
import torch
import typer
from own_answers import unpack
from tqdm import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from specdec_lib import Sampling, load_model, paths, report
from specdec_lib.commands import options
from specdec_lib.decoding.contract import LAST, Capture, Context, Drafter
from specdec_lib.decoding.generate import end_tokens
from specdec_lib.decoding.tree import DraftTree
from specdec_lib.drafters import Lookahead, SamDecoding, SuffixDecoding, TokenRecycling
from specdec_lib.drafters.eagle import Eagle
from specdec_lib.drafters.eagle2 import Eagle2
from specdec_lib.drafters.medusa import Medusa
from specdec_lib.drafters.sam_decoding import LEVELS as SAM_LEVELS
from specdec_lib.experiments.data import prompts
from specdec_lib.experiments.data.stores import document_store
from specdec_lib.experiments.runs import results
from specdec_lib.experiments.runs.recorded_runs import (
    Recording,
    Runs,
    replay_all,
    replay_each,
    run_again,
    run_each_again,
)
from specdec_lib.experiments.runs.recordings import record_once
from specdec_lib.experiments.statistics.intervals import Counts, Interval, ratio_of_rates
from specdec_lib.experiments.workbench import ModelPair
from specdec_lib.heads.draft_training import Batch, Cut, Text, head_loss, states_of
from specdec_lib.heads.drafting import DraftHead, EagleHead, Ends, HydraHeads, MedusaHeads
from specdec_lib.heads.training import rate_factor
from specdec_lib.report import numbers

#: Trees of the released codes: how many children a node has, by the ranks on the way to it, those of a leaf left out.
MEDUSA = {"": 10, "0": 10, "1": 7, "2": 3, "3": 2} | dict.fromkeys("456789", 1)
MEDUSA |= {"00": 10, "01": 3, "02": 2, "10": 2, "20": 1, "000": 2} | dict.fromkeys(("03", "04", "05", "06", "07"), 1)
EAGLE = {"": 4, "0": 3, "1": 2, "2": 2, "3": 1, "00": 3, "01": 2, "02": 2, "10": 1, "000": 3, "0000": 2}

DRAWS = 4  # of the children of a node, to average what the released rule does
LONGEST_PROMPT, HELD_OUT = 100, 40  # of the answers that heads learn from: tokens of a prompt, answers to test them on
EPOCHS, TOGETHER = 2, 2  # rounds of training, answers of a step


class ReleasedLookahead(Lookahead):
    """Never counts the last token of an n-gram."""

    def propose(self, context: Context, limit: int) -> DraftTree:
        return super().propose(context, min(limit, self.levels - 2))


class RefilledLookahead(Lookahead):
    """Draws a token of the text where an end token comes into the last row of the full window."""

    def __init__(self, ends: Set[int]):
        super().__init__()
        self.ends = ends
        self.refilled = 0

    def start(self, context: Context) -> None:
        super().start(context)
        self._context, self._rng = context, random.Random(self.seed)

    def verified(self, tree: DraftTree, path: tuple[int, ...], outputs) -> None:
        full = self._filled
        super().verified(tree, path, outputs)
        if full:
            row = self._rows[-1]
            self.refilled += sum(token in self.ends for token in row)
            self._rows[-1] = [self._rng.choice(self._context.tokens) if token in self.ends else token for token in row]


class ReleasedSuffixDecoding(SuffixDecoding):
    """Has the output so far among the earlier outputs too."""

    def start(self, context: Context) -> None:
        super().start(context)
        self._seen = context.prompt_length

    def propose(self, context: Context, limit: int) -> DraftTree:
        self._earlier.extend(context.tokens[self._seen :])
        self._seen = len(context.tokens)
        return super().propose(context, limit)

    def finish(self) -> None:
        self._earlier.extend(self._context.tokens[self._seen :])
        self._earlier.end_text()


def shape_of(children: Mapping[str, int]) -> list[tuple[int, int]]:
    """A tree as drafters with heads take it: each node's parent and rank, level by level."""
    nodes: list[tuple[int, int]] = []
    places = {"": -1}
    for way in sorted(children, key=lambda way: (len(way), way)):
        for rank in range(children[way]):
            places[f"{way}{rank}"] = len(nodes)
            nodes.append((places[way], rank))
    return nodes


def accepted_as(p: torch.Tensor, q: torch.Tensor, tokens: torch.Tensor, ranks: int) -> torch.Tensor:
    """By row and rank, (m, ranks): how likely the released rule accepts the child of a rank where the target emits ``tokens``.

    Children are drawn from ``q`` without replacement and tried in turn. After a rejection ``p`` loses what ``q`` has, and ``q`` the
    child. For each rank this is exact, given the children before it, of which :data:`DRAWS` lists are drawn.
    """
    rows, found = torch.arange(len(p)), torch.zeros(len(p), ranks)
    for _ in range(DRAWS):
        left, drawn, rejected = p, q, torch.ones(len(p))
        for rank in range(ranks):
            found[:, rank] += rejected * torch.minimum(left[rows, tokens], drawn[rows, tokens])
            if rank + 1 < ranks:
                child = torch.multinomial(drawn, 1)[:, 0]
                rejected = rejected * (1 - left[rows, child] / drawn[rows, child]).clamp_min(0)
                left = torch.nn.functional.normalize((left - drawn).clamp_min(0), 1.0)
                drawn = torch.nn.functional.normalize(drawn.index_put((rows, child), torch.zeros(())), 1.0)
    return found / DRAWS / p[rows, tokens, None]


def expected_passes(by_depth: Sequence[torch.Tensor], count: int) -> float:
    """Passes over ``count`` tokens after the first, given how likely a child of each rank is right at each token, by depth."""
    reached = torch.zeros(count, len(by_depth) + 2)
    reached[:, 0] = 1
    for way, children in EAGLE.items():
        for rank in range(children):
            ranks = [*map(int, way), rank]
            there = by_depth[len(way)].shape[0]
            reached[:there, len(ranks)] += torch.stack(
                [by_depth[depth][:there, own] for depth, own in enumerate(ranks)]
            ).prod(0)
    starts = [1.0] + [0.0] * (count + 1)
    for place, ends in enumerate((reached[:, :-1] - reached[:, 1:]).tolist()):
        for accepted, share in enumerate(ends[: count - place + 1]):
            starts[place + accepted + 1] += starts[place] * share
    return sum(starts[:count])


@torch.no_grad()
def passes_by_rule(head: EagleHead, ends: Ends, text: Text) -> tuple[int, float, float]:
    """Tokens of a sampled text, and its passes with the most likely children and with the released rule, both in EAGLE's tree."""
    batch, ranked, released = Batch.of([text], ends.device), [], []
    depths = max(map(len, EAGLE)) + 1
    for depth, features in enumerate(head.features(ends, batch.states, batch.tokens, batch.where, depths), start=1):
        there, tokens, states = batch.ahead(depth)
        ranks = max(children for way, children in EAGLE.items() if len(way) == depth - 1)
        q = head.logits(ends, depth, features[there]).softmax(-1)
        ranked.append((q.topk(ranks, dim=-1).indices == tokens[:, None]).float())
        released.append(accepted_as(ends.logits(states).softmax(-1), q, tokens, ranks))
    count = int(batch.where.sum())
    return count, expected_passes(ranked, count), expected_passes(released, count)


def learned(
    head: DraftHead, ends: Ends, training: Sequence[Text], held_out: Sequence[Text], cut: Cut | None = None
) -> Counts:
    """By held-out answer, after a short training by the recipe: first choices of the first depth that were right, of all."""
    torch.manual_seed(0)
    optimizer = torch.optim.AdamW(head.parameters(), head.recipe.rate, weight_decay=head.recipe.weight_decay)
    order = [i for epoch in range(EPOCHS) for i in np.random.default_rng(epoch).permutation(len(training))]
    steps = [[training[i] for i in order[first : first + TOGETHER]] for first in range(0, len(order), TOGETHER)]
    for step, some in enumerate(tqdm(steps, desc=head.kind, unit="step")):
        noise = torch.Generator().manual_seed(step)
        optimizer.zero_grad(set_to_none=True)
        head_loss(head.train(), ends, Batch.of(some, ends.device), noise, cut).backward()
        torch.nn.utils.clip_grad_norm_(head.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = head.recipe.rate * rate_factor(step, len(steps))
        optimizer.step()
    right, places = [], []
    head.eval()
    with torch.no_grad():
        for batch in (Batch.of([text], ends.device) for text in held_out):
            _, tokens, _ = batch.ahead(1)
            (features,) = head.features(ends, batch.states, batch.tokens, batch.where, 1)
            right.append(int((head.logits(ends, 1, features).argmax(-1) == tokens).sum()))
            places.append(len(tokens))
    return Counts(right, places)


class Measured(NamedTuple):
    """What the parts of this script are measured on."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    recordings: list[Recording]
    max_new_tokens: int
    answers: Path
    learn: int

    @property
    def pair(self) -> ModelPair:
        return ModelPair(self.model, None, self.tokenizer)


def taught(of: Measured) -> tuple[list[Text], list[Text]]:
    """Answers to train heads on, and answers held out, with the target's states."""
    rows = [row for row in unpack(of.answers) if row["heat"] == 0 and len(row["answer"]) > 4]
    rows = [row for row in rows if len(row["prompt"]) <= LONGEST_PROMPT]
    order = np.random.default_rng(0).permutation(len(rows))[: of.learn + HELD_OUT]
    known = []
    for row in tqdm([rows[i] for i in order], desc="states"):
        tokens = [*row["prompt"].tolist(), *row["answer"].tolist()]
        known.append(Text(torch.tensor(tokens), states_of(of.model, tokens), len(row["prompt"])))
    of.model.requires_grad_(False)
    return known[: of.learn], known[of.learn :]


def heads(of: Measured) -> dict[str, Interval | int]:
    """Medusa's first head with the target's output layer over one of its own, and EAGLE's divided embeddings over plain ones."""
    training, held_out = taught(of)
    ends, plain = Ends(of.model), Ends(of.model)
    plain._scale = 1.0

    def trained(kind: type[DraftHead], own: Ends, **options) -> Counts:
        torch.manual_seed(0)
        return learned(kind.for_target(of.model, **options), own, training, held_out)

    shared, separate = (trained(MedusaHeads, ends, heads=1, own_vocabulary=own) for own in (False, True))
    divided, undivided = (trained(EagleHead, own) for own in (ends, plain))
    return {
        "medusa_shared_over_own": ratio_of_rates(shared, separate),
        "eagle_divided_over_released": ratio_of_rates(divided, undivided),
        "trained_on": EPOCHS * sum(len(text.tokens) - text.start - 1 for text in training),
    }


def training_of_hydra(of: Measured) -> dict[str, Interval | float]:
    """Hydra's first head of the released shape: without dropout, with its output layer cut, and in a smaller shape."""
    training, held_out = taught(of)
    ends = Ends(of.model)
    written = [
        Text(torch.from_numpy(np.concatenate([row["prompt"], row["answer"]])), torch.empty(0), len(row["prompt"]))
        for row in unpack(of.answers)
    ]
    shipped = DraftHead.load(paths.SMOLLM2 / "heads" / "hydra.safetensors").story["training"]["vocabulary"]
    cut = Cut.to_frequent(ends, written, min(shipped, ends.vocabulary))

    def trained(dropout: float = 0.0, own: Cut | None = None, **options) -> Counts:
        torch.manual_seed(0)
        head = HydraHeads.for_target(of.model, heads=1, **options)
        head.begin(held_out[0].states)
        head.dropout = dropout
        return learned(head, ends, training, held_out, own)

    whole = trained()
    answered = torch.cat([text.tokens[text.start :] for text in held_out])
    return {
        "hydra_cut_tokens": cut.ends.vocabulary,
        "hydra_none_over_dropout": ratio_of_rates(whole, trained(HydraHeads.recipe.dropout)),
        "hydra_cut_over_whole": ratio_of_rates(trained(own=cut), whole),
        "hydra_released_over_small": ratio_of_rates(whole, trained(layers=1, prefix=False)),
        "hydra_not_in_cut": float((cut.rows[answered] < 0).float().mean()),
    }


class LongestSuffix(SamDecoding):
    """Where no suffix is followed by enough tokens, copies after the longest; the released code takes the shortest."""

    def _copied(self, context: Context) -> list[int]:
        draft = super()._copied(context)
        if not draft or len(draft) == self.num_tokens or self._match[1] - self.bias > self._own.repeated()[1]:
            return draft
        return self._own.continuation(self._own.repeated()[0], self.num_tokens)


def table(of: Measured, runs: Mapping[str, Runs]) -> pd.DataFrame:
    """The results table of runs, with the tokens of their passes."""
    rows = results.table(of.recordings, runs)
    rows["verified"] = rows.widths.map(lambda passes: int(np.arange(len(passes)) @ passes))
    return rows


def trees(of: Measured) -> dict[str, Any]:
    """Trees of the size of the released ones, over the released ones."""
    medusa, eagle = of.pair.draft_heads("medusa"), of.pair.draft_heads("eagle")
    made = {
        "medusa": Medusa(of.model, medusa),
        "medusa as released": Medusa(of.model, medusa, shape_of(MEDUSA)),
        "eagle": Eagle(of.model, eagle),
        "eagle as released": Eagle(of.model, eagle, shape_of(EAGLE)),
    }
    rows = table(of, replay_each(with_states(of), made))
    return {
        "medusa_over_released": results.ratio(rows, "medusa", "medusa as released"),
        "eagle_over_released": results.ratio(rows, "eagle", "eagle as released"),
    }


def with_states(of: Measured) -> list[Recording]:
    """The outputs with the states that heads read."""
    asked = [each.prompt for each in of.recordings if not each.turn]
    return record_once(of.model, of.tokenizer, asked, None, of.max_new_tokens, Capture((LAST,)))


def levels(of: Measured) -> dict[str, Any]:
    """How deep EAGLE-2's trees are, and how many levels its layer computes for them."""
    runs = replay_each(with_states(of), {"eagle 2": Eagle2(of.model, of.pair.draft_heads("eagle"))})
    drafts = [step.tree for run in runs["eagle 2"] for step in run.steps if step.drafted]
    return {
        "eagle2_depth": float(np.mean([tree.depth for tree in drafts])),
        "eagle2_levels": float(np.mean([tree.levels for tree in drafts])),
    }


def copies(of: Measured) -> dict[str, Any]:
    """SuffixDecoding's text of earlier outputs, and its chains."""
    made = {
        "ours": SuffixDecoding(),
        "as released": ReleasedSuffixDecoding(),
        "chains": SuffixDecoding(chains=True),
    }
    rows = table(of, {name: replay_all(of.recordings, drafter, "warm") for name, drafter in made.items()})
    return {
        "suffix_over_released": results.ratio(rows, "ours", "as released"),
        "suffix_chains_over_trees": results.ratio(rows, "chains", "ours"),
    }


def decoded(of: Measured, made: Mapping[str, Drafter], state: str) -> pd.DataFrame:
    """The results table of drafters that no recording can replay."""
    return table(of, run_each_again(of.model, of.recordings, made, dict.fromkeys(made, state)))


def lookahead(of: Measured) -> dict[str, Any]:
    """What Lookahead does otherwise, and its pool from the prompt."""
    refilled = RefilledLookahead(end_tokens(of.model, None))
    made = {"ours": Lookahead(), "as released": ReleasedLookahead(), "prompt": Lookahead(prompt=True)}
    rows = pd.concat([
        decoded(of, made, "cold"), table(of, {"refilled": run_again(of.model, of.recordings, refilled)})
    ])  # fmt: skip
    return {
        "lookahead_over_released": results.ratio(rows, "ours", "as released"),
        "lookahead_over_refilled": results.ratio(rows, "ours", "refilled"),
        "lookahead_refilled": refilled.refilled,
        "lookahead_prompt_over_default": results.ratio(rows, "prompt", "ours"),
    }


def recycling(of: Measured) -> dict[str, Any]:
    """How wide Token Recycling's passes are where tokens never read propose nothing."""
    drafter = TokenRecycling()
    rows = decoded(of, {"recycling": drafter}, "warm")
    width = results.rate(rows, ("verified", "passes"))
    return {"recycling_width": width, "recycling_full_width": 1 + sum(drafter.levels)}


def sam(of: Measured) -> dict[str, Any]:
    """What SAM-Decoding learns from the prompt, its tree, the match that it takes, and a store of the model's own answers."""
    texts = [[*row["prompt"], *row["answer"]] for row in unpack(of.answers)]
    made = {
        "released": SamDecoding(),
        "without the prompt": SamDecoding(TokenRecycling(SAM_LEVELS)),
        "wider tree": SamDecoding(TokenRecycling(prompt=True)),
        "longest match": LongestSuffix(),
        "own answers": SamDecoding(store=document_store("own-answers", texts, of.tokenizer)),
    }
    rows = decoded(of, made, "warm")
    return {
        "sam_prompt_over_none": results.ratio(rows, "released", "without the prompt"),
        "sam_tree_over_wider": results.ratio(rows, "released", "wider tree"),
        "sam_shortest_over_longest": results.ratio(rows, "released", "longest match"),
        "sam_own_answers_over_none": results.ratio(rows, "own answers", "released"),
        "sam_width": results.rate(rows[rows.method == "released"], ("verified", "passes")),
        "sam_full_width": 1 + sum(SAM_LEVELS),
    }


def sampled(of: Measured) -> dict[str, Any]:
    """EAGLE's most likely children over those that are drawn, at temperature 1."""
    prompts_asked = [each.prompt for each in of.recordings if not each.turn]
    outputs = record_once(of.model, of.tokenizer, prompts_asked, Sampling(1.0), of.max_new_tokens)
    torch.manual_seed(0)
    by_rule, ends, eagle = [], Ends(of.model), of.pair.draft_heads("eagle")
    for each in tqdm(outputs, desc="sampled outputs"):
        tokens = [*each.trace.prompt, *each.trace.tokens]
        text = Text(torch.tensor(tokens), states_of(of.model, tokens), len(each.trace.prompt))
        by_rule.append(passes_by_rule(eagle, ends, text))
    count, ours, theirs = zip(*by_rule, strict=True)
    names = [each.prompt.id for each in outputs]
    return {"eagle_likely_over_released": ratio_of_rates(Counts(count, ours), Counts(count, theirs), names)}


#: What is measured together, by name.
PARTS: dict[str, Callable[[Measured], dict[str, Any]]] = {
    "trees": trees,
    "levels": levels,
    "copies": copies,
    "lookahead": lookahead,
    "recycling": recycling,
    "sam": sam,
    "sampled": sampled,
    "heads": heads,
    "hydra": training_of_hydra,
}

TRAININGS = ("heads", "hydra")  # the parts that read no outputs


def main(
    target: Literal["smollm2", "pocket"] = "smollm2",
    part: Annotated[
        list[str] | None, options.choice(PARTS, "may be repeated; others keep their rows (default: all)")
    ] = None,
    per_task: Annotated[int, options.whole_number("of each of PLD+'s tasks", 1, "--prompts")] = 1,
    max_new_tokens: options.NewTokens = 40,
    answers: Annotated[Path, typer.Option(help="what heads learn from, and a store of SAM-Decoding")] = paths.SMOLLM2
    / "answers.npz",
    learn: Annotated[int, options.whole_number("answers to train on")] = 100,
    out: Annotated[Path, options.folder("of the table")] = paths.DATA / "results" / "cpu",
) -> None:
    """Measure what rules of released codes are worth that this library does otherwise."""
    out.mkdir(parents=True, exist_ok=True)
    model, tokenizer = load_model(target, "cpu", "float32")
    asked = prompts.load("report", prompts.INPUT_GUIDED, per_task)
    recordings = record_once(model, tokenizer, asked, None, max_new_tokens)
    of = Measured(model, tokenizer, recordings, max_new_tokens, answers, learn)
    path, counted = out / "released.csv", {}
    if part and path.is_file():
        for key, number in numbers.read(path).items():
            none = number.words == numbers.NO_INTERVAL
            known = number.low is not None and number.high is not None
            ends = (number.low, number.high) if known else (math.nan, math.nan)
            counted[key] = Interval(number.value, *ends, number.prompts or 0) if known or none else number.value
    for name in part or PARTS:
        began = time.monotonic()
        counted |= PARTS[name](of)
        if name not in TRAININGS:
            counted |= {f"{name}_outputs": len(recordings), f"{name}_tokens": max_new_tokens}
        print(f"{name}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
        with chdir(out):
            report.save("released", counted)


if __name__ == "__main__":
    typer.run(main)
