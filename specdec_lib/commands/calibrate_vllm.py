"""``calibrate-vllm``: what passes take in vLLM by requests and drafted tokens, for proposers that choose their draft's length.

Nothing of this library is imported here: where numba is loaded before an engine's worker starts, vLLM 0.32 ends with an error.
"""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Annotated

import typer

from specdec_lib.commands import options

SIZES = (1, 2, 4, 8, 16, 32)


def calibrate_vllm(
    model: Annotated[str, typer.Argument(help="The model as vllm serve takes it: a folder or a name.")],
    out: Annotated[Path, options.OutputFile],
    batch: Annotated[list[int] | None, options.whole_number("Requests at once; may be given several times.")] = None,
    tokens: Annotated[int, options.whole_number("Most drafted tokens of a request.")] = 8,
    context: Annotated[int, options.whole_number("Tokens of each request's prompt.")] = 256,
    repeats: Annotated[int, options.whole_number("Timed passes of each kind.", 3)] = 24,
    engine: Annotated[str, typer.Option(help="Further arguments of vllm.LLM, as a JSON object.")] = "{}",
) -> None:
    """Measure in vLLM how long passes take, by requests and drafted tokens."""
    given, sizes = json.loads(engine), batch or SIZES
    if not isinstance(given, dict):
        raise ValueError(f'--engine is {engine}; expected a JSON object such as {{"dtype": "float32"}}')
    from vllm import LLM, SamplingParams

    os.environ.pop("OMP_WAIT_POLICY", None)  # the engine's threads wait as they do in vllm serve
    os.environ["SPECDEC_VLLM"] = json.dumps({"measure": str(out.resolve())})
    new = 7 * repeats
    speculative = {
        "method": "custom_class",
        "model": "specdec_lib.vllm.Proposer",
        "num_speculative_tokens": tokens,
    }
    needed = {"max_num_seqs": max(sizes), "max_model_len": context + new * 2 + 2 * tokens}
    served = LLM(model, speculative_config=speculative, **(needed | given))
    drawn = random.Random(0)
    ids = sorted(served.get_tokenizer().get_vocab().values())
    sampling = SamplingParams(temperature=0, max_tokens=new, ignore_eos=True)
    for size in sizes:
        asked = [{"prompt_token_ids": drawn.choices(ids, k=context)} for _ in range(size)]
        served.generate(asked, sampling, use_tqdm=False)
    for size, latencies in json.loads(out.read_text(encoding="utf-8"))["batches"].items():
        typer.echo(
            f"{size:>4} requests: " + "  ".join(f"+{n}: {1000 * latency:.1f} ms" for n, latency in latencies.items())
        )
    typer.echo(f"written to {out}")
