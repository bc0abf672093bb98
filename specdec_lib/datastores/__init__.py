"""What drafts are retrieved from: a token store, and indexes over it. Neither faiss nor ray is imported here."""

from __future__ import annotations

from specdec_lib.datastores.build import build_from_texts, build_tokens, encoder
from specdec_lib.datastores.dense import DenseIndex, build_dense_index
from specdec_lib.datastores.ranks import next_token_reciprocal_rank
from specdec_lib.datastores.reduction import fit_transform
from specdec_lib.datastores.sharded import ShardedDenseIndex, ShardedSuffixIndex, open_dense_index, open_suffix_index
from specdec_lib.datastores.states import ArrayStates, States
from specdec_lib.datastores.store_files import StoreBusy, StoreError
from specdec_lib.datastores.suffix_array import Match, SuffixIndex, build_suffix_array
from specdec_lib.datastores.tokens import TokenStore, tokenizer_fingerprint, tokenizer_vocabulary

__all__ = [
    "ArrayStates",
    "DenseIndex",
    "Match",
    "ShardedDenseIndex",
    "ShardedSuffixIndex",
    "States",
    "StoreBusy",
    "StoreError",
    "SuffixIndex",
    "TokenStore",
    "build_dense_index",
    "build_from_texts",
    "build_suffix_array",
    "build_tokens",
    "encoder",
    "fit_transform",
    "next_token_reciprocal_rank",
    "open_dense_index",
    "open_suffix_index",
    "tokenizer_fingerprint",
    "tokenizer_vocabulary",
]
