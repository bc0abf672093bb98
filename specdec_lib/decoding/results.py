"""What one verification did, and the counts that follow from a run of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from specdec_lib.decoding.tree import DraftTree

#: Fields of a step that hold its times.
PARTS = ("draft_seconds", "verify_seconds", "commit_seconds", "host_seconds")


@dataclass(frozen=True, slots=True)
class Step:
    """One target forward after the prefill.

    Times are seconds, the device's own where it keeps them. In a replay only ``draft_seconds`` means something.

    Examples
    --------
    >>> from specdec_lib import generate
    >>> from specdec_lib.drafters import PromptLookup
    >>> run = generate(model, prompt, PromptLookup(), max_new_tokens=24)
    >>> step = max(run.steps, key=lambda step: step.accepted)
    >>> step.drafted, step.accepted, len(step.tokens)
    (10, 10, 11)
    """

    #: What was proposed, cut to what could still be emitted; without the distributions that it was drawn from.
    tree: DraftTree
    #: Nodes of ``tree`` whose tokens were emitted.
    path: tuple[int, ...]
    #: Emitted tokens: those of the path, then at most one of the target's own.
    tokens: tuple[int, ...]
    #: To propose, and to learn from the outcome.
    draft_seconds: float
    #: For the target's pass.
    verify_seconds: float
    #: To move the cache.
    commit_seconds: float
    #: For acceptance and emission on the host.
    host_seconds: float = 0.0

    @property
    def drafted(self) -> int:
        """Draft tokens verified (nodes of the tree)."""
        return len(self.tree)

    @property
    def width(self) -> int:
        """Tokens of the target's pass: the last emitted one, the draft's nodes and its auxiliary tokens."""
        return self.tree.width

    @property
    def accepted(self) -> int:
        """Draft tokens emitted."""
        return len(self.path)


@dataclass(frozen=True)
class Generation:
    """Result of one decoding run.

    Examples
    --------
    >>> from specdec_lib import generate
    >>> from specdec_lib.drafters import PromptLookup
    >>> run = generate(model, prompt, PromptLookup(), max_new_tokens=24)
    >>> len(run.tokens), run.finish_reason
    (24, 'length')
    >>> round(run.stats["tokens_per_forward"], 2)
    4.6
    """

    #: New tokens only, the end token included where one was reached.
    tokens: list[int]
    steps: list[Step] = field(repr=False)
    #: "eos", "stop_string", "length", "context" or "criteria".
    finish_reason: str
    prompt_length: int
    #: The prompt's forward and the first token, and what the drafter does with the prompt.
    prefill_seconds: float
    #: What the drafter knew of other prompts, where a harness saw to it: nothing ("cold"), or those before ("warm").
    state: str | None = None

    @cached_property
    def stats(self) -> dict[str, float]:
        """Metrics by name (:func:`metrics`)."""
        return metrics([self])


_COUNTS = ("new_tokens", "calls", "calls_with_prefill", "calls_with_draft")
_TIMES = ("seconds", "prefill_seconds", *PARTS)
#: The sums (:func:`sums`) that each rate of :func:`metrics` is the ratio of.
RATES = {
    "tokens_per_forward": ("emitted", "calls"),
    "tokens_per_forward_with_prefill": ("new_tokens", "calls_with_prefill"),
    "mean_accepted_drafts": ("accepted", "calls_with_draft"),
    "acceptance_rate": ("accepted", "depth"),
    "acceptance_rate_nodes": ("accepted", "drafted"),
    "acceptance_rate_step_mean": ("accepted_shares", "calls_with_draft"),
    "discard_rate": ("discarded", "emitted"),
    "verification_rate": ("calls", "emitted"),
    "ms_per_token": ("step_ms", "emitted"),
    "ms_per_token_with_prefill": ("ms", "new_tokens"),
    "tokens_per_second": ("emitted", "step_seconds"),
    "tokens_per_second_with_prefill": ("new_tokens", "seconds"),
    "draft_ms_per_step": ("draft_ms", "calls"),
    "draft_ms_per_token": ("draft_ms", "emitted"),
}


def sums(runs: list[Generation]) -> dict[str, float]:
    """Sums over the steps of runs, from which :func:`metrics` makes its ratios.

    Parameters
    ----------
    runs : list of Generation

    Returns
    -------
    dict of str to float
        By the names in :data:`RATES`, and the counts and seconds of :func:`metrics`.

    Examples
    --------
    >>> from specdec_lib import generate
    >>> from specdec_lib.decoding.results import sums
    >>> from specdec_lib.drafters import PromptLookup
    >>> found = sums([generate(model, prompt, PromptLookup(), max_new_tokens=24)])
    >>> found["emitted"], found["calls"]
    (23, 5)
    """
    steps = [s for run in runs for s in run.steps]
    drafting = [s for s in steps if s.drafted]
    total, calls = sum(len(run.tokens) for run in runs), len(steps)
    accepted, drafted = sum(s.accepted for s in steps), sum(s.drafted for s in steps)
    parts = {k: sum(getattr(s, k) for s in steps) for k in PARTS}
    prefill, spent = sum(run.prefill_seconds for run in runs), sum(parts.values())
    return {
        "new_tokens": total,
        "emitted": total - len(runs),
        "calls": calls,
        "calls_with_prefill": calls + len(runs),
        "calls_with_draft": len(drafting),
        "accepted": accepted,
        "drafted": drafted,
        "discarded": drafted - accepted,
        "depth": sum(s.tree.depth for s in drafting),
        "accepted_shares": sum(s.accepted / s.tree.depth for s in drafting),
        "seconds": prefill + spent,
        "prefill_seconds": prefill,
        **parts,
        "step_seconds": spent,
        "ms": 1e3 * (prefill + spent),
        "step_ms": 1e3 * spent,
        "draft_ms": 1e3 * parts["draft_seconds"],
    }


def metrics(runs: list[Generation]) -> dict[str, float]:
    r"""Metrics of one run, or of several pooled (micro averages).

    They are the ratios in :data:`RATES`, counts and seconds; the book's glossary says what they are called elsewhere. ``calls``
    are the target's passes after the prefill, ``emitted`` the tokens without each run's first, which the prefill gives.
    ``tokens_per_forward`` is Spec-Bench's "mean accepted tokens" and REST's M on MT-Bench; with the prefill it is REST's M on
    HumanEval. ``acceptance_rate`` divides by the depth of the draft, ``acceptance_rate_nodes`` by all its nodes.
    ``discard_rate`` and ``verification_rate`` are those of SpecDec++'s equation 2.3.

    Parameters
    ----------
    runs : list of Generation

    Returns
    -------
    dict of str to float
        NaN where a ratio has nothing below.

    Examples
    --------
    >>> from specdec_lib import generate
    >>> from specdec_lib.decoding.results import metrics
    >>> from specdec_lib.drafters import PromptLookup
    >>> prompts = [prompt, tokenizer("for i in range(3):\n    print(i)\n")["input_ids"]]
    >>> runs = [generate(model, each, PromptLookup(), max_new_tokens=24) for each in prompts]
    >>> round(metrics(runs)["tokens_per_forward"], 2)
    3.83
    """
    total = sums(runs)
    return {name: total[name] for name in (*_COUNTS, *_TIMES)} | {
        name: total[above] / total[below] if total[below] else float("nan") for name, (above, below) in RATES.items()
    }
