"""A draft model's vocabulary of its own, cut to frequent tokens of the target's (EAGLE-3; FR-Spec, Zhao et al. 2025)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from specdec_lib.decoding.served_models import remember_tokenizer, token_ids, vocabulary_size
from specdec_lib.files import replacing

#: Beside the weights in the folder of such a draft.
FILE = "vocabulary.safetensors"


class DraftVocabulary:
    """Which tokens of the target a draft model knows (FR-Spec, Zhao et al. 2025).

    The draft's id ``i`` stands for the target's id ``ids[i]``. Every other token of a context is fed as ``unknown`` and
    never drafted: its draft probability is 0, so that rejection sampling over the target's vocabulary stays exact.

    Parameters
    ----------
    ids : sequence of int or int64 tensor of shape (V,)
        Ascending.
    unknown : int, optional
        Row of the draft's embedding for all other tokens; V by default, a row of its own. Rows from V on are never drafted.

    Raises
    ------
    ValueError
        If ``ids`` are not ascending.

    Examples
    --------
    >>> from specdec_lib.models.draft_vocabulary import DraftVocabulary
    >>> known = DraftVocabulary([5, 6, 9])
    >>> known.to_draft([6, 7, 9]), known.to_target([1, 2])
    ([1, 3, 2], [6, 9])
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
        """Values of the draft's ids at the target's.

        Parameters
        ----------
        rows : float tensor of shape (..., V)
        vocabulary : int
            Token ids of the target.
        fill : float
            The value of all others.

        Returns
        -------
        float tensor of shape (..., vocabulary)

        Examples
        --------
        >>> import torch
        >>> from specdec_lib.models.draft_vocabulary import DraftVocabulary
        >>> DraftVocabulary([1, 3]).spread(torch.tensor([0.25, 0.75]), vocabulary=4)
        tensor([0.0000, 0.2500, 0.0000, 0.7500])
        """
        if rows.shape[-1] == vocabulary:
            return rows
        spread = rows.new_full((*rows.shape[:-1], vocabulary), fill)
        return spread.index_copy_(-1, self.ids.to(rows.device), rows)

    def save(self, folder: str | Path) -> None:
        """Write :data:`FILE` into the folder of the draft, for :func:`specdec_lib.load_model` to find."""
        with replacing(Path(folder) / FILE) as aside:
            save_file({"ids": self.ids, "unknown": torch.tensor(self.unknown)}, aside)


def draft_vocabulary(model: PreTrainedModel) -> DraftVocabulary:
    """A draft's vocabulary: that of its folder, else every row of its embedding under the target's own id.

    Parameters
    ----------
    model : PreTrainedModel

    Returns
    -------
    DraftVocabulary

    Examples
    --------
    >>> from specdec_lib.models.draft_vocabulary import draft_vocabulary
    >>> len(draft_vocabulary(draft)), draft_vocabulary(draft).shared
    (4096, True)
    """
    attached = getattr(model, "draft_vocabulary", None)
    if attached is not None:
        return attached
    every = DraftVocabulary(torch.arange(token_ids(model), device="cpu"), 0)
    every.shared = True
    return every


def checked_vocabulary(model: PreTrainedModel, vocabulary: DraftVocabulary) -> DraftVocabulary:
    """A vocabulary, if the model embeds a row for each of its tokens and one for all others.

    Parameters
    ----------
    model : PreTrainedModel
    vocabulary : DraftVocabulary

    Returns
    -------
    DraftVocabulary

    Raises
    ------
    ValueError

    Examples
    --------
    >>> from specdec_lib.models.draft_vocabulary import DraftVocabulary, checked_vocabulary
    >>> len(checked_vocabulary(draft, DraftVocabulary([5, 6, 9])))
    3
    """
    rows = vocabulary_size(model)
    if not 0 <= vocabulary.unknown < rows or len(vocabulary) > rows:
        raise ValueError(
            f"a draft vocabulary of {len(vocabulary)} tokens with row {vocabulary.unknown} for all others does not fit a "
            f"model that embeds {rows}; expected one row per token and one for the others"
        )
    return vocabulary


def load_vocabulary(folder: str | Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Attach the vocabulary that a model's folder holds, if it does, and check that the tokenizer is the model's.

    Parameters
    ----------
    folder : path
    model : PreTrainedModel
    tokenizer : PreTrainedTokenizerBase

    Raises
    ------
    ValueError
        If the folder's vocabulary is damaged, or does not fit the model or the tokenizer.

    Examples
    --------
    >>> from transformers import LlamaForCausalLM
    >>> from specdec_lib.models.draft_vocabulary import DraftVocabulary, load_vocabulary
    >>> own = LlamaForCausalLM(draft.config)
    >>> DraftVocabulary([5, 6, 9]).save(folder)
    >>> load_vocabulary(folder, own, tokenizer)
    >>> own.draft_vocabulary.ids.tolist()
    [5, 6, 9]
    """
    path = Path(folder) / FILE
    if not path.exists():
        return remember_tokenizer(tokenizer, model)
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
