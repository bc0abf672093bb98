"""A draft model's vocabulary of its own, cut to frequent tokens of the target's (EAGLE-3; FR-Spec, Zhao et al. 2025)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from specdec_lib.decoding.served_models import know_tokenizer, token_ids, vocabulary_size
from specdec_lib.files import replacing

#: Beside the weights in the folder of such a draft.
FILE = "vocabulary.safetensors"


class DraftVocabulary:
    """Which tokens of the target a draft model knows.

    The draft's id ``i`` stands for the target's id ``ids[i]``. Every other token of a context is fed as ``unknown`` and
    never drafted: its draft probability is 0, so that rejection sampling over the target's vocabulary stays exact.

    ``ids``, of length V, are ascending. ``unknown`` is the row of the draft's embedding for all other tokens; V by default, a row
    of its own. Rows from V on are never drafted.
    """

    #: Whether the draft has every token of the target under the target's own id.
    shared = False

    def __init__(self, ids: Sequence[int] | torch.Tensor, unknown: int | None = None):
        self.ids = torch.as_tensor(ids, device="cpu")
        if self.ids.ndim != 1 or not len(self.ids) or self.ids.dtype != torch.int64:
            raise ValueError(f"ids is {self.ids.dtype} of shape {tuple(self.ids.shape)}; expected int64, shape (V,)")
        if self.ids[0] < 0 or bool((self.ids.diff() < 1).any()):
            raise ValueError("ids are not ascending token ids, 0 or more; sort them and leave repeated ones out")
        self.unknown = len(self.ids) if unknown is None else unknown
        self._ids = self.ids.numpy()
        self.largest = int(self._ids[-1])

    def __len__(self) -> int:
        return len(self.ids)

    def within(self, vocabulary: int) -> DraftVocabulary:
        """Without the ids that a target of so many does not have: rows that pad an embedding, of a draft or of the target."""
        if self.largest < vocabulary:
            return self
        return DraftVocabulary(self.ids[self.ids < vocabulary], self.unknown)

    def to_draft(self, tokens: Sequence[int]) -> list[int]:
        """The ids as which the draft reads tokens of the target."""
        tokens = np.asarray(tokens, np.int64)
        places = np.minimum(np.searchsorted(self._ids, tokens), len(self._ids) - 1)
        return np.where(self._ids[places] == tokens, places, self.unknown).tolist()

    def to_target(self, tokens: Sequence[int]) -> list[int]:
        """The ids of the target for ids of the draft, each below V."""
        return self._ids[np.asarray(tokens, np.int64)].tolist()

    def spread(self, rows: torch.Tensor, vocabulary: int, fill: float = 0.0) -> torch.Tensor:
        """Values of the draft's ids, shape (..., V), at the target's, shape (..., vocabulary); ``fill`` at all others."""
        if rows.shape[-1] == vocabulary:
            return rows
        spread = rows.new_full((*rows.shape[:-1], vocabulary), fill)
        return spread.index_copy_(-1, self.ids.to(rows.device), rows)

    def save(self, folder: str | Path) -> None:
        """Write :data:`FILE` into the folder of the draft, for :func:`specdec_lib.load_model` to find."""
        with replacing(Path(folder) / FILE) as aside:
            save_file({"ids": self.ids, "unknown": torch.tensor(self.unknown)}, aside)


def draft_vocabulary(model: PreTrainedModel) -> DraftVocabulary:
    """A draft's vocabulary: that of its folder, else every row of its embedding under the target's own id."""
    attached = getattr(model, "draft_vocabulary", None)
    if attached is not None:
        return attached
    every = DraftVocabulary(torch.arange(token_ids(model), device="cpu"), 0)
    every.shared = True
    return every


def checked_vocabulary(model: PreTrainedModel, vocabulary: DraftVocabulary) -> DraftVocabulary:
    """The vocabulary, if the model embeds a row for each of its tokens and one for all others; else ValueError."""
    rows = vocabulary_size(model)
    if not 0 <= vocabulary.unknown < rows or len(vocabulary) > rows:
        raise ValueError(
            f"a draft vocabulary of {len(vocabulary)} tokens with row {vocabulary.unknown} for all others does not fit a "
            f"model that embeds {rows}; expected one row a token and one for the others"
        )
    return vocabulary


def load_vocabulary(folder: str | Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Attach the vocabulary that a model's folder holds, if it does, and check that the tokenizer is the model's."""
    path = Path(folder) / FILE
    if not path.exists():
        return know_tokenizer(tokenizer, model)
    try:
        held = load_file(path)
        vocabulary = DraftVocabulary(held["ids"], int(held["unknown"]) if "unknown" in held else None)
    except (SafetensorError, KeyError, ValueError, RuntimeError, OverflowError) as error:
        raise ValueError(f"{path} holds no draft vocabulary ({error}); expected a tensor 'ids'") from None
    if vocabulary.largest >= len(tokenizer):
        raise ValueError(
            f"{path} holds token id {vocabulary.largest}, the tokenizer in its folder has {len(tokenizer)}: save that of the target"
        )
    model.draft_vocabulary = checked_vocabulary(model, vocabulary)
