"""Tell one model's weights from another's, so that what was made for one is not used with the other."""

from __future__ import annotations

import hashlib
import json
import math

import numpy as np
import torch
from transformers import PreTrainedModel

#: Values of each parameter that are looked at, spread over all of it.
SAMPLES = 64


@torch.no_grad()
def fingerprint(model: PreTrainedModel) -> str:
    """A checksum of architecture and weights.

    It is the same for a checkpoint loaded in float32 or bfloat16, on any device, compiled or offloaded: parameters are
    compared in bfloat16, at :data:`SAMPLES` places each.

    Parameters
    ----------
    model : PreTrainedModel

    Returns
    -------
    str
        64 hexadecimal digits.

    Examples
    --------
    >>> from specdec_lib.models.fingerprint import fingerprint
    >>> len(fingerprint(model)), fingerprint(model) == fingerprint(draft)
    (64, False)
    """
    digest = hashlib.sha256()
    names = {name.replace("_orig_mod.", ""): name for name, _ in model.named_parameters()}
    for name in sorted(names):
        part, _, last = names[name].rpartition(".")
        layer = model.get_submodule(part)
        packed = getattr(layer, "matrix", None) if last == "weight" else None
        weights = None if packed is not None else weights_of(layer, last)
        shape = list(packed.shape if weights is None else weights.shape)
        count = math.prod(shape)
        places = torch.linspace(0, count - 1, min(SAMPLES, count), dtype=torch.float64, device="cpu").long()
        if weights is None:
            outputs, inputs = places // shape[1], places % shape[1]
            values = packed.rows(outputs.numpy())[torch.arange(len(places)), inputs]
        else:
            flat = weights.detach().reshape(-1)
            values = flat[places.to(flat.device)]
        values = values.to(torch.bfloat16).float().cpu().numpy()
        digest.update(json.dumps([name, shape]).encode() + values.tobytes())
    return digest.hexdigest()


def weights_of(part: torch.nn.Module, name: str = "weight") -> torch.Tensor:
    """A parameter of a part of a model.

    For packed weights it is the numbers that they stand for, and for an offloaded part what accelerate's hook brings in when it
    runs.

    Parameters
    ----------
    part : torch.nn.Module
    name : str

    Returns
    -------
    tensor

    Raises
    ------
    ValueError
        If the weights lie on the device ``meta`` and nothing brings them in.

    Examples
    --------
    >>> from specdec_lib.models.fingerprint import weights_of
    >>> weights_of(model.get_output_embeddings()).shape == (4096, model.config.hidden_size)
    True
    """
    packed = getattr(part, "matrix", None) if name == "weight" else None
    if packed is not None:
        return packed.rows(np.arange(packed.shape[0]))
    weights = part.get_parameter(name)
    if weights.device.type != "meta":
        return weights
    hook = getattr(part, "_hf_hook", None)
    stored = next((each.weights_map for each in getattr(hook, "hooks", [hook]) if hasattr(each, "weights_map")), None)
    if stored is None:
        raise ValueError(f"a {name} of {type(part).__name__} lies on the device 'meta': load the checkpoint first")
    return stored[name]
