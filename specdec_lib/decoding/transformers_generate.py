"""The way in through transformers: ``model.generate(..., custom_generate=custom_generate(drafter))``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Literal

import torch
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper
from transformers.generation.utils import GenerateDecoderOnlyOutput

from specdec_lib.decoding.contract import Capture, Drafter, check_drafter
from specdec_lib.decoding.generate import Run
from specdec_lib.decoding.loop import Limits, decode
from specdec_lib.decoding.runtime import Runtime
from specdec_lib.decoding.sampling import Sampling
from specdec_lib.decoding.served_models import check_kind, context_limit

#: Generation settings that ask for another way to decode, and the value at which they ask for nothing.
_OTHER_METHODS = {
    "num_beams": 1,
    "num_return_sequences": 1,
    "num_beam_groups": 1,
    "constraints": None,
    "force_words_ids": None,
    "penalty_alpha": 0,
    "dola_layers": None,
    "prompt_lookup_num_tokens": None,
    "assistant_early_exit": None,
    "use_mtp": False,
}
_OUTPUTS = ("output_scores", "output_logits", "output_attentions", "output_hidden_states")
#: Names of the cache among the model's inputs, since transformers 5.24 and before.
_CACHES = ("cache", "past_key_values")
#: What transformers adds to the model's inputs by itself; attention_mask, position_ids and caches are looked into.
_OWN_INPUTS = {"attention_mask", "position_ids", *_CACHES, "logits_to_keep", "use_cache"}


def _refuse(name: str, what: str) -> ValueError:
    return ValueError(f"{name} is given, but {what}; leave it out")


def _check_settings(config) -> None:
    for name, nothing in _OTHER_METHODS.items():
        value = getattr(config, name, None)
        if value is not None and value != nothing:
            raise ValueError(f"{name} is {value!r}, which asks for another method; leave it out, or pass {nothing!r}")
    if config.cache_implementation == "quantized":
        raise ValueError("cache_implementation is 'quantized', but this method has a cache of its own; leave it out")
    for name in _OUTPUTS:
        if getattr(config, name, None):
            raise ValueError(f"{name} is set, but this method gives tokens alone; leave it out, or use record()")


def _check_inputs(input_ids: torch.Tensor, inputs: dict[str, Any]) -> None:
    """Reject what the model would read besides the tokens."""
    length = input_ids.shape[-1]
    given = {name: value for name, value in inputs.items() if value is not None}
    if any(value is not None for value in (given.pop("mm_encoder_outputs", None) or {}).values()):
        raise _refuse("an image or video (pixel_values)", "this decoding method reads tokens only")
    for name in sorted(set(given) - _OWN_INPUTS):
        raise _refuse(name, "this decoding method reads tokens only")
    for name in _CACHES:
        cache = given.get(name)
        if cache is not None and (getattr(cache, "_is_user_defined", False) or cache.get_seq_length()):
            raise _refuse(name, "this decoding method fills a cache of its own")
    padding = given.get("attention_mask")
    if padding is not None and padding.ndim == 2 and not bool(padding.all()):
        raise ValueError("the prompt is padded (its attention_mask has zeros); pass one prompt without padding")
    positions = given.get("position_ids")
    if positions is not None and not (
        positions.shape[-1] == length and bool((positions == torch.arange(length, device=positions.device)).all())
    ):
        raise _refuse("position_ids", f"this decoding method counts positions from 0 to {length - 1}")


def _drafted_by(processors, seed: int) -> Sampling:
    """Temperature, top-p and top-k among the processors, for a draft model to draw with."""
    temperature, top_p, top_k = 1.0, 1.0, 0
    for processor in processors:
        if isinstance(processor, TemperatureLogitsWarper):
            temperature *= float(processor.temperature)
        elif isinstance(processor, TopKLogitsWarper):
            top_k = min(top_k or processor.top_k, processor.top_k)
        elif isinstance(processor, TopPLogitsWarper):
            # Of 0 the most likely token is left there too.
            top_p = min(top_p, max(float(processor.top_p), sys.float_info.min))
    return Sampling(temperature, top_p, top_k, seed)


def custom_generate(
    drafter: Drafter | None = None,
    *called: object,
    seed: int = 0,
    streamer=None,
    on_finish: Callable | None = None,
    runtime: Runtime | Literal["transformers"] | None = None,
    **given: object,
) -> Callable:
    """A decoding method for ``model.generate(custom_generate=...)``.

    Generation settings, logits processors and stopping criteria are those that transformers prepared: they are applied
    at each position as plain decoding applies them. With ``do_sample=True`` a token is a function of (seed, prompt,
    position), and a draft model draws with the temperature, top-p and top-k that are set.

    Before any token is decoded ``generate`` refuses, by name and with a ValueError, a batch, padding, inputs of the model other
    than one prompt's tokens, outputs other than tokens, and settings of another decoding method (beams, ...). The output ends
    where prompt and output fill the model's ``max_position_embeddings``, also where ``max_new_tokens`` allows more. The cache is
    this library's own: ``use_cache``, ``cache_implementation``, ``prefill_chunk_size`` and ``compile_config`` have no effect; a
    quantized cache is rejected.

    Transformers keeps some arguments of ``generate`` for its own methods: instead of ``assistant_model`` pass a
    :class:`~specdec_lib.drafters.draft_model.DraftModel`, and instead of ``stop_strings`` and ``tokenizer``
    ``stopping_criteria=[StopStringCriteria(tokenizer, stop_strings)]``.

    Parameters
    ----------
    drafter : Drafter, optional
        ``None`` decodes plainly.
    seed : int
        For ``do_sample=True``. (Transformers' own methods use torch's global generator instead.)
    streamer : transformers.BaseStreamer, optional
        Gets the prompt, the tokens and, whatever happens, the end. Give it here: transformers passes
        ``generate(streamer=...)`` on to its own methods alone.
    on_finish : callable, optional
        Called with the :class:`Generation`, whose steps and stats ``generate`` has no place for.
    runtime : Runtime or "transformers", optional
        How the model's passes are run, as for :func:`specdec_lib.generate`.

    Returns
    -------
    callable

    Raises
    ------
    TypeError
        If it is given itself, instead of what it returns, to ``model.generate``.

    Examples
    --------
    >>> import torch
    >>> from specdec_lib import custom_generate
    >>> from specdec_lib.drafters import PromptLookup
    >>> ids, runs = torch.tensor([prompt]), []
    >>> own = model.generate(ids, do_sample=False, max_new_tokens=24)
    >>> method = custom_generate(PromptLookup(), on_finish=runs.append)
    >>> fast = model.generate(ids, custom_generate=method, do_sample=False, max_new_tokens=24)
    >>> torch.equal(own, fast), len(runs[0].steps)
    (True, 5)
    """
    if called or "logits_processor" in given:
        raise TypeError("custom_generate makes a decoding method: write custom_generate=custom_generate(drafter)")
    if given:
        raise TypeError(
            f"custom_generate() has no argument {next(iter(given))!r}; expected seed, streamer, on_finish or runtime"
        )

    def decode_with_drafter(model, input_ids, logits_processor, stopping_criteria, generation_config, **model_kwargs):
        try:
            check_kind(model, 0)
            _check_settings(generation_config)
            _check_inputs(input_ids, model_kwargs)
            if drafter is not None:
                check_drafter(drafter)
            sequence: list[int] = input_ids.reshape(-1).tolist()
            length, device = len(sequence), input_ids.device

            def stop(new: list[int]) -> bool:
                tokens = torch.tensor([sequence[:length] + new], device=device)
                return bool(stopping_criteria(tokens, None).all())

            # Warpers (temperature, top-p, top-k) are among the processors already; a drafter is told of them.
            sampled = generation_config.do_sample
            run = Run(
                model,
                input_ids,
                Sampling(temperature=1.0 if sampled else 0.0, seed=seed),
                Limits(
                    max(1, generation_config.max_length - length),
                    context=context_limit(model),
                    stop=stop if len(stopping_criteria) else None,
                    stop_reason="criteria",
                ),
                logits_processor if len(logits_processor) else None,
                _drafted_by(logits_processor, seed) if sampled else None,
            )
            put = None
            if streamer is not None:
                streamer.put(input_ids.cpu())
                put = lambda tokens: streamer.put(torch.tensor(tokens))  # noqa: E731
            captured = Capture() if drafter is None else drafter.capture
            # A drafter may train, as under generate() of this library; transformers' own has switched gradients off.
            with torch.enable_grad(), run.verifier(captured, runtime) as verifier:
                done = decode(verifier, drafter, run.context, run.limits, put)
        finally:
            if streamer is not None:
                streamer.end()
        if on_finish is not None:
            on_finish(done)
        output = torch.tensor([run.context.tokens], device=device)
        return GenerateDecoderOnlyOutput(sequences=output) if generation_config.return_dict_in_generate else output

    return decode_with_drafter
