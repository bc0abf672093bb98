"""How the methods are switched on in other programs, as their documentation of November 2026 has it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import Path

PROGRAMS = ("transformers", "vLLM", "SGLang", "llama.cpp")


def _ours(**settings: str) -> str:
    """How vLLM is started with a drafter of this library."""
    config = {"method": "custom_class", "model": "specdec_lib.vllm.Proposer", "num_speculative_tokens": 8}
    given, asked = shlex.quote(json.dumps(settings)), shlex.quote(json.dumps(config))
    return f"SPECDEC_VLLM={given} vllm serve MODEL --speculative-config {asked}"


#: Methods of this library that vLLM has through it alone and that draft from a datastore.
_OURS_IN_VLLM = ("REST", "SAM-Decoding", "One tree")

#: By method: what to write in each program that has it. Where a method or a program is missing, only this library has the
#: method: ``generate(model, prompt, drafter)``, or transformers' ``generate(custom_generate=...)``.
ENGINE_OPTIONS: dict[str, dict[str, str]] = {
    "PLD": {
        "transformers": "model.generate(..., prompt_lookup_num_tokens=10)",
        "vLLM": '--speculative-config \'{"method": "ngram", "num_speculative_tokens": 10, "prompt_lookup_max": 3}\'',
        "SGLang": "--speculative-algorithm NGRAM (a tree from the prompt and earlier outputs; CUDA)",
        "llama.cpp": "llama-server --spec-type ngram-simple",
    },
    "REST": {
        "vLLM": _ours(drafter="REST", store="STORE"),
        "SGLang": "--speculative-algorithm NGRAM --speculative-ngram-external-corpus-path FILE.jsonl (a suffix automaton)",
        "llama.cpp": "llama-server --spec-type ngram-cache --lookup-cache-static FILE (statistics of n-grams)",
    },
    "Lookahead": {"llama.cpp": "the example program llama-lookahead"},
    "SuffixDecoding": {
        "vLLM": '--speculative-config \'{"method": "suffix", "num_speculative_tokens": 32}\' (needs arctic-inference)',
        "SGLang": "--speculative-algorithm NGRAM (a similar tree of earlier outputs)",
    },
    "SpecDec": {
        "transformers": "model.generate(..., assistant_model=draft)",
        "vLLM": '--speculative-config \'{"method": "draft_model", "model": "DRAFT", "num_speculative_tokens": 5}\'',
        "SGLang": "--speculative-algorithm STANDALONE --speculative-draft-model-path DRAFT",
        "llama.cpp": "llama-server --model-draft DRAFT.gguf",
    },
    "SpecDec++": {
        "transformers": "assistant_model=draft with draft.generation_config.assistant_confidence_threshold (stops by the "
        "draft's own probability, not by a trained head)",
        "llama.cpp": "--model-draft DRAFT.gguf --spec-draft-p-min 0.75 (the same; older: --draft-p-min)",
    },
    "EAGLE": {
        "vLLM": '--speculative-config \'{"method": "eagle", "model": "HEAD", "num_speculative_tokens": 5}\'',
        "llama.cpp": "llama-server --model-draft HEAD.gguf --spec-type draft-eagle3 (heads of EAGLE-3)",
    },
    "EAGLE-2": {
        "SGLang": "--speculative-algorithm EAGLE --speculative-eagle-topk 8 --speculative-draft-model-path HEAD"
    },
    "Medusa": {"vLLM": '--speculative-config \'{"method": "medusa", "model": "HEADS", "num_speculative_tokens": 5}\''},
    "SAM-Decoding": {"vLLM": _ours(drafter="SAM-Decoding", store="STORE")},
    "One tree": {"vLLM": _ours(drafter="One tree", store="STORE")},
}


def engine_options(store: str | Path | None) -> Mapping[str, Mapping[str, str]]:
    """:data:`ENGINE_OPTIONS` with the user's datastore where one is drafted from."""
    if store is None:
        return ENGINE_OPTIONS
    own = {name: {"vLLM": _ours(drafter=name, store=str(store))} for name in _OURS_IN_VLLM}
    return {name: known | own.get(name, {}) for name, known in ENGINE_OPTIONS.items()}
