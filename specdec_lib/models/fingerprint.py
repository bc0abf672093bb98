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
    """A checksum of architecture and weights.

    Parameters
    ----------
    model : PreTrainedModel

    Returns
    -------
    str
        64 hexadecimal digits. The same for a checkpoint loaded in float32 or bfloat16, on any device: parameters are
        compared in bfloat16, at :data:`SAMPLES` places each.
    """
    digest = hashlib.sha256()
    # torch.compile puts a name of its own before those of the parts that it wraps.
    named = {name.replace("_orig_mod.", ""): weights for name, weights in model.named_parameters()}
    for name, weights in sorted(named.items()):
        flat = weights.detach().reshape(-1)
        places = torch.linspace(0, flat.numel() - 1, min(SAMPLES, flat.numel()), dtype=torch.float64).long()
        values = flat[places.to(flat.device)].to(torch.bfloat16).float().cpu().numpy()
        digest.update(json.dumps([name, list(weights.shape)]).encode() + values.tobytes())
    return digest.hexdigest()
