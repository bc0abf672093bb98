"""Which models can be decoded by tree verification, as far as their configuration tells."""

from __future__ import annotations

import inspect
import weakref

import torch
from transformers import PreTrainedModel

from specdec_lib.decoding import attention

FULL, SLIDING = "full_attention", "sliding_attention"
_SERVED_LAYER_TYPES = {FULL, SLIDING}
#: Places of a draft that a window which counts places must hold as well.
LOCAL_ROOM = 64
#: Models whose attention did not follow masks with a window when it was tried: served within the window alone.
WITHIN_WINDOW: weakref.WeakSet[PreTrainedModel] = weakref.WeakSet()


class UnsupportedModel(ValueError):
    """The model cannot be decoded by tree verification; the message says why."""


def decoder_config(model: PreTrainedModel):
    """The text decoder's configuration (that of the language part for a composite model)."""
    return model.config.get_text_config(decoder=True)


def base_model(model: PreTrainedModel) -> torch.nn.Module:
    """The decoder without the language model head.

    Raises
    ------
    UnsupportedModel
        If the model does not name it as those of transformers do.
    """
    base = getattr(model, model.base_model_prefix, None)
    if base is None:
        raise UnsupportedModel(
            f"{type(model).__name__} has no part called {model.base_model_prefix!r}, where its decoder would "
            "be, so hidden states cannot be captured; use a drafter that needs none"
        )
    return base


def cache_argument(model: PreTrainedModel) -> str:
    """What the model's ``forward`` calls its cache: ``cache`` since transformers 5.24, ``past_key_values`` before."""
    return "cache" if "cache" in inspect.signature(type(model).forward).parameters else "past_key_values"


def soft_capped(config) -> bool:
    """Whether attention scores are capped (Gemma 2), which SDPA cannot do and some releases of transformers leave out."""
    return bool(getattr(config.get_text_config(decoder=True), "attn_logit_softcapping", None))


def context_limit(model: PreTrainedModel) -> int | None:
    """Longest sequence the model serves in tokens, None where it states none."""
    return getattr(decoder_config(model), "max_position_embeddings", None)


def windows(config) -> dict[str, int | None]:
    """The sliding window in tokens of each kind of layer; None for layers that attend to the whole context.

    Parameters
    ----------
    config : PreTrainedConfig
        Of the text decoder.
    """
    kinds = set(getattr(config, "layer_types", None) or [SLIDING])
    window = getattr(config, "sliding_window", None)
    if not isinstance(window, int) or SLIDING not in kinds or not getattr(config, "use_sliding_window", True):
        return {FULL: None}
    return {SLIDING: window} | ({FULL: None} if FULL in kinds else {})


def local_window(config) -> int | None:
    """Window in tokens of layers that count places in the cache and not positions, as those of GPT-Neo do."""
    return config.window_size if "local" in (getattr(config, "attention_layers", None) or []) else None


def exact_length(model: PreTrainedModel) -> int | None:
    """Longest sequence within which a tree can be verified, where positions or attention change after so many tokens.

    That is where a long-context rotary embedding changes over, or a window that goes by another rule than the one
    masks are made by: Doge keeps the tokens that score highest, the local layers of GPT-Neo count places in the
    cache, a draft's among them. None where there is no such length.
    """
    config = decoder_config(model)
    bounds = []
    window = windows(config).get(SLIDING)
    if window is not None and model in WITHIN_WINDOW:
        bounds.append(window)
    if local_window(config) is not None:
        bounds.append(max(0, local_window(config) - LOCAL_ROOM))
    if getattr(config, "keep_window_size", None):
        bounds.append(config.keep_window_size)
    rope = getattr(config, "rope_parameters", None) or {}
    for entry in (rope, *(v for v in rope.values() if isinstance(v, dict))):
        if entry.get("rope_type") == "longrope" and entry.get("original_max_position_embeddings"):
            bounds.append(entry["original_max_position_embeddings"])
    return min(bounds, default=None)


def last_position(model: PreTrainedModel, unbounded: int) -> int:
    """Largest position that a pass may hold, ``unbounded`` where the model states none.

    Padding and passengers stand behind the text, where they must not reach a position at which the whole pass would be rotated
    by other frequencies, or one that the model has not.
    """
    return min((length - 1 for length in (context_limit(model), exact_length(model)) if length), default=unbounded)


def vocabulary_size(model: PreTrainedModel) -> int:
    """Number of token ids the model embeds."""
    return model.get_input_embeddings().weight.shape[0]


def check_kind(model: PreTrainedModel, longest: int) -> None:
    """See from its configuration that a model can be decoded by tree verification up to a length.

    Parameters
    ----------
    model : PreTrainedModel
    longest : int
        Tokens of prompt and output.

    Raises
    ------
    UnsupportedModel
    """
    name, config = type(model).__name__, decoder_config(model)
    if model.config.is_encoder_decoder:
        raise UnsupportedModel(f"{name} is an encoder-decoder model; expected a decoder-only causal language model")
    if model.training:
        raise UnsupportedModel(f"{name} is in training mode, where dropout changes the output; call model.eval() first")
    odd = sorted(set(getattr(config, "layer_types", None) or []) - _SERVED_LAYER_TYPES)
    if odd:
        raise UnsupportedModel(
            f"{name} has layers of type {', '.join(odd)}; tree verification needs attention over the "
            f"whole context ({' or '.join(sorted(_SERVED_LAYER_TYPES))})"
        )
    if model.config._attn_implementation not in ("sdpa", "eager", attention.NAME):
        raise UnsupportedModel(
            f"{name} uses attn_implementation={model.config._attn_implementation!r}, which takes no tree "
            "mask; load it with attn_implementation='sdpa' (or 'eager')"
        )
    if model.config._attn_implementation != "eager" and soft_capped(model.config):
        raise UnsupportedModel(
            f"{name} caps its attention scores, which SDPA does not do; load it with "
            "attn_implementation='eager', as specdec_lib.load_model does"
        )
    if model.config.model_type == "bloom" or any(
        getattr(place, "alibi", False) for place in (config, getattr(config, "attn_config", None))
    ):
        raise UnsupportedModel(
            f"{name} has ALiBi position biases, which follow the place in the block and not the path "
            "in the tree; choose a model with rotary or learned positions"
        )
    bound, local = exact_length(model), local_window(config)
    if local is not None and longest > bound:
        raise UnsupportedModel(
            f"{name} has layers that attend to the last {local} places of the cache, {LOCAL_ROOM} of which a "
            f"draft may take, so that prompt and output may take {bound} tokens; they may take {longest}: "
            "shorten them to fit"
        )
    if bound is not None and longest > bound:
        raise UnsupportedModel(
            f"{name} attends to the last {bound} tokens only, or changes its positions after so many, but "
            f"prompt and output may take {longest}; shorten them to fit"
        )
