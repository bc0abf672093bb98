"""What the loop asks of a drafter, and what a drafter is shown.

A drafter sees tokens, and what it asked to have captured; it knows no target model. The loop knows no drafter by name.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple, NoReturn, get_args

import numpy as np
import torch

from specdec_lib.decoding.checks import one_of, whole_number
from specdec_lib.decoding.outputs import Outputs
from specdec_lib.decoding.sampling import Sampling
from specdec_lib.decoding.tree import DraftTree

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

#: Names the last layer, after the final norm, of a model whose number of layers is not known.
LAST = -1


@dataclass(frozen=True)
class Capture:
    """What the target keeps of its own computation for a drafter; ``|`` joins two of them.

    Raises
    ------
    ValueError
        If ``prompt`` is set and ``topk`` is 0.

    Examples
    --------
    >>> from specdec_lib import LAST, Capture
    >>> Capture(layers=(LAST,)) | Capture(layers=(2,), heads=((2, 0),))
    Capture(layers=(-1, 2), heads=((2, 0),), topk=0, prompt=False)
    """

    #: Hidden states as transformers counts them: 0 are the embeddings, ``i`` the output of block ``i``, the last one
    #: the final norm's output, which is also called :data:`LAST`.
    layers: tuple[int, ...] = ()
    #: (block, head) pairs, both from 0, whose attention rows are kept.
    heads: tuple[tuple[int, int], ...] = ()
    #: How many of the target's most likely tokens are kept after each node of a pass (:class:`Outputs`).
    topk: int = 0
    #: Whether they are kept after each token of the prompt too (:attr:`Context.prompt_outputs`). The prompt's pass then
    #: computes all of its logits.
    prompt: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "topk", whole_number("topk", self.topk, 0, "0 for none"))
        if self.prompt and not self.topk:
            raise ValueError("prompt asks for the most likely tokens after the prompt's, and topk is 0; say how many")
        object.__setattr__(self, "layers", tuple(self.layers))
        object.__setattr__(self, "heads", tuple(map(tuple, self.heads)))

    def __or__(self, other: Capture) -> Capture:
        return Capture(
            tuple(dict.fromkeys(self.layers + other.layers)),
            tuple(dict.fromkeys(self.heads + other.heads)),
            max(self.topk, other.topk),
            self.prompt or other.prompt,
        )


@dataclass
class Context:
    """What a drafter is shown.

    Examples
    --------
    :func:`specdec_lib.generate` makes one. Make one yourself to see what a drafter proposes, without a model:

    >>> from specdec_lib import Context, Sampling
    >>> from specdec_lib.drafters import PromptLookup
    >>> context = Context([5, 6, 7, 5, 6], prompt_length=4, vocabulary=10, sampling=Sampling())
    >>> drafter = PromptLookup(max_ngram=2, num_tokens=2)
    >>> drafter.start(context)
    >>> drafter.propose(context, limit=4)
    DraftTree(tokens=[7, 5], parents=[-1, 0])
    """

    #: Prompt and all emitted tokens; grows in place. The last one's states are not computed yet.
    tokens: list[int]
    prompt_length: int
    #: Number of token ids of the target, rows of padding included.
    vocabulary: int
    #: How the target chooses, bound to the prompt; a draft model draws in the same way.
    sampling: Sampling
    #: ``hidden(layer)`` gives captured states of a layer as :class:`Capture` named it, shape (len(tokens) - 1, d).
    hidden: Callable[[int], torch.Tensor] = field(repr=False, default=None)
    #: ``attention()`` gives the captured heads' rows of the last cached token, shape (heads, len(tokens) - 1).
    attention: Callable[[], torch.Tensor] = field(repr=False, default=None)
    #: Number of token ids of the target's tokenizer, where it is known; the rows that the target embeds without one.
    token_ids: int | None = None
    #: With ``Capture(prompt=True)`` the target's most likely tokens after each token of the prompt, most likely first, int64
    #: (prompt_length, k); k is the ``topk`` of whoever asked for most.
    prompt_outputs: np.ndarray | None = field(default=None, repr=False)
    #: The target's tokenizer, where it is known.
    tokenizer: PreTrainedTokenizerBase | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        self.token_ids = self.token_ids or self.vocabulary


class Evidence(NamedTuple):
    """What a drafter knows of the draft it has just made; one tree weighs its nodes by it.

    Examples
    --------
    >>> from specdec_lib import Context, Sampling
    >>> from specdec_lib.drafters import PromptLookup
    >>> context = Context([5, 6, 7, 5, 6], prompt_length=4, vocabulary=10, sampling=Sampling())
    >>> drafter = PromptLookup(max_ngram=2, num_tokens=2)
    >>> drafter.start(context)
    >>> tree = drafter.propose(context, limit=4)
    >>> drafter.evidence(context).match
    2
    """

    #: Tokens before the draft that the source and the context share.
    match: int = 0
    #: Occurrences that the draft rests on.
    support: float = 1.0
    #: Logarithm of one more than the number of places that it chose among; 0 where it did not choose.
    candidates: float = 0.0
    #: How far ahead of the next best place the best one was.
    margin: float = 0.0
    #: How near what is copied from is to the context: one number, or one per node.
    similarity: Sequence[float] = (0.0,)
    #: Logarithm of the attention that the target pays to the copied place, 0 where nobody looked.
    attention: float = 0.0


Replays = Literal["any", "greedy", "never"]
_NOT_CALLED = "custom_generate is {}, no decoding method; write custom_generate=specdec_lib.custom_generate({})"


class Drafter(ABC):
    """Proposes continuations; a method of speculative decoding is a subclass.

    The calls of a generation are ``start``, then for each pass of the target ``propose`` (left out where there is room for one
    token only) and ``verified``, then ``finish``. A drafter may keep what it learned from one generation to the next; ``reset``
    makes it forget that. The loop calls ``reset`` before a target with another number of token ids.

    A drafter may train in any of these calls: gradients are on unless the caller has switched them off, and captured states are
    ordinary tensors. Clone what you keep for a later call, because the target writes on in the same memory. A drafter that runs
    a network of its own without learning does so under ``torch.inference_mode()``.

    Examples
    --------
    A drafter that guesses that the last token comes again. The output is that of plain decoding, however bad the guess:

    >>> from specdec_lib import Drafter, DraftTree, generate
    >>> class Again(Drafter):
    ...     def propose(self, context, limit):
    ...         return DraftTree.chain(context.tokens[-1:])
    >>> run = generate(model, prompt, Again(), max_new_tokens=24)
    >>> run.tokens == generate(model, prompt, max_new_tokens=24).tokens
    True
    >>> len(run.steps), sum(step.accepted for step in run.steps)
    (23, 0)
    """

    #: What it needs of the target's computation.
    capture: Capture = Capture()
    #: On which recorded runs (:func:`specdec_lib.replay`) it drafts what it drafts in a real run. ``"greedy"`` for drafts with
    #: probabilities: rejection sampling emits other tokens than the recorded ones. ``"never"`` for a drafter that depends on the
    #: target's outputs (``capture.topk``), which no recording has.
    replays: Replays = "any"
    #: Token ids of the target that it served last; the loop's.
    _vocabulary: int | None = None

    def __new__(cls, *args: object, **kwargs: object) -> Drafter:
        if "logits_processor" in kwargs:  # the call of a decoding method
            raise TypeError(_NOT_CALLED.format(f"the class {cls.__name__}", f"{cls.__name__}(...)"))
        return super().__new__(cls)

    def __call__(self, *args: object, **kwargs: object) -> NoReturn:
        """Reject a call: ``model.generate(custom_generate=drafter)`` would leave out what cannot be called, without a word."""
        raise TypeError(_NOT_CALLED.format(repr(self), "drafter"))

    def inner(self) -> tuple[Drafter, ...]:
        """The drafters that this one calls, which serve one generation at a time with it; none by default."""
        return ()

    def reset(self) -> None:
        """Forget everything learned in earlier generations."""

    def start(self, context: Context) -> None:
        """Look at a new prompt.

        Parameters
        ----------
        context : Context
            Its ``tokens`` end with the first new token, and grow until the end.
        """

    @abstractmethod
    def propose(self, context: Context, limit: int) -> DraftTree:
        """Guess how the text goes on.

        Parameters
        ----------
        context : Context
            Only to be read.
        limit : int
            Deepest draft that can be used, 1 or more; deeper nodes are cut.

        Returns
        -------
        DraftTree
            An empty tree where there is nothing to propose.
        """

    def verified(self, tree: DraftTree, path: tuple[int, ...], outputs: Outputs | None) -> None:
        """Learn from a pass of the target, after its tokens are emitted.

        Parameters
        ----------
        tree : DraftTree
            The proposed tree cut to the limit, or an empty one where none was asked for.
        path : tuple of int
            The nodes whose tokens were emitted, from the root's child down.
        outputs : Outputs or None
            None if ``capture.topk`` is 0.
        """

    def __repr__(self) -> str:
        """The settings that it keeps under their names; of objects the type."""
        kept = {name: getattr(self, name, None) for name in inspect.signature(type(self)).parameters}
        shown = {
            name: repr(value) if isinstance(value, bool | int | float | str | tuple) else type(value).__name__
            for name, value in kept.items()
            if value is not None
        }
        return f"{type(self).__name__}({', '.join(f'{name}={value}' for name, value in shown.items())})"

    def evidence(self, context: Context) -> Evidence:
        """Return what the drafter knows of its last draft; one that knows nothing is judged by how often it was right."""
        return Evidence()

    def finish(self) -> None:
        """Give back what is held for one generation, such as a draft model's cache; called after failures too."""


class WrappedDrafter(Drafter):
    """Passes every call on to another drafter; a subclass overrides what it adds.

    Parameters
    ----------
    drafter : Drafter
        Its ``capture`` and ``replays`` become those of the wrapper.

    Examples
    --------
    Prompt lookup with drafts of at most three tokens:

    >>> from specdec_lib import WrappedDrafter, generate
    >>> from specdec_lib.drafters import PromptLookup
    >>> class Short(WrappedDrafter):
    ...     def propose(self, context, limit):
    ...         return self.drafter.propose(context, min(limit, 3))
    >>> run = generate(model, prompt, Short(PromptLookup()), max_new_tokens=24)
    >>> max(step.drafted for step in run.steps)
    3
    """

    def __init__(self, drafter: Drafter):
        self.drafter, self.capture, self.replays = drafter, drafter.capture, drafter.replays

    def inner(self) -> tuple[Drafter, ...]:
        return (self.drafter,)

    def reset(self) -> None:
        self.drafter.reset()

    def start(self, context: Context) -> None:
        self.drafter.start(context)

    def propose(self, context: Context, limit: int) -> DraftTree:
        return self.drafter.propose(context, limit)

    def verified(self, tree: DraftTree, path: tuple[int, ...], outputs: Outputs | None) -> None:
        self.drafter.verified(tree, path, outputs)

    def evidence(self, context: Context) -> Evidence:
        return self.drafter.evidence(context)

    def finish(self) -> None:
        self.drafter.finish()


def check_drafter(drafter: object) -> None:
    """Reject what is no drafter, and what declares what cannot be declared.

    Parameters
    ----------
    drafter : object

    Raises
    ------
    TypeError
        If it is no :class:`Drafter`, or its ``capture`` is no :class:`Capture`.
    ValueError
        If its ``replays`` is none of the known values.

    Examples
    --------
    >>> from specdec_lib.decoding.contract import check_drafter
    >>> from specdec_lib.drafters import PromptLookup
    >>> check_drafter(PromptLookup())
    >>> check_drafter(PromptLookup)
    Traceback (most recent call last):
        ...
    TypeError: drafter is <class '...PromptLookup'>; expected an object of a subclass of specdec_lib.Drafter: make one, ...
    """
    if not isinstance(drafter, Drafter):
        made = f": make one, {drafter.__name__}(...)" if isinstance(drafter, type) else ""
        raise TypeError(f"drafter is {drafter!r}; expected an object of a subclass of specdec_lib.Drafter{made}")
    if not isinstance(drafter.capture, Capture):
        raise TypeError(f"{drafter!r} has capture {drafter.capture!r}; expected a specdec_lib.Capture")
    one_of(f"replays of {drafter!r}", drafter.replays, get_args(Replays))
