"""``python -m specdec_lib datastore respond``: an in-distribution store of the target's own responses."""
from __future__ import annotations

import argparse
from pathlib import Path

from specdec_lib import datastores
from specdec_lib import files
from specdec_lib.datastores import TokenStore
from specdec_lib.datastores.tokens import tokenizer_fingerprint, tokenizer_vocabulary


def add_parser(commands: argparse._SubParsersAction) -> None:
    """Add the command to those of ``datastore``."""
    parser = commands.add_parser("respond", help="store a model's own responses to prompts; run again, it continues")
    parser.add_argument("path", type=Path, help="folder of the store")
    parser.add_argument("--model", default="pocket", help="pocket, a directory or a name on the hub (default: %(default)s)")
    parser.add_argument("--device", default="auto", help="where it runs (default: %(default)s)")
    parser.add_argument("--dtype", default="auto", help="as which it is loaded, float32 or bfloat16 say")
    parser.add_argument("--task", nargs="+", default=["code-completion"], help="whose prompts are answered (default: "
                                                                               "code-completion); mechanical tasks "
                                                                               "give those of the training side")
    parser.add_argument("--count", type=int, default=100, help="prompts of each task (default: %(default)s)")
    parser.add_argument("--samples", type=int, default=1, help="responses to each (default: %(default)s)")
    parser.add_argument("--temperature", type=float, default=0.0, help="0 is greedy (default: %(default)s)")
    parser.add_argument("--top-p", type=float, default=1.0, help="nucleus (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of prompts and draws (default: %(default)s)")
    parser.add_argument("--max-new-tokens", type=int, default=128, help="longest response (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=16, help="requests at a time (default: %(default)s)")


def run(options: argparse.Namespace) -> TokenStore:
    """Answer the prompts and build the store; the responses are kept in ``<path>.responses.jsonl``."""
    from specdec_lib.decoding.sampling import Sampling
    from specdec_lib.experiments.made_tasks import TASKS
    from specdec_lib.experiments.responses import generate_responses
    from specdec_lib.experiments.tasks import load_task
    from specdec_lib.models.loading import load_model

    sampling = Sampling(options.temperature, options.top_p, seed=options.seed)
    prompts = []
    for task in options.task:
        side = {"split": "train"} if task in TASKS else {}
        prompts += load_task(task, limit=options.count, seed=options.seed, **side)
    model, tokenizer = load_model(options.model, options.device, options.dtype)
    documents = generate_responses(model, tokenizer, prompts, files.beside(options.path, ".responses.jsonl"), sampling,
                                   options.samples, options.max_new_tokens, options.batch)
    about = {"name": "responses", "model": options.model, "tasks": " ".join(options.task), "samples": options.samples,
             "temperature": options.temperature, "top_p": options.top_p, "seed": options.seed}
    return datastores.build_tokens(
        options.path, documents, tokenizer_vocabulary(tokenizer), fingerprint=tokenizer_fingerprint(tokenizer),
        sources=[about], short_documents="skip", finish=datastores.build_suffix_array)
