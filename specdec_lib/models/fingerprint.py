"""Tell one model's weights from another's, so that what was made for one is not used with the other."""

from __future__ import annotations

import hashlib
import json

import torch
from transformers import PreTrainedModel

#: Values of each parameter that are looked at, spread over all of it.
SAMPLES = 64


@torch.no_grad()
def fingerprint(model: PreTrainedModel) -> str:
    """A checksum of architecture and weights, 64 hexadecimal digits.

    The same for a checkpoint loaded in float32 or bfloat16, on any device, compiled or offloaded: parameters are
    compared in bfloat16, at :data:`SAMPLES` places each.
    """
    digest = hashlib.sha256()
    names = {name.replace("_orig_mod.", ""): name for name, _ in model.named_parameters()}
    for name in sorted(names):
        part, _, last = names[name].rpartition(".")
        weights = weights_of(model.get_submodule(part), last)
        flat = weights.detach().reshape(-1)
        places = torch.linspace(0, flat.numel() - 1, min(SAMPLES, flat.numel()), dtype=torch.float64).long()
        values = flat[places.to(flat.device)].to(torch.bfloat16).float().cpu().numpy()
        digest.update(json.dumps([name, list(weights.shape)]).encode() + values.tobytes())
    return digest.hexdigest()


def weights_of(part: torch.nn.Module, name: str = "weight") -> torch.Tensor:
    """A parameter of a part of a model; of an offloaded one, what accelerate's hook brings in when the part runs."""
    weights = part.get_parameter(name)
    if weights.device.type != "meta":
        return weights
    hook = getattr(part, "_hf_hook", None)
    stored = next((each.weights_map for each in getattr(hook, "hooks", [hook]) if hasattr(each, "weights_map")), None)
    if stored is None:
        raise ValueError(f"a {name} of {type(part).__name__} lies on the device 'meta': load the checkpoint first")
    return stored[name]
