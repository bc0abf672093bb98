"""The one description of a model: its parts, its vocabulary, how far it reaches, and why it cannot be served.

Here the configuration decides that; :func:`specdec_lib.decoding.target.check_model` then tries whether trees are exact.
"""

from __future__ import annotations

import inspect
import sys
import weakref
from collections.abc import Iterator
from functools import cache

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from specdec_lib.decoding import attention
from specdec_lib.lazy import former_names

__getattr__ = former_names(__name__, know_tokenizer="remember_tokenizer")

FULL, SLIDING = "full_attention", "sliding_attention"
#: Kinds of layers with one state of the whole text, and the models with such layers whose chains were seen to be exact.
RECURRENT, CHAINS = {"conv", "linear_attention"}, {"lfm2", "qwen3_next"}
#: Models whose attention did not follow masks with a window when it was tried: served within the window alone.
WITHIN_WINDOW: weakref.WeakSet[PreTrainedModel] = weakref.WeakSet()
#: The tokenizers that models were loaded with, and how many token ids each has.
_TOKENIZERS: weakref.WeakKeyDictionary[PreTrainedModel, tuple[PreTrainedTokenizerBase, int]] = (
    weakref.WeakKeyDictionary()
)


class UnsupportedModel(ValueError):
    """The model cannot be decoded by tree verification; the message says why.

    Examples
    --------
    >>> from specdec_lib import UnsupportedModel, generate
    >>> model = model.train()
    >>> try:
    ...     run = generate(model, prompt)
    ... except UnsupportedModel as error:
    ...     print(error)
    LlamaForCausalLM is in training mode, where dropout changes the output; call model.eval() first
    >>> model = model.eval()
    """


def unwrapped(model: PreTrainedModel) -> PreTrainedModel:
    """The model itself, where ``torch.compile(model)`` or one of PEFT was given, whose adapters are parts of the model itself.

    Parameters
    ----------
    model : PreTrainedModel

    Returns
    -------
    PreTrainedModel

    Examples
    --------
    >>> import torch
    >>> from specdec_lib.decoding.served_models import unwrapped
    >>> unwrapped(torch.compile(model)) is model
    True
    """
    model = getattr(model, "_orig_mod", model)
    inside = getattr(model, "get_base_model", None)
    return model if inside is None else inside()


def is_compiled(model: PreTrainedModel) -> bool:
    """Whether the model or a part of it is run by ``torch.compile``, which leaves out hooks that came later.

    Parameters
    ----------
    model : PreTrainedModel

    Returns
    -------
    bool

    Examples
    --------
    >>> import torch
    >>> from specdec_lib.decoding.served_models import is_compiled
    >>> is_compiled(model), is_compiled(torch.compile(model))
    (False, True)
    """
    return any(
        hasattr(part, "_orig_mod")
        or getattr(part, "_compiled_call_impl", None) is not None
        or hasattr(vars(part).get("forward"), "_torchdynamo_orig_callable")
        for part in model.modules()
    )


def decoder_config(model: PreTrainedModel):
    """The text decoder's configuration (that of the language part for a composite model).

    Parameters
    ----------
    model : PreTrainedModel

    Returns
    -------
    PreTrainedConfig

    Examples
    --------
    >>> from specdec_lib.decoding.served_models import decoder_config
    >>> decoder_config(model).vocab_size
    4096
    """
    return model.config.get_text_config(decoder=True)


@cache
def _source(module: str) -> str | None:
    try:
        return inspect.getsource(sys.modules[module])
    except (OSError, TypeError, KeyError):
        return None


def setting(model: PreTrainedModel, name: str):
    """A setting of the decoder's configuration.

    Parameters
    ----------
    model : PreTrainedModel
    name : str

    Returns
    -------
    object
        None where no part of the model mentions it, so that none reads it.

    Examples
    --------
    >>> from specdec_lib.decoding.served_models import setting
    >>> setting(model, "rms_norm_eps") == model.config.rms_norm_eps, setting(model, "sliding_window")
    (True, None)
    """
    value = getattr(decoder_config(model), name, None)
    if value is None:
        return None
    modules = {type(part).__module__ for part in model.modules()}
    sources = [_source(module) for module in modules if "torch.nn" not in module]
    return value if any(source is None or name in source for source in sources) else None


def base_model(model: PreTrainedModel) -> torch.nn.Module:
    """The decoder without the language model head.

    Parameters
    ----------
    model : PreTrainedModel

    Returns
    -------
    torch.nn.Module

    Raises
    ------
    UnsupportedModel
        If transformers does not find one.

    Examples
    --------
    >>> from specdec_lib.decoding.served_models import base_model
    >>> type(base_model(model)).__name__
    'LlamaModel'
    """
    model = unwrapped(model)
    base = model.get_decoder()
    if base is None or base is model:
        raise UnsupportedModel(f"{type(model).__name__} has no decoder that get_decoder() finds: no states are shown")
    return base


def decoder_blocks(model: PreTrainedModel) -> torch.nn.ModuleList:
    """The list of decoder blocks, found by its length and place.

    Parameters
    ----------
    model : PreTrainedModel

    Returns
    -------
    torch.nn.ModuleList

    Raises
    ------
    UnsupportedModel
        If there is no such list.

    Examples
    --------
    >>> from specdec_lib.decoding.served_models import decoder_blocks
    >>> len(decoder_blocks(model)) == model.config.num_hidden_layers
    True
    """
    count = decoder_config(model).num_hidden_layers
    for child in base_model(model).children():
        if isinstance(child, torch.nn.ModuleList) and len(child) == count:
            return child
    raise UnsupportedModel(f"{type(model).__name__} has no list of {count} blocks: its states cannot be captured")


def input_device(model: PreTrainedModel) -> torch.device:
    """Where token ids are read.

    Parameters
    ----------
    model : PreTrainedModel

    Returns
    -------
    torch.device

    Examples
    --------
    >>> from specdec_lib.decoding.served_models import input_device
    >>> input_device(model)
    device(type='cpu')
    """
    return device_of(model, model.get_input_embeddings())


def device_of(model: PreTrainedModel, layer: torch.nn.Module) -> torch.device:
    """Where a layer computes. Weights that accelerate offloads lie on ``meta``; its hooks know where they are run.

    Parameters
    ----------
    model : PreTrainedModel
    layer : torch.nn.Module

    Returns
    -------
    torch.device

    Raises
    ------
    UnsupportedModel
        If the weights lie on ``meta`` and nothing says where they are run.

    Examples
    --------
    >>> from specdec_lib.decoding.served_models import device_of
    >>> device_of(model, model.get_output_embeddings())
    device(type='cpu')
    """
    device = layer.weight.device
    if device.type != "meta":
        return device
    for part in (layer, unwrapped(model)):
        hook = getattr(part, "_hf_hook", None)
        for each in getattr(hook, "hooks", [hook]):
            found = getattr(each, "execution_device", None)
            if found is not None:
                return torch.device("cuda", found) if isinstance(found, int) else torch.device(found)
    raise UnsupportedModel(f"{type(unwrapped(model)).__name__} has no weights but on 'meta'; load the checkpoint")


def context_limit(model: PreTrainedModel) -> int | None:
    """Longest sequence that a model serves.

    Parameters
    ----------
    model : PreTrainedModel

    Returns
    -------
    int or None
        In tokens; None where it states none (XLNet states -1).

    Examples
    --------
    >>> from specdec_lib.decoding.served_models import context_limit
    >>> context_limit(model)
    2048
    """
    limit = getattr(decoder_config(model), "max_position_embeddings", None)
    return limit if limit is not None and limit > 0 else None


def windows(model: PreTrainedModel) -> dict[str, int | None]:
    """The sliding window of each kind of layer.

    Parameters
    ----------
    model : PreTrainedModel

    Returns
    -------
    dict of str to int or None
        In tokens; None for layers that attend to the whole context.

    Examples
    --------
    >>> from specdec_lib.decoding.served_models import windows
    >>> windows(model)
    {'full_attention': None}
    """
    kinds = set(setting(model, "layer_types") or [SLIDING])
    window, used = setting(model, "sliding_window"), getattr(decoder_config(model), "use_sliding_window", True)
    if not isinstance(window, int) or SLIDING not in kinds or not used:
        return {FULL: None}
    return {SLIDING: window} | ({FULL: None} if FULL in kinds else {})


def recurrent_layers(model: PreTrainedModel) -> list[bool]:
    """Which layers have one state of the whole text, as convolutions and linear attention do, so that chains alone are verified.

    Parameters
    ----------
    model : PreTrainedModel

    Returns
    -------
    list of bool

    Examples
    --------
    >>> from specdec_lib.decoding.served_models import recurrent_layers
    >>> any(recurrent_layers(model))
    False
    """
    config = decoder_config(model)
    return [kind in RECURRENT for kind in getattr(config, "layer_types", None) or () if config.model_type in CHAINS]


def rope_settings(model: PreTrainedModel) -> list[dict]:
    """The settings of the rotary embeddings of a model's layers.

    Parameters
    ----------
    model : PreTrainedModel

    Returns
    -------
    list of dict

    Examples
    --------
    >>> from specdec_lib.decoding.served_models import rope_settings
    >>> rope_settings(model)[0]["rope_type"]
    'default'
    """
    rope = getattr(decoder_config(model), "rope_parameters", None) or {}
    return [rope, *(entry for entry in rope.values() if isinstance(entry, dict))]


def exact_length(model: PreTrainedModel) -> int | None:
    """Longest sequence in which a tree can be verified: a long-context rotary embedding or a window may end it.

    Parameters
    ----------
    model : PreTrainedModel

    Returns
    -------
    int or None
        In tokens; None where nothing ends it.

    Examples
    --------
    >>> from specdec_lib.decoding.served_models import exact_length
    >>> exact_length(model) is None
    True
    """
    model = unwrapped(model)
    bounds = [windows(model)[SLIDING]] if model in WITHIN_WINDOW else []
    for entry in rope_settings(model):
        if entry.get("rope_type") == "longrope" and entry.get("original_max_position_embeddings"):
            bounds.append(entry["original_max_position_embeddings"])
    return min(bounds, default=None)


def last_position(model: PreTrainedModel, unbounded: int) -> int:
    """Largest position that a pass may hold.

    At a later one, as padding or an auxiliary token might have, the whole pass would be rotated by other frequencies.

    Parameters
    ----------
    model : PreTrainedModel
    unbounded : int
        The answer where the model states none.

    Returns
    -------
    int

    Examples
    --------
    >>> from specdec_lib.decoding.served_models import context_limit, last_position
    >>> last_position(model, unbounded=10**9) == context_limit(model) - 1
    True
    """
    return min((length - 1 for length in (context_limit(model), exact_length(model)) if length), default=unbounded)


def vocabulary_size(model: PreTrainedModel) -> int:
    """Number of token ids that a model embeds, rows of padding included.

    Parameters
    ----------
    model : PreTrainedModel

    Returns
    -------
    int

    Examples
    --------
    >>> from specdec_lib.decoding.served_models import vocabulary_size
    >>> vocabulary_size(model)
    4096
    """
    return model.get_input_embeddings().weight.shape[0]


def token_ids(model: PreTrainedModel) -> int:
    """Number of token ids of the tokenizer that a model was loaded with.

    Parameters
    ----------
    model : PreTrainedModel

    Returns
    -------
    int
        Without a tokenizer the rows that it embeds, of which some may be padding.

    Examples
    --------
    >>> from specdec_lib.decoding.served_models import token_ids
    >>> token_ids(model)
    4096
    """
    return _TOKENIZERS.get(unwrapped(model), (None, vocabulary_size(model)))[1]


def tokenizer_of(model: PreTrainedModel) -> PreTrainedTokenizerBase | None:
    """The tokenizer that a model was loaded with.

    Parameters
    ----------
    model : PreTrainedModel

    Returns
    -------
    PreTrainedTokenizerBase or None
        None where it is not known.

    Examples
    --------
    >>> from specdec_lib.decoding.served_models import tokenizer_of
    >>> tokenizer_of(model) is tokenizer
    True
    """
    return _TOKENIZERS.get(unwrapped(model), (None, 0))[0]


def check_tokenizer(tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel) -> None:
    """Reject a tokenizer with more ids than the model embeds, but for a few, as special tokens may be.

    Parameters
    ----------
    tokenizer : PreTrainedTokenizerBase
    model : PreTrainedModel

    Raises
    ------
    ValueError

    Examples
    --------
    >>> from specdec_lib.decoding.served_models import check_tokenizer
    >>> check_tokenizer(tokenizer, model)
    """
    if (len(tokenizer) - vocabulary_size(model)) * 16 > len(tokenizer):
        raise ValueError(
            f"the tokenizer has {len(tokenizer)} tokens, the model embeds {vocabulary_size(model)}: load both from one place"
        )


def remember_tokenizer(tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel) -> None:
    """Check a tokenizer and have it decide from now on which other models share the model's vocabulary.

    Parameters
    ----------
    tokenizer : PreTrainedTokenizerBase
    model : PreTrainedModel

    Raises
    ------
    ValueError
        As for :func:`check_tokenizer`.

    Examples
    --------
    For a model that :func:`specdec_lib.load_model` did not load:

    >>> from transformers import LlamaForCausalLM
    >>> from specdec_lib.decoding.served_models import remember_tokenizer, tokenizer_of
    >>> own = LlamaForCausalLM(draft.config)
    >>> remember_tokenizer(tokenizer, own)
    >>> tokenizer_of(own) is tokenizer
    True
    """
    check_tokenizer(tokenizer, model)
    ids = vocabulary_size(model)
    if len(tokenizer) < ids:  # they may have gaps, so that their number does not tell the largest one
        ids = min(max(tokenizer.get_vocab().values()) + 1, ids)
    _TOKENIZERS[unwrapped(model)] = tokenizer, ids


def check_paired(draft: PreTrainedModel, ids: int) -> None:
    """Reject a draft model that cannot share a tokenizer with a target.

    Where a tokenizer is not known its model's rows count, which padding makes more: they may differ by a sixteenth.

    Parameters
    ----------
    draft : PreTrainedModel
    ids : int
        Token ids of the target.

    Raises
    ------
    ValueError

    Examples
    --------
    >>> from specdec_lib.decoding.served_models import check_paired
    >>> check_paired(draft, 4096)
    >>> check_paired(draft, 32000)
    Traceback (most recent call last):
        ...
    ValueError: the draft model has 4096 token ids, the target 32000: they must share a tokenizer; if so, load both with load_model
    """
    own = token_ids(draft)
    if abs(own - ids) * 16 > max(own, ids):
        raise ValueError(
            f"the draft model has {own} token ids, the target {ids}: they must share a tokenizer; if so, load both with load_model"
        )


def _refusals(model: PreTrainedModel, longest: int) -> Iterator[tuple[bool, str]]:
    """Whether each reason not to serve a model holds, and what it is."""
    config, used = decoder_config(model), model.config._attn_implementation
    yield model.config.is_encoder_decoder, "is an encoder-decoder model; expected a decoder-only causal language model"
    yield model.training, "is in training mode, where dropout changes the output; call model.eval() first"
    takes = set(inspect.signature(type(model).forward).parameters)
    yield (
        not {"cache", "past_key_values"} & takes and bool({"mems", "cache_params", "state"} & takes),
        "has no key-value cache, which drafts are verified over; expected a model whose forward takes past_key_values",
    )
    known = {FULL, SLIDING} | (RECURRENT if config.model_type in CHAINS else set())
    odd = sorted(set(getattr(config, "layer_types", None) or []) - known)
    yield (
        bool(odd) and setting(model, "layer_types") is not None,
        f"has layers of type {', '.join(odd)}; tree verification needs attention over the whole context ({FULL} or {SLIDING})",
    )
    yield (
        used not in ("sdpa", "eager", attention.NAME),
        f"uses attn_implementation={used!r}, which takes no tree mask; load it with attn_implementation='sdpa' (or 'eager')",
    )
    yield (
        used != "eager" and bool(setting(model, "attn_logit_softcapping")),
        "caps its attention scores, which SDPA does not do; load it with attn_implementation='eager', as load_model does",
    )
    yield (
        config.model_type == "bloom"
        or any(getattr(place, "alibi", False) for place in (config, getattr(config, "attn_config", None))),
        "has ALiBi position biases, which follow the place in the block and not the path in the tree; choose a model with "
        "rotary or learned positions",
    )
    yield (
        "local" in (getattr(config, "attention_layers", None) or []),
        "has local layers, whose window counts places in the cache, a rejected draft's among them; choose a model whose windows "
        "go by position",
    )
    yield (
        bool(setting(model, "keep_window_size")),
        "attends to the tokens that it scores highest, which a draft's are among; choose one that attends to the whole context",
    )
    bound = exact_length(model)
    yield (
        bound is not None and longest > bound,
        f"attends to the last {bound} tokens only, or changes its positions after so many, but prompt and output may take "
        f"{longest}; shorten them to fit",
    )


def _adapters_that_are_more(model: PreTrainedModel) -> Iterator[str]:
    """What adapters of PEFT do besides changing weights, which passes over a draft do not follow."""
    inside = unwrapped(model)
    # PEFT's own generate hands the model inside over, and itself as what prepares the model's inputs.
    outside = getattr(vars(inside).get("prepare_inputs_for_generation"), "__self__", None)
    for each in (model, outside):
        config = getattr(each, "active_peft_config", None)
        if getattr(config, "is_prompt_learning", False):
            yield f"puts trained vectors before the prompt ({_name(config)}), which no tree is verified after"
    for config in (getattr(inside, "peft_config", None) or {}).values():
        if _name(config) == "XLORA":
            yield "weighs its adapters by a pass of its own over the whole text (XLORA)"
    for part in inside.modules():
        variants = getattr(part, "lora_variant", None)
        if not variants or part.disable_adapters:
            continue
        if any("ALora" in type(variants.get(name)).__name__ for name in part.active_adapters):
            yield "has an activated LoRA, whose effect begins at a place in the prompt that a pass over a draft does not know"


def _name(config: object) -> str:
    kind = getattr(config, "peft_type", "")
    return str(getattr(kind, "value", kind))


_LOOKING_ON = (__package__, "transformers.utils.output_capturing")


def _hooks(part: torch.nn.Module) -> list[object]:
    """Forward hooks of a part and of all modules, but for those that only look on: of generations, and of transformers' outputs."""
    own, all_modules = vars(part), torch.nn.modules.module
    places = [own["_forward_pre_hooks"], own["_forward_hooks"]]
    places += [all_modules._global_forward_pre_hooks, all_modules._global_forward_hooks]
    found = [hook for hooks in places for hook in list(hooks.values())]
    return [hook for hook in found if not (getattr(hook, "__module__", None) or "").startswith(_LOOKING_ON)]


def is_altered(part: torch.nn.Module) -> bool:
    """Whether a part computes something else than its class as it was written: by hooks, or by another forward.

    Parameters
    ----------
    part : torch.nn.Module

    Returns
    -------
    bool

    Examples
    --------
    >>> import torch
    >>> from specdec_lib.decoding.served_models import is_altered
    >>> layer = torch.nn.Linear(4, 2)
    >>> before, hook = is_altered(layer), layer.register_forward_hook(lambda part, given, out: out + 1)
    >>> before, is_altered(layer)
    (False, True)
    """
    if _hooks(part) or "forward" in vars(part):
        return True
    source = next(kind for kind in type(part).__mro__ if "forward" in vars(kind))
    return getattr(source.forward, "__module__", None) != source.__module__


def state_of(model: PreTrainedModel) -> list[tuple]:
    """What decides, besides the weights' values, how a model computes: its parts, hooks, modes and adapters.

    Hooks of a generation under way do not count.

    Parameters
    ----------
    model : PreTrainedModel

    Returns
    -------
    list of tuple
        Two that are equal were taken from a model that computes alike.

    Examples
    --------
    >>> from specdec_lib import generate
    >>> from specdec_lib.decoding.served_models import state_of
    >>> before = state_of(model)
    >>> run = generate(model, prompt, max_new_tokens=4)
    >>> state_of(model) == before
    True
    """
    config, inside = decoder_config(model), unwrapped(model)
    used = config._attn_implementation
    kinds = getattr(config, "layer_types", None)
    weights = model.get_input_embeddings().weight
    state: list[tuple] = [
        (
            "sdpa" if used == attention.NAME else used,
            getattr(config, "sliding_window", None),
            None if kinds is None else tuple(kinds),
            weights.dtype,
            weights.device,
            str(getattr(model, "active_adapter", None)),
            config.num_hidden_layers,
        )
    ]
    for part in inside.modules():
        own = vars(part)
        # Whole numbers are left out: some count passes.
        flags = [_plain(value) for name, value in own.items() if type(value) in _FLAGS and name not in _OF_TORCH]
        forward = own.get("forward", type(part).forward)
        state.append((type(part), forward, own.get("_compiled_call_impl"), *_hooks(part), *flags))
    return state


#: Types of what a part of a model notes about how it computes: its mode, its active adapters.
_FLAGS = {bool, str, float, list, dict}
#: What each part has for torch's own use, and the model's name, which may be given later.
_OF_TORCH = set(vars(torch.nn.Module())) - {"training"} | {"name_or_path"}


def _plain(value: object) -> object:
    if isinstance(value, dict):
        return tuple((name, each) for name, each in value.items() if isinstance(each, str | bool | float))
    if isinstance(value, list):
        return tuple(each for each in value if isinstance(each, str | bool))
    return value


def check_adapters(model: PreTrainedModel) -> None:
    """Reject a model with an adapter of PEFT that does more than change weights.

    Parameters
    ----------
    model : PreTrainedModel

    Raises
    ------
    UnsupportedModel

    Examples
    --------
    >>> from specdec_lib.decoding.served_models import check_adapters
    >>> check_adapters(model)
    """
    for reason in _adapters_that_are_more(model):
        raise UnsupportedModel(
            f"{type(model).__name__} {reason}; use an adapter that changes weights alone, such as LoRA"
        )


def check_kind(model: PreTrainedModel, longest: int) -> None:
    """Check from its configuration that a model can be decoded by tree verification.

    Parameters
    ----------
    model : PreTrainedModel
    longest : int
        Tokens that prompt and output may have together.

    Raises
    ------
    UnsupportedModel
        The message names the reason.

    Examples
    --------
    >>> from specdec_lib.decoding.served_models import check_kind
    >>> check_kind(model, longest=512)
    """
    for reason in _adapters_that_are_more(model):
        raise UnsupportedModel(
            f"{type(model).__name__} {reason}; use an adapter that changes weights alone, such as LoRA"
        )
    model = unwrapped(model)
    for holds, reason in _refusals(model, longest):
        if holds:
            raise UnsupportedModel(f"{type(model).__name__} {reason}")
