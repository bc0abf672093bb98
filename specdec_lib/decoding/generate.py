"""``generate`` and ``record``: a prompt in, tokens out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from specdec_lib.decoding.clock import clock_of
from specdec_lib.decoding.contract import Capture, Context, Drafter, check_drafter
from specdec_lib.decoding.loop import Limits, ModelVerifier, Processors, decode
from specdec_lib.decoding.outputs import Outputs
from specdec_lib.decoding.replay import Trace
from specdec_lib.decoding.results import Generation
from specdec_lib.decoding.runtime import Runtime
from specdec_lib.decoding.sampling import Sampling
from specdec_lib.decoding.served_models import context_limit, vocabulary_size
from specdec_lib.decoding.target import DRAFT_ROOM, Target, check_model
from specdec_lib.decoding.tree import EMPTY

#: New tokens that buffers have room for at first: a large max_new_tokens takes memory only as it is used.
FIRST_ROOM = 1024
TokenIds = Sequence[int] | np.ndarray | torch.Tensor


def as_token_list(input_ids: TokenIds, vocabulary: int) -> list[int]:
    """Check a prompt and give it as a list.

    Parameters
    ----------
    input_ids : sequence of int, or integer array or tensor of shape (n,) or (1, n)
    vocabulary : int

    Raises
    ------
    TypeError
        If it is text or holds anything but whole numbers.
    ValueError
        If it is empty, a batch of several prompts, or has ids outside the vocabulary.
    """
    if isinstance(input_ids, str):
        raise TypeError("input_ids is text; expected token ids: tokenizer(text)['input_ids']")
    array = input_ids.detach().cpu().numpy() if isinstance(input_ids, torch.Tensor) else np.asarray(input_ids)
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
        raise ValueError(
            f"token id {int(wrong[0])} is outside the model's vocabulary of {vocabulary}; was the prompt made "
            "with another model's tokenizer?"
        )
    return array.tolist()


def check_language_model(model: object) -> None:
    """Refuse what generates no text.

    Raises
    ------
    TypeError
        If it is no causal language model of transformers, or one without its output layer.
    """
    # Wrappers such as PEFT's answer for the model inside.
    generates = getattr(model, "can_generate", None)
    if not isinstance(model, torch.nn.Module) or generates is None or not generates():
        raise TypeError(
            f"model is a {type(model).__name__}; expected a causal language model of transformers, such as "
            "AutoModelForCausalLM or specdec_lib.load_model gives"
        )


def end_tokens(model: PreTrainedModel, eos_token_id: int | Iterable[int] | None) -> frozenset[int]:
    """The ids that end a generation; None takes the model's own, an empty list none."""
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
    return frozenset(ids.astype(np.int64).reshape(-1).tolist())


def check_tokenizer(tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel) -> None:
    """Refuse a tokenizer with more ids than the model embeds.

    Raises
    ------
    ValueError
    """
    if len(tokenizer) > vocabulary_size(model):
        raise ValueError(
            f"the tokenizer has {len(tokenizer)} tokens, the model embeds {vocabulary_size(model)}: they do "
            "not belong together; load both from the same place"
        )


def stop_on_strings(
    stop_strings: Sequence[str],
    tokenizer: PreTrainedTokenizerBase | None,
    model: PreTrainedModel,
) -> Callable[[list[int]], bool] | None:
    """A check for :class:`Limits`: true once the new tokens' text contains one of ``stop_strings``; None without any.

    Raises
    ------
    ValueError
        If one of them is empty, or the tokenizer is missing or does not fit the model.
    """
    if isinstance(stop_strings, str):
        stop_strings = [stop_strings]
    if not len(stop_strings):
        return None
    if tokenizer is None:
        raise ValueError("stop_strings needs the tokenizer: pass tokenizer=... as well")
    check_tokenizer(tokenizer, model)
    if not all(stop_strings):
        raise ValueError(f"stop_strings is {list(stop_strings)!r}; expected strings that are not empty")
    longest = max(len(s.encode()) for s in stop_strings)

    def stop(new: list[int]) -> bool:
        # A token has at least one byte of text, special ones apart: the last `longest` tokens hold any match that
        # ends here; a few more make up for tokens without text and for a character cut at the start.
        text = tokenizer.decode(new[-longest - 8 :])
        return any(s in text for s in stop_strings)

    return stop


def _run(
    model: PreTrainedModel,
    input_ids: TokenIds,
    drafter: Drafter | None,
    sampling: Sampling | None,
    max_new_tokens: int,
    eos: frozenset[int],
    stop,
    stop_reason: str,
    on_tokens,
    processors: Processors | None,
    capture: Capture,
    runtime: Runtime | None = None,
    recorder: _Recorder | None = None,
    drafted_by: Sampling | None = None,
) -> tuple[Generation, Context, Limits]:
    """``drafted_by`` is what a drafter is shown where ``processors`` do part of what ``sampling`` says elsewhere."""
    sampling = Sampling() if sampling is None else sampling
    if not isinstance(sampling, Sampling):
        raise TypeError(f"sampling is {sampling!r}; expected a specdec_lib.Sampling")
    if not isinstance(max_new_tokens, int) or max_new_tokens < 1:
        raise ValueError(f"max_new_tokens is {max_new_tokens!r}; expected a whole number, 1 or more")
    if drafter is not None:
        check_drafter(drafter)
    vocabulary, limit = vocabulary_size(model), context_limit(model)
    tokens = as_token_list(input_ids, vocabulary)
    if limit is not None and len(tokens) >= limit:
        raise ValueError(
            f"the prompt has {len(tokens)} tokens and the model's context is {limit}: no room for a new "
            "token; shorten the prompt"
        )
    check_model(model)
    limits = Limits(max_new_tokens, eos, limit, stop, stop_reason)
    end = len(tokens) + max_new_tokens
    end = end if limit is None else min(end, limit)
    # Here alone: a token is a function of seed, prompt and position for every way into the loop.
    sampling, shown = (s.for_prompt(tokens) for s in (sampling, drafted_by or sampling))
    context = Context(tokens, len(tokens), vocabulary, shown)
    wanted = capture if drafter is None else capture | drafter.capture
    if wanted.topk > vocabulary:
        raise ValueError(f"topk is {wanted.topk} and the model's vocabulary has {vocabulary} tokens; ask for no more")
    capacity = min(end, len(tokens) + FIRST_ROOM) + DRAFT_ROOM
    with torch.inference_mode(), Target(model, end, wanted, capacity, runtime) as target:
        context.hidden, context.attention = target.hidden, target.attention
        if drafter is not None and wanted.heads != drafter.capture.heads:
            chosen = [wanted.heads.index(head) for head in drafter.capture.heads]
            context.attention = lambda: target.attention()[chosen]
        verifier = ModelVerifier(target, sampling, eos, processors, clock_of(target.devices), wanted.topk)
        if recorder is not None:
            recorder.verifier = verifier
        try:
            run = decode(verifier, drafter, context, limits, on_tokens)
            if recorder is not None:
                recorder.end(context)
        finally:
            # A drafter may keep its context; the target's buffers need not live as long.
            context.hidden = context.attention = None
        return run, context, limits


class _Recorder:
    """Keeps what a plain run shows of the target, for :func:`record`."""

    def __init__(self, capture: Capture):
        self.capture = capture
        self.rows: list[torch.Tensor] = []
        self.states: dict[int, torch.Tensor] = {}
        self.outputs: list[Outputs] = []
        self.verifier: ModelVerifier | None = None

    def keep(self, tokens: list[int]) -> None:
        """After each block of new tokens."""
        target = self.verifier.target
        if self.capture.heads:
            self.rows.append(target.attention().cpu().clone())
        for layer in self.capture.layers:
            self.states[layer] = target.hidden(layer)
        if self.capture.topk:
            self.outputs.append(self.verifier.outputs)

    def end(self, context: Context) -> None:
        """Before the target is closed."""
        self.states = {layer: states.cpu().clone() for layer, states in self.states.items()}
        if self.capture.topk:
            # The last token was not passed through the target: a draft that ends with it would have shown what follows.
            self.verifier.verify(EMPTY, context)
            self.outputs.append(self.verifier.outputs)

    def whole(self) -> Outputs | None:
        """Outputs by position."""
        if not self.outputs:
            return None
        return Outputs(
            *(np.concatenate([getattr(part, name) for part in self.outputs]) for name in ("tokens", "logprobs"))
        )


def generate(
    model: PreTrainedModel,
    input_ids: TokenIds,
    drafter: Drafter | None = None,
    sampling: Sampling | None = None,
    max_new_tokens: int = 128,
    eos_token_id: int | Iterable[int] | None = None,
    on_tokens: Callable[[list[int]], None] | None = None,
    *,
    stop_strings: Sequence[str] = (),
    tokenizer: PreTrainedTokenizerBase | None = None,
    runtime: Runtime | None = None,
) -> Generation:
    """Decode one prompt, with or without speculation.

    The tokens are those of plain decoding with the same ``sampling``, whatever the drafter: token for token for
    drafters that propose tokens only, in distribution for those that sample from a draft model.

    Parameters
    ----------
    model : PreTrainedModel
        A decoder-only causal language model of transformers, in evaluation mode.
    input_ids : sequence of int, or array or tensor of shape (n,) or (1, n)
        The prompt.
    drafter : Drafter, optional
        Of :mod:`specdec_lib.drafters`, or of a subclass of :class:`Drafter` of your own; ``None`` decodes plainly.
    sampling : Sampling, optional
        Greedy by default. Temperature, top-p, top-k and seed come from here alone (see the notes).
    max_new_tokens : int
        The output also ends where prompt and output fill the model's context (``max_position_embeddings``); the
        ``finish_reason`` is "context" then.
    eos_token_id : int or sequence of int, optional
        The first of these ends the output. ``None`` takes the model's own; an empty list none at all.
    on_tokens : callable, optional
        Called with each block of new tokens as it is emitted.
    stop_strings : sequence of str
        End with the token that completes one of these; needs ``tokenizer``.
    tokenizer : PreTrainedTokenizerBase, optional
    runtime : Runtime, optional
        How the model's passes are run (:class:`specdec_lib.decoding.runtime.Runtime`), such as CUDA graphs; eagerly
        without one. The tokens are the same in float32.

    Returns
    -------
    Generation

    Raises
    ------
    TypeError
        If ``model`` is no causal language model of transformers, ``drafter`` no :class:`Drafter` object, or what it
        proposes no :class:`DraftTree`.
    ValueError
        If the prompt is empty, has ids the model does not know or leaves no room in its context or in the
        ``runtime``; if ``max_new_tokens`` is below 1; if the tokenizer does not fit the model.
    UnsupportedModel
        If the model cannot be decoded by tree verification (a ValueError too).

    Notes
    -----
    Of ``model.generation_config`` only ``eos_token_id`` is read. Its other settings, such as ``do_sample``,
    ``temperature`` or ``repetition_penalty``, are not applied: they come from the arguments above, or not at all. To
    decode with everything that transformers' ``model.generate`` applies, logits processors included, use
    :func:`specdec_lib.custom_generate`.

    Examples
    --------
    >>> from specdec_lib import generate, load_model
    >>> from specdec_lib.drafters import PromptLookup
    >>> model, tokenizer = load_model("pocket")
    >>> prompt = tokenizer("for i in range(10):")["input_ids"]
    >>> fast, plain = (generate(model, prompt, d, max_new_tokens=16) for d in (PromptLookup(), None))
    >>> fast.tokens == plain.tokens
    True
    """
    check_language_model(model)
    stop = stop_on_strings(stop_strings, tokenizer, model)
    return _run(
        model,
        input_ids,
        drafter,
        sampling,
        max_new_tokens,
        end_tokens(model, eos_token_id),
        stop,
        "stop_string",
        on_tokens,
        None,
        Capture(),
        runtime,
    )[0]


def record(
    model: PreTrainedModel,
    input_ids: TokenIds,
    sampling: Sampling | None = None,
    max_new_tokens: int = 128,
    eos_token_id: int | Iterable[int] | None = None,
    *,
    capture: Capture = Capture(),
    stop_strings: Sequence[str] = (),
    tokenizer: PreTrainedTokenizerBase | None = None,
    runtime: Runtime | None = None,
) -> Trace:
    """Decode plainly and keep what any drafter would need to be replayed.

    Parameters
    ----------
    model, input_ids, sampling, max_new_tokens, eos_token_id, stop_strings, tokenizer, runtime
        As for :func:`generate`.
    capture : Capture
        Layers, heads and most likely tokens to keep; ``drafter.capture`` of the drafter to be replayed, or several
        joined by ``|``.

    Returns
    -------
    Trace
        States and rows are on the CPU.
    """
    check_language_model(model)
    recorder = _Recorder(capture)
    stop = stop_on_strings(stop_strings, tokenizer, model)
    run, context, limits = _run(
        model,
        input_ids,
        None,
        sampling,
        max_new_tokens,
        end_tokens(model, eos_token_id),
        stop,
        "stop_string",
        recorder.keep,
        None,
        capture,
        runtime,
        recorder,
    )
    count = run.prompt_length
    return Trace(
        context.tokens[:count],
        run.tokens,
        sampling or Sampling(),
        context.vocabulary,
        limits,
        run.finish_reason,
        recorder.states,
        capture.heads,
        recorder.rows,
        recorder.whole(),
    )
