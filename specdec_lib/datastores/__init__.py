"""What drafts are retrieved from: a token store, and indexes over it. Neither faiss nor ray is imported here."""

from specdec_lib.lazy import names_of

__getattr__, __dir__, __all__ = names_of(
    __name__,
    {
        "ArrayStates": "states",
        "DenseIndex": "dense",
        "Match": "suffix_array",
        "ShardedDenseIndex": "sharded",
        "ShardedSuffixIndex": "sharded",
        "States": "states",
        "StoreBusy": "tokens",
        "StoreError": "tokens",
        "SuffixIndex": "suffix_array",
        "TokenStore": "tokens",
        "build_dense_index": "dense",
        "build_from_texts": "build",
        "build_suffix_array": "suffix_array",
        "build_tokens": "build",
        "encoder": "build",
        "open_dense_index": "sharded",
        "open_suffix_index": "sharded",
        "tokenizer_fingerprint": "tokens",
        "tokenizer_vocabulary": "tokens",
    },
)
