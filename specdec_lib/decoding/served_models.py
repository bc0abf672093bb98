"""Which models can be decoded by tree verification, as far as their configuration tells."""
from __future__ import annotations

from transformers import PreTrainedModel

from specdec_lib.decoding import attention

_SERVED_LAYER_TYPES = {"full_attention", "sliding_attention"}


class UnsupportedModel(ValueError):
    """The model cannot be decoded by tree verification; the message says why."""


def decoder_config(model: PreTrainedModel):
    """The text decoder's configuration (that of the language part for a composite model)."""
    return model.config.get_text_config(decoder=True)


def soft_capped(config) -> bool:
    """Whether attention scores are capped (Gemma 2), which SDPA cannot do and some releases of transformers leave out."""
    return bool(getattr(config.get_text_config(decoder=True), "attn_logit_softcapping", None))


def context_limit(model: PreTrainedModel) -> int | None:
    """Longest sequence the model serves in tokens, None where it states none."""
    return getattr(decoder_config(model), "max_position_embeddings", None)


def exact_length(model: PreTrainedModel) -> int | None:
    """Longest sequence within which every token attends to all before it, at positions that stay as they are.

    That of a sliding window, or where a long-context rotary embedding changes over; None where there is neither.
    """
    config = decoder_config(model)
    bounds = []
    window = getattr(config, "sliding_window", None)
    windowed = "sliding_attention" in (getattr(config, "layer_types", None) or ["sliding_attention"])
    if window and windowed and getattr(config, "use_sliding_window", True):
        bounds.append(window)
    rope = getattr(config, "rope_parameters", None) or {}
    for entry in (rope, *(v for v in rope.values() if isinstance(v, dict))):
        if entry.get("rope_type") == "longrope" and entry.get("original_max_position_embeddings"):
            bounds.append(entry["original_max_position_embeddings"])
    return min(bounds, default=None)


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
        raise UnsupportedModel(f"{name} has layers of type {', '.join(odd)}; tree verification needs attention over the "
                               f"whole context ({' or '.join(sorted(_SERVED_LAYER_TYPES))})")
    if model.config._attn_implementation not in ("sdpa", "eager", attention.NAME):
        raise UnsupportedModel(f"{name} uses attn_implementation={model.config._attn_implementation!r}, which takes no tree "
                               "mask; load it with attn_implementation='sdpa' (or 'eager')")
    if model.config._attn_implementation != "eager" and soft_capped(model.config):
        raise UnsupportedModel(f"{name} caps its attention scores, which SDPA does not do; load it with "
                               "attn_implementation='eager', as specdec_lib.load_model does")
    if model.config.model_type == "bloom" or any(
            getattr(place, "alibi", False) for place in (config, getattr(config, "attn_config", None))):
        raise UnsupportedModel(f"{name} has ALiBi position biases, which follow the place in the block and not the path "
                               "in the tree; choose a model with rotary or learned positions")
    bound = exact_length(model)
    if bound is not None and longest > bound:
        raise UnsupportedModel(f"{name} attends to the last {bound} tokens only, or changes its positions after so many, but "
                               f"prompt and output may take {longest}; shorten them to fit")
