"""Models in GGUF files, the format of llama.cpp: weights of fewer bits, which transformers turns back into floats.

A file is converted once: its configuration and tokenizer, and its weights if they are not too many, are kept in the cache as the
folder of a model like any other, with the checksums of its files.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import math
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from specdec_lib import files, paths
from specdec_lib.decoding.served_models import FULL, UnsupportedModel

#: Bytes of weights in float32 up to which they are kept in the cache; larger models are read from their file each time.
KEPT = 2**32
#: What a folder of the cache may hold, its manifest, and that manifest's form.
NAMES, MANIFEST, FORMAT = (
    ("*.json", "*.safetensors", "*.jinja", "*.txt"),
    "converted.json",
    "specdec-lib converted model",
)
#: Version of what is written here. With another one all files are converted again.
VERSION = 2
#: Name of one of several files that a model is spread over.
_PART = re.compile(r"(.*)-(\d{5})-of-(\d{5})(\.gguf)", re.IGNORECASE)
#: Tensors that are no weights but the rotary embedding's.
ROTARY = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
#: Metadata that transformers leaves out, and that change what the model computes unless they are one of these values.
_NEUTRAL = {
    "attention.scale": (0, 1),
    "attention.clamp_kqv": (0,),
    "attention.max_alibi_bias": (0,),
    "attention.output_scale": (0, 1),
    "attention.temperature_scale": (0,),
    "attention.causal": (True,),
    "embedding_scale": (0, 1),
    "logit_scale": (0, 1),
    "residual_scale": (0, 1),
    "rope.scaling.alpha": (0,),
    "rope.scaling.yarn_log_multiplier": (0,),
}
#: Metadata that are read as texts; all others as numbers.
_TEXTS = ("general.architecture", "{}.rope.scaling.type")
#: Metadata that are settings of the same name, where a configuration has them.
_SETTINGS = {
    "attention.sliding_window": "sliding_window",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
}


class _File:
    """The metadata and the tensors of a GGUF file and of the parts that belong to it; UnsupportedModel if they are not whole."""

    def __init__(self, path: Path):
        if not path.is_file():
            raise FileNotFoundError(f"no model at {path}: expected a GGUF file")
        if importlib.util.find_spec("gguf") is None:
            raise ImportError(f"{path.name} is a GGUF file, which needs the package gguf: pip install gguf")
        self.path, self.paths = path, parts(path)
        self.readers = [_reader(each) for each in self.paths]
        self.tensors = {tensor.name: tensor for reader in self.readers for tensor in reader.tensors}
        self.architecture = self.get("general.architecture", "")
        count, told = self.get("split.count", 1), self.get("split.tensors.count", len(self.tensors))
        if count > 1 and count != len(self.paths):
            raise UnsupportedModel(
                f"{path} is one of {count} parts of a model: their names must end in -00001-of-{count:05}.gguf and so on"
            )
        if len(self.paths) > 1 and told != len(self.tensors):
            raise UnsupportedModel(f"the parts of {path} hold {len(self.tensors)} tensors, not {told}: get them again")

    def get(self, name: str, default: Any = None) -> Any:
        """A value of the metadata, which ``{}`` in its name finds under the architecture's."""
        field = self.readers[0].fields.get(name.format(getattr(self, "architecture", "")))
        if field is None:
            return default
        value = field.contents()
        right = isinstance(value, str) if name in _TEXTS else isinstance(value, int | float) and math.isfinite(value)
        if not right:
            raise UnsupportedModel(
                f"{self.path.name} states {field.name} = {value!r:.40}; expected {'a text' if name in _TEXTS else 'a number'}: "
                "get the file again"
            )
        return value

    @contextmanager
    def alone(self) -> Iterator[str]:
        """The file, as one, under a plain name in a folder of its own: neither the folder that it lies in nor the working directory
        is looked at for what belongs to it."""
        parent = paths.cache() / "models"
        parent.mkdir(parents=True, exist_ok=True)
        with files.scratch(parent) as folder:
            whole = folder / "model.gguf"
            if len(self.paths) > 1:
                _join(self, whole)
            else:
                try:
                    whole.symlink_to(self.path.resolve())
                except OSError:  # Windows, without the right to make links
                    shutil.copyfile(self.path, whole)
            yield str(whole.absolute())


def parts(path: Path) -> list[Path]:
    """All files of a model, of which ``path`` is one; UnsupportedModel if some are missing."""
    if (match := _PART.fullmatch(path.name)) is None:
        return [path]
    stem, _, count, ending = match.groups()
    found = [path.with_name(f"{stem}-{i:05}-of-{count}{ending}") for i in range(1, int(count) + 1)]
    if missing := [each.name for each in found if not each.is_file()]:
        raise UnsupportedModel(
            f"{path} is one of {int(count)} parts of a model, and {missing[0]} is not beside it: get all of them"
        )
    return found


def _reader(path: Path):
    from gguf import GGUFReader

    with path.open("rb") as file:
        magic = file.read(4)
    if magic != b"GGUF":
        raise UnsupportedModel(f"{path} is no GGUF file: it begins with {magic!r}, not b'GGUF'")
    try:
        return GGUFReader(path)
    except Exception as error:  # each part of the reader raises its own
        raise UnsupportedModel(
            f"{path} is damaged, cut short, or of a kind that the package gguf does not know: {_line(error)}"
        ) from error


def _line(error: BaseException) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def _join(file: _File, whole: Path) -> None:
    """Write one file from several."""
    from gguf import GGUFValueType, GGUFWriter

    writer = GGUFWriter(whole, file.architecture)
    for name, field in file.readers[0].fields.items():
        if name.startswith(("GGUF.", "split.")) or name == "general.architecture":
            continue
        of = field.types[-1] if field.types[0] == GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), field.types[0], sub_type=of)
    for name, tensor in file.tensors.items():
        writer.add_tensor(name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _tried(path: Path, call: Callable, *arguments, **options):
    try:
        return call(*arguments, **options)
    except (torch.OutOfMemoryError, MemoryError, UnsupportedModel):
        raise
    except Exception as error:  # each reader of the file raises its own
        raise UnsupportedModel(f"transformers cannot read {path.name}: {_line(error)}") from error


def _config(file: _File, alone: str) -> PreTrainedConfig:
    """The configuration that transformers makes of the metadata, with what it leaves out."""
    config = _tried(file.path, AutoConfig.from_pretrained, str(Path(alone).parent), gguf_file=alone)
    name = f"{file.path.name} (architecture {file.architecture})"
    for key, neutral in _NEUTRAL.items():
        value = file.get("{}." + key)
        if value is not None and value not in neutral and not _knows(file.architecture, key):
            raise UnsupportedModel(f"{name} states {key} = {value}, which transformers does not read from such a file")
    text = config.get_text_config(decoder=True)
    for key, setting in _SETTINGS.items():
        value = file.get("{}." + key)
        if not value or getattr(text, setting, None) == value:
            continue
        if key == "attention.sliding_window" and value >= file.get("{}.context_length", 0):
            continue
        if not hasattr(text, setting):
            raise UnsupportedModel(f"{name} states {key} = {value}, which {type(text).__name__} has no setting for")
        setattr(text, setting, value)
    _scale_rotary(file, text)
    for ids, stated in (("bos", ["bos"]), ("pad", ["padding"]), ("eos", ["eos", "eot", "eom"])):
        found = [file.get(f"tokenizer.ggml.{each}_token_id") for each in stated]
        found = [int(each) for each in dict.fromkeys(found) if each is not None]
        setattr(text, f"{ids}_token_id", found if len(found) > 1 else found[0] if found else None)
    for mark in ("quantization_config", "_name_or_path"):
        if hasattr(config, mark):
            delattr(config, mark)
    return config


def _knows(architecture: str, key: str) -> bool:
    """Whether transformers reads a setting of an architecture from the metadata."""
    from transformers.integrations import GGUF_CONFIG_MAPPING

    return GGUF_CONFIG_MAPPING.get(architecture, {}).get(key) is not None


def _scale_rotary(file: _File, config: PreTrainedConfig) -> None:
    """Give a configuration the rotary scaling that the file states; UnsupportedModel where it has no place for it."""
    kind, get = (
        file.get("{}.rope.scaling.type"),
        lambda name, default=None: file.get("{}.rope.scaling." + name, default),
    )
    factor = get("factor") or file.get("{}.rope.scale_linear") or 1.0
    kind = kind or ("linear" if factor != 1.0 else "none")
    longest, before = file.get("{}.context_length"), get("original_context_length")
    scaled: dict[str, Any] = {}
    if "rope_freqs.weight" in file.tensors:
        scaled = _llama3(file, [float(each) for each in file.tensors["rope_freqs.weight"].data])
    elif "rope_factors_long.weight" in file.tensors:
        scaled = {
            "rope_type": "longrope",
            "long_factor": [float(each) for each in file.tensors["rope_factors_long.weight"].data],
            "short_factor": [float(each) for each in file.tensors["rope_factors_short.weight"].data],
            "original_max_position_embeddings": before,
            "factor": longest / before,
            "attention_factor": get("attn_factor", 1.0),
        }
    elif kind == "linear" and factor != 1.0:
        scaled = {"rope_type": "linear", "factor": factor}
    elif kind == "yarn" and factor != 1.0:
        if get("yarn_ext_factor", 1.0) != 1.0 or not before:
            raise UnsupportedModel(
                f"{file.path.name} scales its rotary embedding by YaRN with yarn_ext_factor {get('yarn_ext_factor')} and an "
                f"original context of {before}; expected 1 and a length"
            )
        own = get("yarn_attn_factor", get("attn_factor", 1.0))
        scaled = {
            "rope_type": "yarn",
            "factor": factor,
            "original_max_position_embeddings": before,
            "attention_factor": own * (1 + 0.1 * math.log(factor)),
            "beta_fast": get("yarn_beta_fast", 32.0),
            "beta_slow": get("yarn_beta_slow", 1.0),
        }
    elif kind not in ("none", "linear", "yarn"):
        raise UnsupportedModel(
            f"{file.path.name} scales its rotary embedding by {kind!r}; expected linear, yarn or longrope"
        )
    if not scaled:
        return
    rope = getattr(config, "rope_parameters", None)
    if rope is None:
        raise UnsupportedModel(
            f"{file.path.name} scales a rotary embedding, which {type(config).__name__} does not have"
        )
    # Of layers of two kinds those with a window are not scaled.
    own = rope[FULL] if FULL in rope else rope
    config.rope_parameters = rope | {FULL: own | scaled} if FULL in rope else own | scaled


def _llama3(file: _File, factors: list[float]) -> dict[str, Any]:
    """The settings whose rotary frequencies are divided by ``factors``: those of Llama 3.1, or any by the way of LongRoPE."""
    size = 2 * len(factors)
    theta, longest = file.get("{}.rope.freq_base", 10000.0), file.get("{}.context_length")
    turns = 8192 / (2 * np.pi * theta ** (np.arange(0, size, 2) / size))
    smooth = np.clip((turns - 1.0) / (4.0 - 1.0), 0, 1)
    largest = max(factors)
    if np.allclose(1 / ((1 - smooth) / largest + smooth), factors, rtol=1e-3):
        about = {"factor": largest, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
        return {"rope_type": "llama3", "original_max_position_embeddings": 8192, **about}
    return {
        "rope_type": "longrope",
        "long_factor": factors,
        "short_factor": factors,
        "original_max_position_embeddings": longest,
        "factor": 1.0,
        "attention_factor": 1.0,
    }


def _tokenizer(file: _File, alone: str) -> PreTrainedTokenizerBase:
    folder = str(Path(alone).parent)
    return _tried(file.path, AutoTokenizer.from_pretrained, folder, gguf_file=alone, trust_remote_code=False)


def _empty(config: PreTrainedConfig) -> PreTrainedModel:
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config)


def _check_tensors(file: _File, config: PreTrainedConfig) -> None:
    """Refuse, before it is read, a file whose weights are not as many as those of its model."""
    model = _tried(file.path, _empty, config)
    held = {name: math.prod(map(int, tensor.shape)) for name, tensor in file.tensors.items() if name not in ROTARY}
    if model.get_output_embeddings().weight is model.get_input_embeddings().weight:
        held.pop("output.weight", None)
    taken, count = sum(parameter.numel() for parameter in model.parameters()), sum(held.values())
    if count == taken:
        return
    blocks = {int(name.split(".")[1]) for name in held if name.startswith("blk.")}
    endings = {name.split(".", 2)[2] for name in held if name.startswith("blk.")}
    asked = ("token_embd.weight", *(f"blk.{block}.{ending}" for block in sorted(blocks) for ending in sorted(endings)))
    missing = [name for name in asked if name not in held]
    raise UnsupportedModel(
        f"{file.path.name} holds {count:,} weights and {type(model).__name__} of this configuration has {taken:,}"
        + (
            f": {missing[0]} is missing; get the file again"
            if missing and count < taken
            else "; it cannot be read whole"
        )
    )


def _model(
    file: _File, alone: str, config: PreTrainedConfig, dtype: torch.dtype | str, **options: Any
) -> PreTrainedModel:
    """The model with all weights of the file, as one that was never quantised."""
    _check_tensors(file, config)
    model, found = _tried(
        file.path,
        AutoModelForCausalLM.from_pretrained,
        str(Path(alone).parent),
        gguf_file=alone,
        config=config,
        dtype=dtype,
        output_loading_info=True,
        **options,
    )
    if missing := sorted(found["missing_keys"]):
        raise UnsupportedModel(
            f"{file.path.name} has no weights for {len(missing)} parts of its {type(model).__name__}, {missing[0]} among them, "
            "which would be random; get the file again"
        )
    if getattr(model.config, "quantization_config", None) is not None:
        del model.config.quantization_config
    model.is_quantized, model.hf_quantizer = False, None
    model.generation_config = GenerationConfig.from_model_config(model.config)
    return model


def read(path: Path, config: PreTrainedConfig, dtype: torch.dtype | str, **options: Any) -> PreTrainedModel:
    """The model of a GGUF file; UnsupportedModel if transformers cannot read it, or would not read all of it.

    ``config`` is the file's, as :func:`config_and_tokenizer` gives it.
    """
    file = _File(path)
    with file.alone() as alone:
        return _model(file, alone, config, dtype, **options)


def config_and_tokenizer(path: Path) -> tuple[PreTrainedConfig, PreTrainedTokenizerBase]:
    """The configuration and the tokenizer of a GGUF file, without its weights; kept in the cache."""

    def describe(folder: Path, file: _File) -> None:
        with file.alone() as alone:
            config, tokenizer = _tried(path, _config, file, alone), _tokenizer(file, alone)
        config.save_pretrained(folder)
        GenerationConfig.from_model_config(config).save_pretrained(folder)
        _save_tokenizer(tokenizer, folder)

    folder = _kept(path, "described", describe)
    # Not the class of the family, some of which build their tokenizer anew from lists in Python.
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    tokenizer.name_or_path = str(path)
    return AutoConfig.from_pretrained(folder, trust_remote_code=False), tokenizer


def _save_tokenizer(tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Save a tokenizer so that it is read again in a third of the time and half the memory.

    The package tokenizers reads a merge that is one text with less effort than a pair, and transformers reads the whole file once
    more for its added tokens unless its own file lists them.
    """
    tokenizer.save_pretrained(folder)
    about = json.loads(tokenizer.backend_tokenizer.to_str())
    merges = about["model"].get("merges", [])
    # A text is split at its blank, and one that begins like this is taken for a comment.
    if not any(" " in part or part.startswith("#version") for pair in merges for part in pair):
        about["model"] |= {"merges": [" ".join(pair) for pair in merges]} if merges else {}
        (folder / "tokenizer.json").write_text(json.dumps(about, ensure_ascii=False), encoding="utf-8")
    settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    settings["added_tokens_decoder"] = {
        number: token.__getstate__() for number, token in tokenizer.added_tokens_decoder.items()
    }
    settings |= {name: getattr(tokenizer, name) for name in ("model_input_names", "padding_side")}  # its class's
    files.write_json(folder / "tokenizer_config.json", settings)


def converted_folder(path: Path, config: PreTrainedConfig) -> Path | None:
    """A folder of the cache with the model of a GGUF file in float32; None if it is too large to be kept there.

    ``config`` is the file's, as :func:`config_and_tokenizer` gives it.
    """
    if 4 * _empty(config).num_parameters() > KEPT:
        return None

    def convert(folder: Path, file: _File) -> None:
        with file.alone() as alone:
            _model(file, alone, config, torch.float32).save_pretrained(folder)

    return _kept(path, "float32", convert)


def _kept(path: Path, kind: str, write: Callable[[Path, _File], None]) -> Path:
    """A folder of the cache that ``write`` makes of a file where it is not there; ValueError if it was altered."""
    if not path.is_file():
        raise FileNotFoundError(f"no model at {path}: expected a GGUF file")
    sums = " ".join(map(files.known_sum, parts(path)))
    known = hashlib.sha256(sums.encode()).hexdigest()[:16]
    target = paths.cache() / "models" / f"gguf-{known}-{kind}-{VERSION}-{transformers.__version__}"
    target.parent.mkdir(parents=True, exist_ok=True)

    def convert(new: Path) -> None:
        # Who may not read the file reads nothing that is made of it.
        new.mkdir(0o777 if path.stat().st_mode & 0o004 else 0o700)
        write(new, _File(path))

    keep(target, {"model": path.name, "sha256 of the file": sums}, convert)
    return target


def keep(target: Path, about: dict[str, str], write: Callable[[Path], None]) -> None:
    """Have ``write`` make a folder of the cache where it is not there, whole or not at all; ValueError if it was altered."""
    if not (target / MANIFEST).is_file():
        with files.locked(target, wait=True), files.scratch(target.parent) as scratch:
            files.recover(target, NAMES, marked=False)
            if not (target / MANIFEST).is_file():  # no other process was faster
                new = scratch / "model"
                write(new)
                files.write_manifest(new / MANIFEST, FORMAT, about, sorted(each.name for each in new.iterdir()))
                files.swap_in(new, target, NAMES, marked=False)
    _check_kept(target, tuple((each.name, *files.state(each)) for each in sorted(target.iterdir())))


@cache
def _check_kept(target: Path, state: tuple) -> None:
    """Compare a folder's files with their checksums; once for each ``state`` of the folder, which any writing to it changes."""
    try:
        names = tuple((files.read_json(target / MANIFEST) or {}).get("files", ()))
        about = files.read_manifest(target / MANIFEST, FORMAT, f"{target} holds no model", names, {})
        if {name for name, *_ in state} != {MANIFEST, *about["files"]}:
            raise ValueError(f"{target} holds other files than those that were written there")
        files.check_sums(target, about["files"])
    except ValueError as error:
        raise ValueError(f"{error} (remove {target}, and the model is converted again)") from None
