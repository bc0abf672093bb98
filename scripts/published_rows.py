"""Replay every method on the model's recorded answers to the papers' own prompts: one row per output and method.

scripts/record_answers.py records the answers; those that are missing are counted and left out. A method that reads states is
shown those of one pass over prompt and answer. A method that cannot be replayed decodes for real, and only if --method names
it: that takes a GPU, or hours. Rows of each set and way to decode are kept in a folder, and a method whose rows are there is
not run again: delete the folder to count everything again. The rows hold counts, none of the sets' text.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Annotated, Literal

import pandas as pd
import published_prompts
import typer
from own_answers import unpack
from tqdm.auto import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from specdec_lib import Sampling, generate, load_model, methods, paths
from specdec_lib.commands import options
from specdec_lib.datastores import SuffixIndex
from specdec_lib.decoding.contract import Capture, Drafter
from specdec_lib.decoding.generate import end_tokens
from specdec_lib.decoding.loop import Limits, Trace, replay
from specdec_lib.decoding.results import Generation
from specdec_lib.decoding.served_models import context_limit, vocabulary_size
from specdec_lib.decoding.teacher_forcing import record_known
from specdec_lib.drafters import PromptLookup, Rest
from specdec_lib.experiments.data import stores
from specdec_lib.experiments.data.prompt import render
from specdec_lib.experiments.data.reply_texts import chat_replies, mixed_texts
from specdec_lib.experiments.runs import recordings, results, row_files
from specdec_lib.experiments.runs.recorded_runs import Recording, can_be_replayed
from specdec_lib.experiments.workbench import ModelPair, companions
from specdec_lib.models.fingerprint import fingerprint
from specdec_lib.report.display import provenance

LENGTH = 256  # new tokens
#: Sets whose datastore holds code; that of the others holds chats.
CODE = ("humaneval", "humaneval-chat", "mbpp", "codeeditorbench", "codealpaca", "humanevalpack", "editeval")
#: Draft lengths at which a copying method is also run, so that PLD and PLD+ meet at the same one. PLD as published drafts
#: only where so many tokens follow; with partial drafts it copies what is there, as PLD+ does.
OTHER_LENGTHS = {"PLD": 70, "PLD+ (h)": 10, "PLD+ (a)": 10}
REPLAYED = [name for name, method in methods.METHODS.items() if method.drafter.replays != "never"]


def recorded(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, name: str
) -> tuple[dict[Sampling, list[Recording]], int]:
    """The recorded answers to a set by the way they were decoded, and how many prompts lack one."""
    weights = recordings.identity(model) | {"device": "cpu"}
    limits = Limits(LENGTH, end_tokens(model, None), context_limit(model))
    found: dict[Sampling, list[Recording]] = {}
    missing = 0
    for prompt, samplings in published_prompts.load(name, tokenizer):
        for sampling in samplings:
            said: list[str] = []
            for turn in range(len(prompt.turns)):
                ids = render(prompt, tokenizer, said)
                kept = recordings.lookup(recordings.key_of(weights, sampling, ids))
                known = None if kept is None else kept.cut(LENGTH)
                if known is None:
                    missing += 1
                    break
                trace = Trace(ids, known.tokens, sampling, vocabulary_size(model), limits, known.finish_reason)
                found.setdefault(sampling, []).append(Recording(prompt, turn, trace))
                said.append(tokenizer.decode(known.tokens, skip_special_tokens=True))
    return found, missing


def first(own: Sequence[Recording], count: int) -> list[Recording]:
    """All turns of the first prompts of each task."""
    taken: dict[str, set[str]] = {}
    kept = []
    for recording in own:
        prompts = taken.setdefault(recording.task, set())
        if len(prompts) < count:
            prompts.add(recording.prompt.id)
        if recording.prompt.id in prompts:
            kept.append(recording)
    return kept


def with_states(model: PreTrainedModel, recording: Recording, capture: Capture) -> Recording:
    """The recording with what ``capture`` asks for; RecordingError if the model writes another text."""
    if capture == Capture():
        return recording
    trace = recording.trace
    known = recordings.Answer(trace.tokens, trace.finish_reason)
    forced, written = record_known(model, trace.prompt, *known, trace.sampling, LENGTH, capture)
    recordings.compare(model, recording.prompt, trace.prompt, known, written, trace.sampling)
    return replace(recording, trace=forced)


def run(model: PreTrainedModel, recording: Recording, drafter: Drafter) -> Generation:
    """An output with a drafter: replayed where that can be, decoded elsewhere."""
    trace = recording.trace
    if can_be_replayed([recording], drafter):
        return replay(trace, drafter)
    return generate(model, trace.prompt, drafter, trace.sampling, LENGTH, sorted(trace.limits.eos))


def rows_of(model: PreTrainedModel, own: Sequence[Recording], drafters: Mapping[str, Drafter]) -> pd.DataFrame:
    """A row per output and method; ``same``: the output is the recorded one."""
    capture, states = Capture(), methods.states(drafters)
    for drafter in drafters.values():
        drafter.reset()
        if can_be_replayed(own, drafter):
            capture |= drafter.capture
    runs: dict[str, list[Generation]] = {method: [] for method in drafters}
    for recording in tqdm(own, desc=f"{len(drafters)} methods"):
        known = with_states(model, recording, capture)
        for method, drafter in drafters.items():
            if states[method] == "cold":
                drafter.reset()
            runs[method].append(run(model, known, drafter))
    pairs = [pair for each in runs.values() for pair in zip(own, each, strict=True)]
    rows = results.table(own, runs).drop(columns=["kept", "looked_at"])
    return rows.assign(
        temperature=own[0].trace.sampling.temperature,
        top_p=own[0].trace.sampling.top_p,
        prompt_tokens=[len(recording.trace.prompt) for recording, _ in pairs],
        same=[generation.tokens == recording.trace.tokens for recording, generation in pairs],
        commit=provenance.commit()[:12],
    )


def store(kind: str, tokenizer: PreTrainedTokenizerBase, tokens: int) -> SuffixIndex:
    """Python of the standard library and the installed packages, or chats without answers to what is asked here."""
    if kind == "code":
        parts = stores.stdlib_texts(), stores.package_texts()
        texts = stores.Texts(lambda: chain(*parts), stores.key_of(*(part.key for part in parts)))
    else:
        asked = [prompt for name in published_prompts.SETS for prompt, _ in published_prompts.load(name, tokenizer)]
        questions = [text for p in asked for text in (*p.turns, p.meta.get("instruction", p.text))]
        texts = mixed_texts(chat_replies(), questions)
    return stores.text_store(f"published-{kind}", tokenizer, tokens, texts)


def main(
    target: Literal["smollm2", "pocket"] = "smollm2",
    device: options.Device = "auto",
    sets: Annotated[list[str] | None, options.choice(published_prompts.SETS, "may be repeated", "--set")] = None,
    method: Annotated[list[str] | None, options.choice(methods.METHODS, "may be repeated")] = None,
    prompts: Annotated[int | None, options.whole_number("of each task, the first (default: all)")] = None,
    only: Annotated[Literal["greedy", "sampled"] | None, typer.Option(help="which answers (default: all)")] = None,
    seeds: Annotated[
        int, options.whole_number("sampled answers of each prompt and setting, at most")
    ] = published_prompts.SEEDS,
    store_tokens: Annotated[int, options.whole_number("tokens of each datastore, at most")] = 20_000_000,
    dense_tokens: Annotated[int, options.whole_number("tokens whose states DReSD searches")] = 200_000,
    kept: Annotated[Path, options.folder("of what is finished")] = Path("_build/published"),
    out: Annotated[
        Path | None, options.folder("of the rows (default: data/rows, of a GPU data/results/DEVICE)")
    ] = None,
) -> None:
    """Replay every method on the model's recorded answers to the papers' own prompts, and write a row for each."""
    model, tokenizer = load_model(target, device, "float32")
    draft, _ = load_model(f"{target}-draft", device, "float32")
    if out is None:
        on_gpu = model.device.type == "cuda"
        out = paths.DATA / "results" / paths.folder_of(provenance.device_class()) if on_gpu else row_files.FOLDER
    about = {
        "models": {"target": fingerprint(model)},
        "stores": {},
        "key": ["set"],
        "date": str(date.today()),
        "command": f"python scripts/published_rows.py {' '.join(sys.argv[1:])}",
        "commit": provenance.commit(),
        "machine": provenance.machine(),
        "notes": {},
    }
    for folder in (kept, out):
        folder.mkdir(parents=True, exist_ok=True)

    @cache
    def drafters(kind: str) -> dict[str, Drafter]:
        pair = ModelPair(model, draft, tokenizer, dense_tokens=dense_tokens, notes=about["notes"])
        pair.sparse = store(kind, tokenizer, store_tokens)
        pair.notes[f"{kind} tokens"] = pair.sparse.store.count
        names = method or REPLAYED
        further = pair.drafters([name for name in names if name in OTHER_LENGTHS], OTHER_LENGTHS)
        made = pair.drafters(names) | {f"{name}, {OTHER_LENGTHS[name]}": drafter for name, drafter in further.items()}
        if "PLD" in names:
            partial = {length: PromptLookup(3, length, variant="transformers") for length in (10, 70)}
            made |= {f"PLD, partial drafts, {length}": drafter for length, drafter in partial.items()}
        answers = companions(model) / "answers.npz"
        if "REST" in names and answers.is_file():
            texts = [[*row["prompt"], *row["answer"]] for row in unpack(answers)]
            made["REST, own answers"] = Rest(stores.document_store("own-answers", texts, tokenizer))
        if "One tree" in names:
            pair.draft = None  # a comparison in which drafting counts as free must not ask it
            made["One tree, no draft model"] = pair.drafters(["One tree"])["One tree"]
        print(f"left out for lack of something: {pair.notes.get('left out', {})}", flush=True)
        return made

    for name in sets or published_prompts.SETS:
        found, missing = recorded(model, tokenizer, name)
        print(f"{name}: {sum(map(len, found.values()))} answers are recorded, {missing} are not", flush=True)
        for sampling, own in found.items():
            if sampling.seed >= seeds or only == ("sampled" if sampling.greedy else "greedy"):
                continue
            own = first(own, prompts) if prompts else own
            part = f"{name}-{sampling.temperature}-{sampling.top_p}-{sampling.seed}"
            before = row_files.read_if_made(part, kept, target=model)
            rows = pd.DataFrame(columns=["method"]) if before is None else before
            outputs = {(recording.task, recording.prompt.id, recording.turn) for recording in own}
            done = {
                one
                for one, each in rows.groupby("method")
                if set(zip(each.task, each.prompt, each.turn, strict=True)) >= outputs
            }
            left = {
                one: drafter
                for one, drafter in drafters("code" if name in CODE else "chats").items()
                if one not in done and (method or can_be_replayed(own, drafter))
            }
            if left:
                others = rows[~rows.method.isin(list(left))]
                rows = pd.concat([others, rows_of(model, own, left).assign(set=name)], ignore_index=True)
                row_files.write(part, rows, about, kept)
    names = sorted(path.name.removesuffix(".csv.gz") for path in kept.glob("*.csv.gz"))
    parts = [row_files.read_if_made(name, kept, target=model) for name in names]
    rows = [part for part in parts if part is not None]
    if not rows:
        sys.exit("no answer is recorded; run scripts/record_answers.py first")
    path = row_files.write("papers_prompts", pd.concat(rows, ignore_index=True), about, out)
    print(f"{sum(map(len, rows))} rows in {path}")


if __name__ == "__main__":
    typer.run(main)
