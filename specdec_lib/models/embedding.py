"""Hidden states of many documents: the keys of a dense index (DReSD, section 3.1)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from specdec_lib.datastores.states import States, write_states
from specdec_lib.datastores.tokens import TokenStore, check_vocabulary
from specdec_lib.decoding.checks import whole_number
from specdec_lib.decoding.served_models import (
    base_model,
    check_adapters,
    context_limit,
    decoder_config,
    input_device,
    tokenizer_of,
    vocabulary_size,
)
from specdec_lib.models.fingerprint import fingerprint


@torch.inference_mode()
def last_states(model: PreTrainedModel, documents: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Final hidden states of token sequences, run as one padded batch.

    The state after the final norm, what the language model head reads: the last of transformers'
    ``hidden_states``. The head itself is not run. Padding is on the right, where no token before it sees it.

    Parameters
    ----------
    model : PreTrainedModel
    documents : sequence of int64 arrays of shape (n_i,)

    Returns
    -------
    list of float32 arrays of shape (n_i, d)

    Examples
    --------
    >>> import numpy as np
    >>> from specdec_lib.models.embedding import last_states
    >>> states = last_states(model, [np.array([5, 6, 7]), np.array([8])])
    >>> [len(rows) for rows in states]
    [3, 1]
    """
    base = base_model(model)
    device = input_device(model)
    ids = np.zeros((len(documents), max(map(len, documents))), np.int64)
    for row, tokens in zip(ids, documents, strict=True):
        row[: len(tokens)] = tokens
    out = base(input_ids=torch.from_numpy(ids).to(device), use_cache=False).last_hidden_state
    states = out.float().cpu().numpy()
    return [row[: len(tokens)] for row, tokens in zip(states, documents, strict=True)]


def embed_store(
    model: PreTrainedModel,
    store: TokenStore | str | Path,
    path: str | Path,
    *,
    window: int = 1024,
    **options: Any,
) -> States:
    r"""Compute the final hidden states of a store's tokens, the keys of a dense index (DReSD, section 3.1).

    The state of each token that has one after it, with the position of that next token as its value: ``d`` times 2 or 4 bytes a
    token. An interrupted run continues when it is called again.

    Parameters
    ----------
    model : PreTrainedModel
        In evaluation mode.
    store : TokenStore or path
    path : path
        Folder of the states.
    window : int
        Tokens run together, no more than the model's context; the paper truncates documents at 1,024.
    **options
        As for :func:`~specdec_lib.datastores.states.write_states`.

    Returns
    -------
    States

    Examples
    --------
    >>> from specdec_lib.datastores import build_from_texts
    >>> from specdec_lib.models.embedding import embed_store
    >>> store = build_from_texts(folder / "store", ["x = 1\ny = 2\n"], tokenizer, progress=False)
    >>> states = embed_store(model, store, folder / "states", progress=False)
    >>> len(states) == store.count - 1
    True
    """
    if not isinstance(store, TokenStore):
        store = TokenStore.open(store)
    if any(part.training for part in model.modules()):
        raise ValueError(f"{type(model).__name__} is in training mode, with dropout; call model.eval() first")
    check_adapters(model)
    check_vocabulary(store, vocabulary_size(model), tokenizer_of(model))
    window, limit = whole_number("window", window, 1), context_limit(model)
    if limit is not None and window > limit:
        raise ValueError(f"window is {window}, the model's context {limit}; expected no more than fits")
    return write_states(
        path,
        store,
        partial(last_states, model),
        decoder_config(model).hidden_size,
        model=fingerprint(model),
        window=window,
        about={"compute": f"model ({model.dtype})"},
        **options,
    )
