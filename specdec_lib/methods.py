"""The one table of methods: what each is called, how it is built for a pair of models, how it looks and how it is priced.

A new method is a drafter in a file of its own and one row of :data:`METHODS`. Figures, tables, chapters, comparisons, the
README, the losslessness suite, the pages of the book and their pictures read this table; nothing else lists methods.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from specdec_lib.datastores import SuffixIndex
from specdec_lib.decoding.contract import Drafter
from specdec_lib.decoding.runtime import Runtime
from specdec_lib.drafters import (
    AdaptiveDraftModel,
    DraftModel,
    Dresd,
    PromptLookup,
    PromptLookupAttention,
    PromptLookupHidden,
    Rest,
    SpecDecPP,
)
from specdec_lib.drafters.stopping import Confidence
from specdec_lib.drafters.token_recycling import TokenRecycling
from specdec_lib.heads.acceptance import AcceptanceHead

#: Plain decoding, which every method is compared with: its name, also in recorded values, and its look.
PLAIN, PLAIN_COLOR, PLAIN_MARKER = "plain", "#7f7f7f", "o"

#: Chapters that compare methods, by their numbers.
COMPARISONS = ("01", "04", "06")


class Unavailable(LookupError):
    """What a method needs is not there for these models; the message says what."""


class Workbench(Protocol):
    """What a method may ask for when it is built for a pair of models (:class:`specdec_lib.experiments.workbench.ModelPair`).

    What is not there raises :class:`Unavailable` when it is asked for, and costs nothing where it is not.

    Attributes
    ----------
    target, draft : PreTrainedModel
    tokenizer : PreTrainedTokenizerBase
    draft_runtime : Runtime, optional
        How the draft model's passes are run.
    sparse : SuffixIndex
        A datastore of text, with its suffix array.
    dense : DenseIndex
        A dense index of the target's states, or what searches like one.
    layer : int
        The layer whose states tell best where to copy from.
    heads : sequence of (int, int)
        (block, head) pairs of the target's induction heads.
    acceptance_head : AcceptanceHead
        Predicts whether the target accepts a token of the draft model.
    """

    target: PreTrainedModel
    draft: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    draft_runtime: Runtime | None

    @property
    def sparse(self) -> SuffixIndex: ...

    @property
    def dense(self) -> Any: ...

    @property
    def layer(self) -> int: ...

    @property
    def heads(self) -> Sequence[tuple[int, int]]: ...

    @property
    def acceptance_head(self) -> AcceptanceHead: ...

    def length(self, method: str) -> int:
        """Draft length of a method, K: what was asked for, or the row's own (:func:`draft_length`)."""
        ...


Maker = Callable[[Workbench], Drafter]


@dataclass(frozen=True)
class Method:
    """A row of :data:`METHODS`.

    Attributes
    ----------
    name : str
        In tables and legends. A variant of a method is named ``"name, variant"``.
    slug : str
        In the names of recorded values.
    color : str
        As ``#rrggbb``; apart from the others' for colour-blind readers, as far as there are such colours.
    marker : str
        Of matplotlib; no two rows share both colour and marker.
    about : str
        What it drafts, in one sentence.
    page : str
        Its page of the book, ``book/methods/<page>.md``.
    paper : str
        Key of the bibliography.
    drafter : type
        The class that drafts.
    make : callable
        Builds it for a pair of models.
    exact : {"exact", "in distribution", "lossy"}
        Whether a sampled output is that of plain decoding token for token, follows the same distribution, or neither. A
        greedy output is that of plain decoding unless the method is lossy.
    price : {"step", "token"}
        Whether drafting costs a time for each step or for each drafted token.
    length : int, optional
        Draft length K where none is asked for; None for drafts that are not limited by a K.
    state : {"cold", "warm"}
        In which state the chapters measure it: ``"cold"``, it knows no earlier prompt; ``"warm"``, it keeps what it learned
        from the earlier prompts of the same measurement.
    chapters : tuple of str
        Which of :data:`COMPARISONS` have it in their tables.
    variants : mapping
        Further makers by full name, which the ``losslessness`` command compares too.
    """

    name: str
    slug: str
    color: str
    marker: str
    about: str
    page: str
    paper: str
    drafter: type[Drafter]
    make: Maker
    exact: Literal["exact", "in distribution", "lossy"] = "exact"
    price: Literal["step", "token"] = "step"
    length: int | None = None
    state: Literal["cold", "warm"] = "cold"
    chapters: tuple[str, ...] = COMPARISONS
    variants: Mapping[str, Maker] = field(default_factory=dict)


_ROWS = (
    Method(
        "PLD", "pld", "#0072b2", "s", "Copies what followed the first earlier occurrence of the last tokens.",
        "pld", "saxena2023", PromptLookup,
        lambda bench: PromptLookup(3, bench.length("PLD")), length=10,
        variants={"PLD (transformers' variant)": lambda bench: PromptLookup(2, 10, variant="transformers")},
    ),
    Method(
        "PLD+ (h)", "h", "#56b4e9", "D", "Copies from the occurrence whose hidden state is nearest to the current one.",
        "pld-plus", "somasundaram2025", PromptLookupHidden,
        lambda bench: PromptLookupHidden(bench.layer, bench.length("PLD+ (h)")), length=70, chapters=("04", "06"),
    ),
    Method(
        "PLD+ (a)", "a", "#8c6bb1", "^", "Copies from the occurrence that the target's induction heads attend to.",
        "pld-plus", "somasundaram2025", PromptLookupAttention,
        lambda bench: PromptLookupAttention(bench.heads, bench.length("PLD+ (a)")), length=70, chapters=("04", "06"),
    ),
    Method(
        "REST", "rest", "#009e73", "v", "Drafts a tree of what most often followed the last tokens in a datastore of text.",
        "rest", "he2024", Rest,
        lambda bench: Rest(bench.sparse, length=bench.length("REST")), length=10, chapters=("04", "06"),
    ),
    Method(
        "DReSD", "dresd", "#cc79a7", "P", "Drafts what followed the stored hidden states nearest to the current one.",
        "dresd", "gritta2025", Dresd,
        lambda bench: Dresd(bench.dense, length=bench.length("DReSD")), length=10, chapters=("06",),
    ),
    Method(
        "SpecDec", "specdec", "#d55e00", "X", "A small model of the same vocabulary drafts a fixed number of tokens.",
        "specdec", "leviathan2023", DraftModel,
        lambda bench: DraftModel(bench.draft, bench.length("SpecDec"), runtime=bench.draft_runtime),
        exact="in distribution", price="token", length=4,
        variants={"SpecDec, adaptive": lambda bench: AdaptiveDraftModel(bench.draft, Confidence(0.4))},
    ),
    Method(
        "SpecDec++", "specdec_pp", "#e69f00", "*", "A small model drafts until a trained head expects a refusal.",
        "specdec-pp", "huang2024", SpecDecPP,
        lambda bench: SpecDecPP(bench.draft, bench.acceptance_head, runtime=bench.draft_runtime),
        exact="in distribution", price="token", chapters=("06",),
    ),
    Method(
        "Token Recycling", "recycling", "#8c564b", "h", "Drafts a tree of what the target last found likely after each token.",
        "token-recycling", "luo2025", TokenRecycling, lambda bench: TokenRecycling(), state="warm",
    ),
)  # fmt: skip

#: The methods by name, in the book's order.
METHODS: dict[str, Method] = {row.name: row for row in _ROWS}


def check_names(names: Collection[str]) -> None:
    """Refuse names that are neither of :data:`METHODS` nor :data:`PLAIN`.

    Raises
    ------
    ValueError
    """
    unknown = [name for name in names if name != PLAIN and name not in METHODS]
    if unknown:
        raise ValueError(f"methods hold {unknown[0]!r}; expected some of {', '.join((PLAIN, *METHODS))}")


def compared_in(chapter: str) -> tuple[str, ...]:
    """Names of the methods that a chapter compares, in the book's order; ``chapter`` is its number, such as ``"04"``."""
    if chapter not in COMPARISONS:
        raise ValueError(f"chapter is {chapter!r}; expected one of {', '.join(COMPARISONS)}")
    return tuple(name for name, method in METHODS.items() if chapter in method.chapters)


def method_of(name: str) -> Method | None:
    """The row of a method or of a variant of it, ``"name, variant"``; None for anything else, such as plain decoding."""
    return METHODS.get(name) or METHODS.get(name.partition(",")[0])


def slug(name: str) -> str:
    """What stands for a method, or for plain decoding, in the names of recorded values."""
    check_names([name])
    return METHODS[name].slug if name in METHODS else PLAIN


def exact(names: Collection[str]) -> tuple[str, ...]:
    """Those of some methods whose sampled outputs are those of plain decoding, token for token."""
    return tuple(name for name in names if name == PLAIN or METHODS[name].exact == "exact")


def states(names: Collection[str]) -> dict[str, str]:
    """By name: in which state each of some methods is measured; plain decoding is cold."""
    return {name: method.state if (method := method_of(name)) else "cold" for name in names}


def how_measured(names: Collection[str]) -> str:
    """Sentences for the caption of a table: which methods ran cold, which warm, and which could not be replayed."""
    warm = [name for name, state in states(names).items() if state == "warm"]
    text = "Every drafter starts each prompt cold."
    if warm:
        text = f"Every drafter starts each prompt cold, but {' and '.join(warm)} ran warm, with what earlier prompts taught it."
    live = [name for name in names if name in METHODS and METHODS[name].drafter.replays == "never"]
    return f"{text} No replay can serve {' and '.join(live)}: it ran for real." if live else text


def without_length(names: Collection[str]) -> str:
    """A half sentence for captions of comparisons at one K: which drafts no K limits; empty if there are none."""
    free = [name for name in names if name in METHODS and METHODS[name].length is None]
    return f" ({', '.join(free)}: as published, no $K$ limits the draft)" if free else ""


def draft_length(method: str, asked: Mapping[str, int]) -> int:
    """Draft length K of a method.

    Parameters
    ----------
    method : str
    asked : mapping
        K by method; a name without its bracket, ``"PLD+"``, stands for all methods that begin with it.

    Raises
    ------
    ValueError
        If the method's drafts have no K.
    """
    own = METHODS[method].length
    if own is None:
        raise ValueError(
            f"drafts of {method} have no length K; leave it out of its row's make, or give the row a length"
        )
    return asked.get(method, asked.get(method.partition(" ")[0], own))


def build(bench: Workbench, names: Collection[str]) -> tuple[dict[str, Drafter | None], dict[str, str]]:
    """Build methods for a pair of models.

    Parameters
    ----------
    bench : Workbench
    names : collection of str
        Of :data:`METHODS`, or :data:`PLAIN`.

    Returns
    -------
    drafters : dict
        By name; None for plain decoding.
    missing : dict
        By name of a method that these models have nothing for: what it lacks.

    Raises
    ------
    ValueError
        If a name is unknown.
    """
    check_names(names)
    drafters: dict[str, Drafter | None] = {}
    missing: dict[str, str] = {}
    for name in names:
        try:
            drafters[name] = METHODS[name].make(bench) if name in METHODS else None
        except Unavailable as error:
            missing[name] = str(error)
    return drafters, missing
