"""``generate`` and ``record``: a prompt in, tokens out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Literal

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from specdec_lib.decoding.checks import whole_number
from specdec_lib.decoding.clock import clock_of
from specdec_lib.decoding.contract import Capture, Context, Drafter, check_drafter
from specdec_lib.decoding.loop import Limits, ModelVerifier, Processors, Trace, decode
from specdec_lib.decoding.results import Generation
from specdec_lib.decoding.runtime import Runtime
from specdec_lib.decoding.sampling import Sampling
from specdec_lib.decoding.served_models import context_limit, token_ids, tokenizer_of, vocabulary_size
from specdec_lib.decoding.stop_strings import stop_on_strings
from specdec_lib.decoding.target import DRAFT_ROOM, Target, check_model
from specdec_lib.lazy import former_names

__getattr__ = former_names(__name__, kept="to_cpu")

#: New tokens that buffers have room for at first: a large max_new_tokens takes memory only as it is used.
FIRST_ROOM = 1024
TokenIds = Sequence[int] | np.ndarray | torch.Tensor


def as_token_list(input_ids: TokenIds, vocabulary: int) -> list[int]:
    """Check a prompt.

    Parameters
    ----------
    input_ids : sequence of int, or integer array or tensor of shape (n,) or (1, n)
    vocabulary : int
        Number of token ids of the model.

    Returns
    -------
    list of int

    Raises
    ------
    TypeError
        For text, and for numbers that are not whole.
    ValueError
        For several prompts, an empty one, and an id outside the vocabulary.

    Examples
    --------
    >>> import torch
    >>> from specdec_lib.decoding.generate import as_token_list
    >>> as_token_list(torch.tensor([[3, 5]]), vocabulary=10)
    [3, 5]
    """
    if isinstance(input_ids, str | Mapping):
        given = "text" if isinstance(input_ids, str) else f"a {type(input_ids).__name__}"
        raise TypeError(f"input_ids is {given}; expected token ids: tokenizer(text)['input_ids']")
    try:
        array = input_ids.detach().cpu().numpy() if isinstance(input_ids, torch.Tensor) else np.asarray(input_ids)
    except ValueError:  # rows of several lengths
        raise ValueError("input_ids holds several prompts; expected one: call once for each") from None
    if array.ndim > 2:
        raise ValueError(f"input_ids has shape {array.shape}; expected (n,) or (1, n)")
    if array.ndim == 2 and array.shape[0] != 1:
        raise ValueError(f"input_ids holds {array.shape[0]} prompts; expected one: call once for each")
    array = array.reshape(-1)
    if array.size == 0:
        raise ValueError("input_ids is empty; expected at least one token (a start-of-text token will do)")
    if not np.issubdtype(array.dtype, np.integer):
        raise TypeError(f"input_ids has type {array.dtype}; expected whole numbers (token ids)")
    wrong = array[(array < 0) | (array >= vocabulary)]
    if wrong.size:
        raise ValueError(f"token id {wrong[0]} is outside the model's vocabulary of {vocabulary}: another tokenizer's?")
    return array.tolist()


def as_token_lists(prompts: Sequence[TokenIds], model: PreTrainedModel) -> list[list[int]]:
    """Check several prompts, each with room for a token in the model's context.

    Parameters
    ----------
    prompts : sequence
        At least one, each as :func:`as_token_list` takes it.
    model : PreTrainedModel

    Returns
    -------
    list of list of int

    Examples
    --------
    >>> from specdec_lib.decoding.generate import as_token_lists
    >>> as_token_lists([[3, 5], [7]], model)
    [[3, 5], [7]]
    """
    if not len(prompts):
        raise ValueError("no prompts; expected at least one")
    lists = [as_token_list(prompt, vocabulary_size(model)) for prompt in prompts]
    for i, prompt in enumerate(lists):
        _check_room(f"prompt {i}", prompt, context_limit(model))
    return lists


def _check_room(name: str, prompt: list[int], context: int | None) -> None:
    if context is not None and len(prompt) >= context:
        raise ValueError(f"{name} has {len(prompt)} tokens and the model's context is {context}: no room for a new one")


def end_tokens(model: PreTrainedModel, eos_token_id: int | Iterable[int] | None) -> frozenset[int]:
    """The ids that end a generation.

    Parameters
    ----------
    model : PreTrainedModel
    eos_token_id : int, iterable of int, or None
        None takes the model's own, an empty list none.

    Returns
    -------
    frozenset of int

    Examples
    --------
    >>> from specdec_lib.decoding.generate import end_tokens
    >>> end_tokens(model, None) == {model.config.eos_token_id}
    True
    >>> end_tokens(model, [])
    frozenset()
    """
    given = eos_token_id is not None
    if eos_token_id is None:
        eos_token_id = getattr(model.generation_config, "eos_token_id", None)
        if eos_token_id is None:
            eos_token_id = getattr(model.config, "eos_token_id", None)
    if eos_token_id is None:
        return frozenset()
    if not isinstance(eos_token_id, int | float | str | np.generic | torch.Tensor):
        eos_token_id = list(eos_token_id)
    ids = np.asarray(eos_token_id.cpu() if isinstance(eos_token_id, torch.Tensor) else eos_token_id)
    if ids.size and not np.issubdtype(ids.dtype, np.integer):
        raise TypeError(f"eos_token_id is {eos_token_id!r}; expected token ids, such as tokenizer.eos_token_id")
    found = frozenset(ids.reshape(-1).tolist())
    if given and found and not any(0 <= token < vocabulary_size(model) for token in found):
        raise ValueError(
            f"eos_token_id is {eos_token_id!r}, outside the vocabulary of {vocabulary_size(model)}; expected ids, or [] for no end"
        )
    return found


class Run:
    """One generation, checked before any work: a prompt, how its tokens are chosen and where it ends.

    ``context`` holds the tokens and is what a drafter is shown.

    Parameters
    ----------
    model : PreTrainedModel
    input_ids
        As for :func:`generate`.
    sampling : Sampling or None
    limits : Limits
    processors : callable, optional
        transformers' logits processors.
    shown : Sampling, optional
        What drafters see when ``processors`` already apply temperature and top-p.

    Examples
    --------
    >>> from specdec_lib.decoding.generate import Run
    >>> from specdec_lib.decoding.loop import Limits, decode
    >>> run = Run(model, prompt, None, Limits(max_new_tokens=8))
    >>> with run.verifier() as verifier:
    ...     done = decode(verifier, None, run.context, run.limits)
    >>> run.context.tokens == prompt + done.tokens
    True
    """

    def __init__(
        self,
        model: PreTrainedModel,
        input_ids: TokenIds,
        sampling: Sampling | None,
        limits: Limits,
        processors: Processors | None = None,
        shown: Sampling | None = None,
    ):
        sampling = Sampling() if sampling is None else sampling
        if not isinstance(sampling, Sampling):
            raise TypeError(f"sampling is {sampling!r}; expected a specdec_lib.Sampling")
        self.model, self.limits, self.processors = model, limits, processors
        tokens = as_token_list(input_ids, vocabulary_size(model))
        _check_room("the prompt", tokens, limits.context)
        check_model(model)
        # Here alone: a token is a function of seed, prompt and position for every way into the loop.
        self.sampling = sampling.for_prompt(tokens)
        shown = self.sampling if shown is None else shown.for_prompt(tokens)
        known = {"token_ids": token_ids(model), "tokenizer": tokenizer_of(model)}
        self.context = Context(tokens, len(tokens), vocabulary_size(model), shown, **known)

    @contextmanager
    def verifier(
        self, capture: Capture = Capture(), runtime: Runtime | Literal["transformers"] | None = None
    ) -> Iterator[ModelVerifier]:
        """The target, open, with what it captures shown in the context."""
        context, known = self.context, self.context.vocabulary
        if capture.topk > known:
            raise ValueError(f"topk is {capture.topk} and the model's vocabulary has {known} tokens; ask for no more")
        end = context.prompt_length + self.limits.max_new_tokens
        end = end if self.limits.context is None else min(end, self.limits.context)
        capacity = min(end, context.prompt_length + FIRST_ROOM) + DRAFT_ROOM
        with Target(self.model, end, capture, capacity, runtime) as target:
            context.hidden, context.attention = target.hidden, target.attention
            try:
                clock = clock_of(target.devices)
                asked = capture.topk, capture.prompt
                yield ModelVerifier(target, self.sampling, self.limits.eos, self.processors, *asked, clock=clock)
            finally:
                # A drafter may keep its context; the target's buffers need not live as long.
                context.hidden = context.attention = None


def _run_of(model, input_ids, sampling, max_new_tokens, eos_token_id, stop_strings, tokenizer) -> Run:
    # Wrappers such as PEFT's answer for the model inside.
    generates = getattr(model, "can_generate", None)
    if not isinstance(model, torch.nn.Module) or generates is None or not generates():
        raise TypeError(f"model is a {type(model).__name__}; expected a causal language model, as load_model gives")
    most = whole_number("max_new_tokens", max_new_tokens, 1)
    prompt = as_token_list(input_ids, vocabulary_size(model))
    stop = stop_on_strings(stop_strings, tokenizer, model, prompt)
    return Run(model, prompt, sampling, Limits(most, end_tokens(model, eos_token_id), context_limit(model), stop))


def generate(
    model: PreTrainedModel,
    input_ids: TokenIds,
    drafter: Drafter | None = None,
    sampling: Sampling | None = None,
    max_new_tokens: int = 128,
    eos_token_id: int | Iterable[int] | None = None,
    on_tokens: Callable[[list[int]], None] | None = None,
    *,
    stop_strings: str | Iterable[str] | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    runtime: Runtime | Literal["transformers"] | None = None,
) -> Generation:
    """Decode one prompt, with or without speculation.

    The tokens are those of plain decoding with the same ``sampling``, whatever the drafter: token for token for
    drafters that propose tokens only, in distribution for those that draw from a draft model or from EAGLE's layer.

    Of ``model.generation_config`` only ``eos_token_id`` is read. To decode with everything that transformers'
    ``model.generate`` applies, logits processors included, use :func:`specdec_lib.custom_generate`.

    Parameters
    ----------
    model : PreTrainedModel
        A decoder-only causal language model of transformers, in evaluation mode.
    input_ids : sequence of int, or integer array or tensor of shape (n,) or (1, n)
    drafter : Drafter, optional
        ``None`` decodes plainly.
    sampling : Sampling, optional
        Greedy by default. Temperature, top-p, top-k and seed come from here alone.
    max_new_tokens : int
        The output also ends, with ``finish_reason`` "context", where it fills the model's ``max_position_embeddings``.
    eos_token_id : int or sequence of int, optional
        The first of these ends the output. ``None`` takes the model's own; an empty list none at all.
    on_tokens : callable, optional
        Called with each block of new tokens as it is emitted.
    stop_strings : str or sequence of str, optional
        End with the token that completes one of these, which may begin in the prompt, as in transformers; needs ``tokenizer``.
    tokenizer : PreTrainedTokenizerBase, optional
        The model's own.
    runtime : Runtime or "transformers", optional
        How the model's passes are run (:class:`specdec_lib.decoding.runtime.Runtime`), such as CUDA graphs. Without one they
        are transformers' own, on a CPU in float32 with the faster of torch's product and one for a few rows, which reads the
        model's weights as they are; ``"transformers"`` leaves that out. The tokens are the same in float32, up to rounding.

    Returns
    -------
    Generation

    Raises
    ------
    UnsupportedModel
        A ValueError: the model cannot be decoded by tree verification, or cannot give what the drafter needs.
    FloatingPointError
        If no token can be chosen from the model's logits.

    Examples
    --------
    >>> from specdec_lib import generate
    >>> from specdec_lib.drafters import PromptLookup
    >>> plain = generate(model, prompt, max_new_tokens=24)
    >>> fast = generate(model, prompt, PromptLookup(max_ngram=3, num_tokens=10), max_new_tokens=24)
    >>> print(tokenizer.decode(fast.tokens))
    <BLANKLINE>
        return x + y
    <BLANKLINE>
    def _subtract(x, y):
        return x + y
    <BLANKLINE>
    def _
    >>> fast.tokens == plain.tokens
    True
    >>> len(plain.steps), len(fast.steps)
    (23, 5)
    """
    if drafter is not None:
        check_drafter(drafter)
    run = _run_of(model, input_ids, sampling, max_new_tokens, eos_token_id, stop_strings, tokenizer)
    with run.verifier(Capture() if drafter is None else drafter.capture, runtime) as verifier:
        return decode(verifier, drafter, run.context, run.limits, on_tokens)


def record(
    model: PreTrainedModel,
    input_ids: TokenIds,
    sampling: Sampling | None = None,
    max_new_tokens: int = 128,
    eos_token_id: int | Iterable[int] | None = None,
    *,
    capture: Capture = Capture(),
    stop_strings: str | Iterable[str] | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    runtime: Runtime | Literal["transformers"] | None = None,
) -> Trace:
    """Decode plainly and keep, on the CPU, what any drafter would need to be replayed.

    Most likely tokens (``capture.topk``) are not recorded.

    Parameters
    ----------
    capture : Capture
        The layers and heads to keep: ``drafter.capture`` of the drafter to be replayed, or several joined by ``|``.
    model, input_ids, sampling, max_new_tokens, eos_token_id, stop_strings, tokenizer, runtime
        As for :func:`generate`.

    Returns
    -------
    Trace

    Examples
    --------
    >>> from specdec_lib import record, replay
    >>> from specdec_lib.drafters import PromptLookupHidden
    >>> drafter = PromptLookupHidden(layer=2)
    >>> trace = record(model, prompt, max_new_tokens=12, capture=drafter.capture)
    >>> replay(trace, drafter).tokens == trace.tokens
    True
    """
    run = _run_of(model, input_ids, sampling, max_new_tokens, eos_token_id, stop_strings, tokenizer)
    rows: list[torch.Tensor] = []
    with run.verifier(replace(capture, topk=0, prompt=False), runtime) as verifier:

        def keep(tokens: list[int]) -> None:
            if capture.heads:
                rows.append(to_cpu(verifier.target.attention()))

        done = decode(verifier, None, run.context, run.limits, keep)
        states = {layer: to_cpu(verifier.target.hidden(layer)) for layer in capture.layers}
    return Trace(
        prompt=run.context.tokens[: done.prompt_length],
        tokens=done.tokens,
        sampling=sampling or Sampling(),
        vocabulary=run.context.vocabulary,
        limits=run.limits,
        finish_reason=done.finish_reason,
        hidden=states,
        heads=capture.heads,
        attention=rows,
        token_ids=run.context.token_ids,
    )


def to_cpu(values: torch.Tensor) -> torch.Tensor:
    """A copy on the CPU that may be trained on, which tensors of inference mode may not.

    Parameters
    ----------
    values : tensor

    Returns
    -------
    tensor

    Examples
    --------
    >>> import torch
    >>> from specdec_lib.decoding.generate import to_cpu
    >>> with torch.inference_mode():
    ...     copy = to_cpu(torch.ones(2))
    >>> copy.is_inference()
    False
    """
    with torch.inference_mode(False):
        return values.cpu().clone()
