"""The way in through transformers: ``model.generate(..., custom_generate=custom_generate(drafter))``."""
from __future__ import annotations

from collections.abc import Callable

import torch
from transformers.generation.utils import GenerateDecoderOnlyOutput

from .contract import Capture, Drafter
from .generate import _run
from .sampling import Sampling


def custom_generate(drafter: Drafter | None = None, *, seed: int = 0, streamer=None,
                    on_finish: Callable | None = None) -> Callable:
    """A decoding method for ``model.generate(custom_generate=...)``.

    Generation settings, logits processors and stopping criteria are those that transformers prepared: they are applied
    at each position as plain decoding applies them. With ``do_sample=True`` a token is a function of (seed, position).

    Parameters
    ----------
    drafter : Drafter, optional
    seed : int
        For ``do_sample=True``. (Transformers' own methods use torch's global generator instead.)
    streamer : transformers.BaseStreamer, optional
        Given here because transformers does not hand its ``streamer`` argument to a callable.
    on_finish : callable, optional
        Called with the :class:`Generation`, whose steps and stats ``generate`` has no place for.

    Returns
    -------
    callable

    Raises
    ------
    ValueError
        By ``generate``: if the batch has more than one row, the prompt is padded, or anything but tokens is asked for.

    Notes
    -----
    Transformers hands ``generate(stop_strings=..., tokenizer=...)`` to none but its own methods and says that the
    tokenizer is missing. Pass ``stopping_criteria=[StopStringCriteria(tokenizer, stop_strings)]`` instead.

    Examples
    --------
    >>> import specdec_lib
    >>> from specdec_lib.drafters import PromptLookup
    >>> model, tokenizer = specdec_lib.load_model("pocket")
    >>> ids = tokenizer("import os", return_tensors="pt")["input_ids"]
    >>> out = model.generate(ids, custom_generate=specdec_lib.custom_generate(PromptLookup()), max_new_tokens=8)
    >>> out.shape[1] <= ids.shape[1] + 8
    True
    """

    def decode_with_drafter(model, input_ids, logits_processor, stopping_criteria, generation_config, **model_kwargs):
        padding = model_kwargs.get("attention_mask")
        if padding is not None and padding.ndim == 2 and not bool(padding.all()):
            raise ValueError("the prompt is padded (its attention_mask has zeros); pass one prompt without padding")
        for name in ("output_scores", "output_logits", "output_attentions", "output_hidden_states"):
            if getattr(generation_config, name, None):
                raise ValueError(f"{name} is set, but this decoding method gives tokens only; leave it out, or use "
                                 "specdec_lib.record(..., capture=...) for hidden states and attention rows")
        device = input_ids.device
        prompt = input_ids[0] if input_ids.shape[0] == 1 else input_ids
        # Warpers (temperature, top-p, top-k) are among the processors already.
        sampling = Sampling(temperature=1.0 if generation_config.do_sample else 0.0, seed=seed)
        if streamer is not None:
            streamer.put(input_ids.cpu())
        sequence: list[int] = input_ids.reshape(-1).tolist()
        length = len(sequence)

        def stop(new: list[int]) -> bool:
            tokens = torch.tensor([sequence[:length] + new], device=device)
            return bool(stopping_criteria(tokens, None).all())

        def emitted(tokens: list[int]) -> None:
            if streamer is not None:
                streamer.put(torch.tensor(tokens))

        run, context, _ = _run(
            model, prompt, drafter, sampling, max(1, generation_config.max_length - length), frozenset(),
            stop if len(stopping_criteria) else None, "criteria", emitted,
            logits_processor if len(logits_processor) else None, Capture())
        if streamer is not None:
            streamer.end()
        if on_finish is not None:
            on_finish(run)
        output = torch.tensor([context.tokens], device=device)
        return GenerateDecoderOnlyOutput(sequences=output) if generation_config.return_dict_in_generate else output

    return decode_with_drafter
