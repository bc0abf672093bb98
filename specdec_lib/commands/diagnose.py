"""``diagnose``: predict from recorded answers what the methods would save; needs no model."""

from __future__ import annotations

import json
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specdec_lib.commands import options
from specdec_lib.files import printable, write_atomic

if TYPE_CHECKING:
    from specdec_lib.drafters.pass_costs import PassCosts
    from specdec_lib.experiments.diagnosis import Diagnosis


def _costs(name: str) -> PassCosts:
    from specdec_lib.drafters.pass_costs import CURVES, PassCosts

    if name in CURVES:
        return CURVES[name]
    path = options.expanded_path(name)
    if not path.is_file():
        raise ValueError(f"--costs is {name!r}; expected {', '.join(CURVES)}, or a file that calibrate wrote")
    return PassCosts.load(path)


def _table(found: Diagnosis) -> str:
    rows = [("Method", "Tokens per pass", "Speed-up", "Width")]
    for one in found.predictions:
        rows.append((one.method, f"{one.tokens_per_pass:.2f}", f"{one.speedup:.2f}", f"{one.width:.1f}"))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def _print(text: str) -> None:
    """Print without the joiner in intervals, and what a terminal cannot show as a question mark."""
    encoding = sys.stdout.encoding or "utf-8"
    plain = "\n".join(map(printable, text.replace("\u2060", "").split("\n")))
    typer.echo(plain.encode(encoding, "replace").decode(encoding))


def diagnose(
    answers: Annotated[
        Path, typer.Argument(parser=options.existing_path, metavar="ANSWERS", help="JSON lines: see above.")
    ],
    tokenizer: Annotated[
        str, typer.Option(help="The model's tokenizer: smollm2, pocket, a folder or a name on the hub.")
    ] = "smollm2",
    store: options.Store = None,
    weights: Annotated[
        Path | None,
        typer.Option(parser=options.existing_path, metavar="FILE", help="Weights of one tree, from fit-tree."),
    ] = None,
    costs: Annotated[
        str, typer.Option(help="The cost of a pass by its width: gpu, cpu, server, or a file from calibrate.")
    ] = "cpu",
    former_prices: Annotated[str | None, typer.Option("--prices", hidden=True)] = None,
    to_json: Annotated[Path | None, typer.Option("--json", parser=options.output_file, metavar="FILE")] = None,
    page: Annotated[
        Path | None, typer.Option(parser=options.output_file, metavar="FILE", help="An HTML page, with a figure.")
    ] = None,
) -> None:
    """Predict from recorded answers how much the methods would save.

    Each line of ANSWERS is a JSON object: {"prompt": "...", "answer": "..."}, the prompt as the model was given it; or a chat
    as the APIs of OpenAI, Anthropic or Gemini write it, such as {"messages": [{"role": "user", "content": "..."}, {"role":
    "assistant", "content": "..."}], "tools": [...]}. Each assistant's turn is an answer to what stands before it, tools, their
    results and system texts included.
    """
    from specdec_lib.commands.datastore import load_tokenizer
    from specdec_lib.datastores import SuffixIndex, TokenStore
    from specdec_lib.experiments import diagnosis
    from specdec_lib.experiments.data.answers import read_answers
    from specdec_lib.experiments.other_engines import PROGRAMS, engine_options
    from specdec_lib.report.display import diagnosis_page

    if former_prices is not None:
        typer.echo("--prices is now --costs; the former name goes with version 1.2", err=True)
        costs = former_prices
    named = [path.resolve() for path in (answers, weights, options.expanded_path(costs), to_json, page) if path]
    if len(set(named)) < len(named):
        raise ValueError(
            "two of ANSWERS, --weights, --costs, --json and --page are one file; name another one to write to"
        )
    curve, own = _costs(costs), load_tokenizer(tokenizer)
    left_out: Counter[str] = Counter()
    read = read_answers(answers, own, left_out)
    index = None if store is None else SuffixIndex.open(TokenStore.open(store, own))
    bench = diagnosis.TokensAlone(own, curve, index, weights)
    bench.tree_probabilities  # noqa: B018 (a file that cannot be read is rejected before any work)
    found = replace(diagnosis.diagnose(read, bench, curve), engine_options=engine_options(store))
    # Files first: a terminal may go away, or not print a character.
    if to_json is not None:
        given = {"store": store, "weights": weights}
        about = {"tokenizer": tokenizer, "left_out": +left_out}
        about |= {name: path and str(path) for name, path in given.items()}
        write_atomic(to_json, json.dumps(about | found.about(), indent=1, ensure_ascii=False) + "\n")
    if page is not None:
        write_atomic(page, diagnosis_page.page(found, tokenizer))
    _print(f"{len(found.each):,d} answers of {found.tokens:,d} tokens; tokenizer {tokenizer}, costs {curve.name}\n")
    _print(_table(found) + "\n")
    for what, lines in (+left_out).items():
        _print(f"Left out in {lines} {'line' if lines == 1 else 'lines'}: {what}.")
    for line in (*diagnosis_page.reasons(found), found.advice()):
        _print(line)
    _print("\nHow the methods are switched on:")
    for name, known in found.engine_options.items():
        _print("\n  ".join([name, *(f"{program}: {known.get(program, 'not available')}" for program in PROGRAMS)]))
    _print("All of them, and those that are not listed: generate(model, prompt, drafter) of this library.\n")
    for name, needed in found.needs.items():
        _print(f"{name} is not predicted: it needs {needed}.")
    if found.free:
        _print(f"Drafting counts as free, because these costs have no time for it: {', '.join(found.free)}.")
    for path in filter(None, (to_json, page)):
        _print(f"written to {path}")
