"""What passes capture, to compare ways of running them."""

from __future__ import annotations

import random

import torch
from transformers import PreTrainedModel

from specdec_lib import Capture, Runtime
from specdec_lib.decoding.target import Target
from specdec_lib.decoding.tree import DraftTree
from tests.families import prompt


def captured(model: PreTrainedModel, runtime: Runtime | None) -> list[torch.Tensor]:
    """States, rows and logits of a prompt, six drafts committed in part, and a few tokens more."""
    capture = Capture(layers=(0, 1, 2), heads=tuple((b, h) for b in range(2) for h in range(4)))
    tree = DraftTree([5, 6, 7, 8, 9, 10, 11], [-1, -1, 0, 1, 3, 2, 4])
    seen, rng = [], random.Random(1)
    with torch.inference_mode(), Target(model, 60, capture, runtime=runtime) as target:
        target.extend(prompt(2, 9))
        for i in range(7):
            draft = tree if i % 2 else DraftTree.chain([3, 4])
            logits = target.verify(rng.randrange(2, 90), draft) if i < 6 else target.extend(prompt(3, 3))
            seen.append(logits.clone())
            if i < 6:
                target.commit(tree.path(i) if i % 2 else [0])
            seen += [target.attention(), *(target.hidden(layer).clone() for layer in capture.layers)]
    return seen
