"""``make examples``: runs by the library's own drafters, for the pictures and the viewers of the method pages, for the worked
example of chapter 1, and for the same prompt under every drafter, to which the other chapters come back.

One file per page: ``target`` names the model, ``picture`` is a ``Verified``, ``stepper`` the data of the viewer and ``static`` what
it shows without a script.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any

import torch
import typer

from specdec_lib import Context, Drafter, Generation, Sampling, files, generate
from specdec_lib.commands import options
from specdec_lib.decoding.acceptance import as_wide, rejection, residual
from specdec_lib.decoding.generate import Run, end_tokens
from specdec_lib.decoding.loop import Limits, ModelVerifier, decode
from specdec_lib.decoding.results import Step
from specdec_lib.decoding.sampling import ACCEPT, distribution
from specdec_lib.decoding.tree import DraftTree
from specdec_lib.drafters import DraftModel, Rest
from specdec_lib.experiments.data import prompts
from specdec_lib.experiments.workbench import ModelPair
from specdec_lib.methods import METHODS, PLAIN, Unavailable
from specdec_lib.models.loading import load_model
from specdec_lib.report.appearance import APPEARANCES
from specdec_lib.report.display import method_pictures, same_prompt, worked_example
from specdec_lib.report.display.method_pictures import VERIFIER, VerifiedDraft, verifier_tree
from specdec_lib.report.display.stepper import stepper

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

PAGES = (VERIFIER, *dict.fromkeys(row.page for row in APPEARANCES.values()))
WORKED, SAME = "worked-example", "same-prompt"
ONE_TOKEN = "REST (one token)"
STEPPED_ON_ONE_VERIFIER = ("PLD", "REST", "SpecDec")
"""Methods of the page on the verifier: a copied chain, a tree, a chain of a draft model."""

RENAME = """Rename `total` to `amount`.

def add(total, price):
    total = total + price
    print(total)
    return total"""
#: What the worked example decodes. The seed is the first with which one pass rejects its first token and the next one accepts all.
STORY = {
    "question": same_prompt.QUESTION,
    "begun": "```python\ndef add(amount, price):\n    return amount +",
    "sampling": Sampling(temperature=0.6, seed=1),
}
CODE = """def area(width, height):
    return width * height

def volume(width, height, depth):
    return"""


def texts(tokenizer: PreTrainedTokenizerBase) -> dict[str, list[int]]:
    """Tokens of what the reader of a method page steps through, by name; the picture is of the first."""
    asked = {
        "a rename": RENAME,
        "a summary": prompts.load("choose", ["summarisation"], 1)[0].turns[0],
        "a chat answer": prompts.load("choose", ["conversation"], 1)[0].turns[0],
    }
    chats = {
        name: tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], add_generation_prompt=True, return_dict=True
        )["input_ids"]
        for name, text in asked.items()
    }
    return {**chats, "a completion": tokenizer(CODE)["input_ids"]}


class Examples:
    """The runs of methods with a pair of models after :func:`texts`, greedily; ``draft`` may be missing."""

    def __init__(
        self,
        target: PreTrainedModel,
        draft: PreTrainedModel | None,
        tokenizer: PreTrainedTokenizerBase,
        max_new_tokens: int = 40,
    ):
        self.target, self.draft, self.tokenizer, self.max_new_tokens = target, draft, tokenizer, max_new_tokens
        self.prompts = texts(tokenizer)
        self.bench = ModelPair(target, draft, tokenizer, store_tokens=100_000, dense_tokens=10_000)
        self.runs = cache(self._runs)

    def _runs(self, name: str) -> list[Generation]:
        """The runs of one method, or of plain decoding. Every text begins with a drafter that knows nothing of the others."""
        drafter = METHODS[name].make(self.bench) if name in METHODS else None
        runs = []
        for prompt in self.prompts.values():
            if drafter is not None:
                drafter.reset()
            runs.append(generate(self.target, prompt, drafter, max_new_tokens=self.max_new_tokens))
        return runs

    def all_drafters(self) -> dict[str, Drafter]:
        """Every method and variant of the table that these models have what it needs for, and REST for the shortest matches, since
        REST drafts nothing where no two tokens match."""
        drafters: dict[str, Drafter] = {ONE_TOKEN: Rest(self.bench.sparse, min_ngram=1)}
        for name, method in METHODS.items():
            for label, make in {name: method.make, **method.variants}.items():
                try:
                    drafters[label] = make(self.bench)
                except Unavailable as missing:
                    print(f"{label} is left out: it needs {missing}", flush=True)
        return drafters

    def page(self, page: str) -> dict[str, Any]:
        """What is kept of a method page."""
        names = [name for name, row in APPEARANCES.items() if row.page == page] or list(STEPPED_ON_ONE_VERIFIER)
        viewer = stepper({name: self.runs(name) for name in (*names, PLAIN)}, self.tokenizer, self.prompts)
        shown = verifier_tree() if page == VERIFIER else self.drafted(names[0])
        return {"picture": asdict(shown), "stepper": viewer.data, "static": viewer.static}

    def drafted(self, name: str, most: int = 12, longest: int = 4) -> VerifiedDraft:
        """The pass that shows most of a method's run after the first text it has one for: one that also rejects something, and
        that accepts at most ``longest`` tokens, so that it fits the page. ``most`` rejected nodes are shown, the first ones.
        LookupError if no pass accepts anything."""

        def ends_openly(step: Step) -> bool:
            """Whether a draft is accepted and the target's own token follows, which the end of a text may cut off."""
            return 0 < step.accepted < len(step.tokens)

        runs = [run for run in self.runs(name) if any(map(ends_openly, run.steps))]
        if not runs:
            raise LookupError(f"no draft of {name} is accepted after any of the texts: {', '.join(self.prompts)}")
        run = runs[0]

        def worth(number: int) -> tuple[bool, int, int]:
            accepted = run.steps[number].accepted
            return accepted < run.steps[number].drafted, -max(accepted, longest), accepted

        number = max((number for number, step in enumerate(run.steps) if ends_openly(step)), key=worth)
        emitted = 1 + sum(len(before.tokens) for before in run.steps[:number])
        return shown_part(run.steps[number], run.tokens[emitted - 1], self.tokenizer, most)


def shown_part(step: Step, root: int, tokenizer: PreTrainedTokenizerBase, most: int) -> VerifiedDraft:
    """What a page shows of a step after the token ``root``: the accepted nodes, and at most ``most`` rejected ones that are no
    deeper than the first that was rejected."""
    decode = tokenizer.decode
    # Prefixes that a batch of drafts verifies several times are drawn once.
    tree = DraftTree.from_drafts(
        [[step.tree.tokens[n] for n in step.tree.path(node)] for node in range(len(step.tree))]
    )
    kept = [-1]
    for node in step.path:
        kept.append(tree.child(kept[-1], step.tree.tokens[node]))
    place, rejected = {-1: -1}, 0
    for node, parent in enumerate(tree.parents):
        fits = rejected < most and tree.depths[node] <= step.accepted + 1 and parent in place
        if node in kept or fits:
            place[node] = len(place) - 1
            rejected += node not in kept
    shown = [node for node in place if node >= 0]
    return VerifiedDraft(
        tuple(place[tree.parents[node]] for node in shown),
        tuple(decode([tree.tokens[node]]) for node in shown),
        decode([root]),
        tuple(place[node] for node in kept[1:]),
        decode([step.tokens[-1]]),
        len(tree) - len(shown),
    )


def worked(
    target: PreTrainedModel,
    draft: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sampling: Sampling,
    question: str,
    begun: str,
    passes: int = 2,
    length: int = 4,
    shown: int = 4,
) -> dict[str, Any]:
    """Passes of speculative sampling after an answer that is ``begun``, with all that a reader needs to follow each coin: see
    :data:`~specdec_lib.report.display.worked_example.FILE`. The ``shown`` likeliest tokens have their probabilities."""
    decode = tokenizer.decode
    asked = [{"role": "user", "content": question}]
    prompt = tokenizer.apply_chat_template(asked, add_generation_prompt=True, return_dict=True)["input_ids"]
    prompt += tokenizer(begun)["input_ids"]
    sampling = sampling.for_prompt(prompt)
    context = Context(prompt, len(prompt), target.get_input_embeddings().num_embeddings, sampling)
    drafter = DraftModel(draft, length)
    drafter.start(context)

    def likely(place: int | None = None, **rows: torch.Tensor) -> list[dict[str, Any]]:
        """The likeliest tokens of some distributions and the token at ``place`` of the draft."""
        best = torch.stack([*rows.values()]).amax(0).topk(shown).indices.tolist()
        drafted = [] if place is None else [tree.tokens[place]]
        return [
            {"token": decode([token]), "drafted": token in drafted}
            | {name: float(row[token]) for name, row in rows.items()}
            for token in dict.fromkeys([*drafted, *best])
        ][:shown]

    made = []
    for _ in range(passes):
        tree, position = drafter.propose(context, length), len(context.tokens)
        with torch.inference_mode():
            logits = target(torch.tensor([context.tokens + tree.tokens])).logits[0, -len(tree) - 1 :]
        p = distribution(logits, sampling)
        q = as_wide(tree.probabilities, p)
        path, own = rejection(tree, lambda node, _, p=p: p[node + 1], sampling, position, ())
        at = len(path)
        looks = [
            {
                "p": float(p[place, token]),
                "q": float(q[place, token]),
                "coin": sampling.uniform(position + place, ACCEPT),
                "likely": likely(place, q=q[place], p=p[place]),
            }
            for place, token in enumerate(tree.tokens[: at + 1])
        ]
        last = likely(q=q[at], p=p[at], rest=residual(p[at], q[at])) if at < len(tree) else likely(p=p[at])
        one = {"drafted": [decode([token]) for token in tree.tokens], "accepted": at, "looks": looks}
        made.append({**one, "own": decode([own]), "likely": last})
        context.tokens += [*tree.tokens[:at], own]
        drafter.verified(tree, tuple(path), None)
    drafter.finish()
    return {"text": begun, "passes": made}


@dataclass(kw_only=True)
class Begun(ModelVerifier):
    """A target that writes ``answer`` first, whatever it would write itself, and then goes on as it chooses.

    A draft that agrees with the answer is accepted but for its last token, so that a pass begins where the answer ends.
    """

    answer: Sequence[int]
    begins: int = 0
    #: Passes since the answer ended.
    passes: int = 0

    def first(self, context: Context) -> int:
        super().first(context)
        self.begins = len(context.tokens)
        return self.answer[0]

    def _accepted(self, logits: torch.Tensor, tree: DraftTree, tokens: list[int]) -> tuple[list[int], int | None]:
        left = self.answer[len(tokens) - self.begins :]
        if not left:
            self.passes += 1
            return super()._accepted(logits, tree, tokens)
        path: list[int] = []
        for token in left[:-1]:
            node = tree.child(path[-1] if path else -1, token)
            if node is None:
                break
            path.append(node)
        return path, left[len(path)]


def under(
    target: PreTrainedModel,
    drafters: Mapping[str, Drafter],
    tokenizer: PreTrainedTokenizerBase,
    sampling: Sampling,
    question: str,
    begun: str,
    passes: int = 3,
    most: int = 12,
) -> dict[str, list[dict[str, Any]]]:
    """The passes after the ``begun`` answer under each drafter, each a ``Verified`` and the number of tokens ``drafted``. The
    drafter has seen the passes before; coins and draws are those of :func:`worked`."""
    asked = [{"role": "user", "content": question}]
    prompt = tokenizer.apply_chat_template(asked, add_generation_prompt=True, return_dict=True)["input_ids"]
    answer = tokenizer(begun)["input_ids"]
    made = {}
    for name, drafter in drafters.items():
        drafter.reset()
        limits = Limits(1024, end_tokens(target, None), stop=lambda _: verifier.passes > passes)
        run = Run(target, prompt, sampling, limits)
        run.sampling = run.context.sampling = sampling.for_prompt(prompt + answer)
        with run.verifier(drafter.capture) as opened:
            options = opened.topk, opened.prompt
            verifier = Begun(opened.target, run.sampling, limits.eos, None, *options, answer=answer)
            done = decode(verifier, drafter, run.context, limits)
        made[name], emitted = [], 1
        for step in done.steps:
            if emitted >= len(answer) and len(made[name]) < passes:
                shown = shown_part(step, done.tokens[emitted - 1], tokenizer, most)
                ends = len(step.tokens) == step.accepted  # inside the draft: the target adds nothing
                made[name].append({**asdict(shown), "drafted": step.drafted, **({"own": None} if ends else {})})
            emitted += len(step.tokens)
    return made


def main(
    pages: Annotated[
        list[str] | None, options.choice((*PAGES, WORKED, SAME), "default: all", kind=typer.Argument)
    ] = None,
    target: options.Target = "smollm2",
    draft: Annotated[str, typer.Option(help="'none' for pages whose methods need none")] = "smollm2-draft",
) -> None:
    """Decode what the pages of methods show, by default for all of them, and keep it."""
    model, tokenizer = load_model(target)
    examples = Examples(model, None if draft == "none" else load_model(draft)[0], tokenizer)
    for page in pages or (*PAGES, WORKED, SAME):
        if page == WORKED:
            path, made = worked_example.FILE, worked(model, examples.draft, tokenizer, **STORY)
        elif page == SAME:
            path = same_prompt.FILE
            made = {
                "command": "make examples ARGS=same-prompt",
                "question": STORY["question"],
                "text": STORY["begun"],
                "sampling": asdict(STORY["sampling"]),
                "passes": under(model, examples.all_drafters(), tokenizer, **STORY),
            }
        else:
            path, made = method_pictures.FOLDER / f"{page}.json", examples.page(page)
        text = json.dumps({"target": target, **made}, ensure_ascii=False, separators=(",", ":"))
        files.write_atomic(path, text + "\n")
        print(f"{page} is written", flush=True)


if __name__ == "__main__":
    typer.run(main)
