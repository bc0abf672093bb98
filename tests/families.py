"""Tiny random models of several families, saved to and loaded from local directories.

Weights are wide enough that the most likely token depends on the context: a wrong mask or position shows.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from specdec_lib import load_model
from specdec_lib.decoding.target import check_model

VOCABULARY = 96
#: Ids that the tokenizer knows; transformers adds one or two special tokens of its own for some families.
TEXT = 92
CONTEXT = 128
#: Sliding window of the families that have one: passed by the prompts of most tests, and several times by outputs.
WINDOW = 12
_COMMON = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": CONTEXT, "initializer_range": 0.35,
    "bos_token_id": 0, "eos_token_id": None, "pad_token_id": None, "tie_word_embeddings": False,
}  # fmt: skip
_GROUPED = {"num_key_value_heads": 2}
_LATENT = {
    "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 12,
    "n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1,
    "moe_intermediate_size": 16, "first_k_dense_replace": 1,
}  # fmt: skip
_EXPERTS = {
    "head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}  # fmt: skip
_MIXED = {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"]}

#: Name of each family that is served: transformers' model type and what differs from the common
#: configuration.
SERVED: dict[str, tuple[str, dict]] = {
    "llama": ("llama", {}),
    "llama-gqa": ("llama", _GROUPED),
    "mistral": ("mistral", _GROUPED | {"sliding_window": None}),
    "mistral-window": ("mistral", _GROUPED | {"sliding_window": WINDOW}),
    "qwen2": ("qwen2", _GROUPED),
    "qwen3": ("qwen3", _GROUPED | {"head_dim": 8}),
    "gpt-neox": ("gpt_neox", {}),
    "gemma": ("gemma", {"num_key_value_heads": 1, "head_dim": 8}),
    "qwen2-window": (
        "qwen2",
        _GROUPED | {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1},
    ),
    "gemma2": ("gemma2", _GROUPED | _MIXED | {"head_dim": 8}),
    "gemma3": ("gemma3_text", _GROUPED | _MIXED | {"head_dim": 8}),
    "olmo3": ("olmo3", _GROUPED | _MIXED),
    "cohere2": ("cohere2", _GROUPED | _MIXED),
    "gpt-oss": ("gpt_oss", _GROUPED | _MIXED | _EXPERTS),
    "gpt2": ("gpt2", {"n_positions": CONTEXT}),
    "deepseek-v3": ("deepseek_v3", _LATENT),
}
#: Families some of whose layers keep one state of the whole text: chains alone are verified.
CHAINS: dict[str, tuple[str, dict]] = {
    "lfm2": ("lfm2", _GROUPED | {"layer_types": ["conv", "full_attention"]}),
    "qwen3-next": ("qwen3_next", _GROUPED | _EXPERTS | {
        "layer_types": ["linear_attention", "full_attention"], "num_experts": 4, "moe_intermediate_size": 16,
        "shared_expert_intermediate_size": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 2,
        "linear_key_head_dim": 8, "linear_value_head_dim": 8,
    }),
}  # fmt: skip
#: Families that tree verification cannot serve.
REFUSED: dict[str, tuple[str, dict]] = {
    "bloom": ("bloom", {"n_head": 4, "n_layer": 2}),
    "mpt": ("mpt", {"d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": CONTEXT}),
    "falcon-alibi": ("falcon", {"alibi": True}),
    "mamba": ("mamba", {}),
    "rwkv": ("rwkv", {}),
    "recurrent-gemma": ("recurrent_gemma", {"num_key_value_heads": 1, "lru_width": 32}),
    "llama4": ("llama4_text", _GROUPED | {"head_dim": 8}),
}


def bounded(length: int) -> PreTrainedModel:
    """A Llama whose long-context positions change over after so many tokens, up to which alone it is served."""
    rope = {"rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
    rope["original_max_position_embeddings"] = length
    return build("llama", rope_parameters=rope, original_max_position_embeddings=length)


def tokenizer(size: int = TEXT) -> PreTrainedTokenizerFast:
    """One token per character: two special ones, then the printable characters from the space on."""
    words = ["<s>", "</s>", *(chr(32 + i) for i in range(size - 2))]
    core = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, []))
    core.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=core, bos_token="<s>", eos_token="</s>")


def build(family: str, seed: int = 0, **changes) -> PreTrainedModel:
    """A random model of a family, or of another model type of transformers, in memory, in evaluation mode."""
    kind, own = (SERVED | CHAINS | REFUSED).get(family, (family, {}))
    torch.manual_seed(seed)
    config = AutoConfig.for_model(kind, **{**_COMMON, **own, **changes})
    try:
        attention = "eager" if family == "gemma2" else "sdpa"
        model = AutoModelForCausalLM.from_config(config, attn_implementation=attention, dtype=torch.float32)
    except ValueError:
        model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32)
    return model.eval()


def save(model: PreTrainedModel, folder: Path, size: int = TEXT) -> Path:
    """Write a model and its tokenizer as ``from_pretrained`` reads them."""
    model.save_pretrained(folder)
    tokenizer(size).save_pretrained(folder)
    return folder


@contextmanager
def hooked(part: nn.Module, hook: Callable, model: PreTrainedModel, before: bool = False) -> Iterator[None]:
    """Call ``hook`` after (or before) a part of the model runs, in passes that a test asks for.

    A model that has got a hook is checked anew in passes of its own, and of those the hook sees nothing.
    """
    sees: list[bool] = []

    def told(*args):
        return hook(*args) if sees else None

    handle = part.register_forward_pre_hook(told) if before else part.register_forward_hook(told)
    try:
        check_model(model)
        sees.append(True)
        yield
    finally:
        handle.remove()


@torch.inference_mode()
def uncached(model: PreTrainedModel, tokens: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits and final states after each token, by one forward of transformers without a cache."""
    out = model(torch.tensor([[*map(int, tokens)]]), use_cache=False, output_hidden_states=True)
    return out.logits[0], out.hidden_states[-1][0]


class Library(dict):
    """Models loaded from directories below ``root``, each made once."""

    def __init__(self, root: Path):
        super().__init__()
        self.root = root

    def __missing__(self, name: str) -> PreTrainedModel:
        family, _, draft = name.partition(" ")
        self[name] = perturbed(self[family]) if draft else load_model(save(build(family), self.root / family), "cpu")[0]
        return self[name]

    def draft(self, family: str) -> PreTrainedModel:
        """A model that agrees with the family's most of the time."""
        return self[f"{family} draft"]


def perturbed(model: PreTrainedModel, scale: float = 0.03) -> PreTrainedModel:
    """A copy of a model with noise on its matrices."""
    other = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weights in other.parameters():
            if weights.ndim == 2:
                weights += scale * weights.std() * torch.randn(weights.shape, generator=generator).to(weights)
    return other


def cut(model: PreTrainedModel, ids: Sequence[int], unknown: bool = True) -> PreTrainedModel:
    """A copy that embeds these tokens alone, and one row more for all others."""
    other, rows = copy.deepcopy(model), torch.tensor([*ids, ids[-1]] if unknown else ids)
    for old, replace in (
        (other.get_input_embeddings(), other.set_input_embeddings),
        (other.get_output_embeddings(), other.set_output_embeddings),
    ):
        new = copy.deepcopy(old)
        new.weight = torch.nn.Parameter(old.weight.detach()[rows])
        replace(new)
    other.config.get_text_config().vocab_size = len(rows)
    return other


def prompt(seed: int, length: int, size: int = TEXT) -> list[int]:
    """A prompt with some repetition in it, special tokens left out."""
    generator = torch.Generator().manual_seed(seed)
    some = torch.randint(2, size, (max(1, length // 2),), generator=generator).tolist()
    return (some + some[::2] + some)[:length]
