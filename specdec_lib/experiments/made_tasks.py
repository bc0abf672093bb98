"""Input-guided tasks whose right answer is known, made mechanically from code and prose.

Each maker turns one piece of text into the user's turns and the assistant's answers. They stand for the
input-guided tasks of PLD+ (section 5.1: code editing, text editing, summarisation by quotation, multi-turn) where
no download is possible. A maker that cannot use a text returns ``None``.
"""

from __future__ import annotations

import ast
import hashlib
import json
import keyword
import random
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from functools import lru_cache
from pathlib import Path

from specdec_lib import paths
from specdec_lib.experiments import corpus, edit_tasks
from specdec_lib.experiments.corpus import Module, Snippet, definitions, paragraphs, stdlib_modules
from specdec_lib.experiments.edit_tasks import Exchange
from specdec_lib.experiments.prompt import Prompt
from specdec_lib.files import write_atomic

#: Name of each task and what it asks.
TASKS: dict[str, str] = {
    "code-completion": "continue a module of the standard library",
    "rename": "give a name in a piece of code another name",
    "remove-docstring": "write a function again without its docstring",
    "quote-lines": "quote the lines that contain a word",
    "replace-word": "replace a word in a paragraph",
    "outline": "list the definitions of a piece of code",
    "complete": "continue a quotation from a piece of code",
    "two-turn": "rename in a first turn, rename again in a second",
    **edit_tasks.TASKS,
}
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# The builtins of Python 3.11, without what the site module adds. Written out: those of the running interpreter depend on its
# version, and a notebook's kernel adds some, so that prompts would differ from place to place.
_BUILTINS = frozenset(
    """
    ArithmeticError AssertionError AttributeError BaseException BaseExceptionGroup BlockingIOError
    BrokenPipeError BufferError BytesWarning ChildProcessError ConnectionAbortedError ConnectionError
    ConnectionRefusedError ConnectionResetError DeprecationWarning EOFError Ellipsis EncodingWarning
    EnvironmentError Exception ExceptionGroup False FileExistsError FileNotFoundError FloatingPointError
    FutureWarning GeneratorExit IOError ImportError ImportWarning IndentationError IndexError InterruptedError
    IsADirectoryError KeyError KeyboardInterrupt LookupError MemoryError ModuleNotFoundError NameError None
    NotADirectoryError NotImplemented NotImplementedError OSError OverflowError PendingDeprecationWarning
    PermissionError ProcessLookupError RecursionError ReferenceError ResourceWarning RuntimeError RuntimeWarning
    StopAsyncIteration StopIteration SyntaxError SyntaxWarning SystemError SystemExit TabError TimeoutError True
    TypeError UnboundLocalError UnicodeDecodeError UnicodeEncodeError UnicodeError UnicodeTranslateError
    UnicodeWarning UserWarning ValueError Warning ZeroDivisionError __build_class__ __debug__ __doc__ __import__
    __loader__ __name__ __package__ __spec__ abs aiter all anext any ascii bin bool
    breakpoint bytearray bytes callable chr classmethod compile complex delattr dict dir divmod enumerate eval
    exec filter float format frozenset getattr globals hasattr hash hex id input int isinstance issubclass iter
    len list locals map max memoryview min next object oct open ord pow print property range repr reversed round
    set setattr slice sorted staticmethod str sum super tuple type vars zip
""".split()
)
_KEYWORDS = frozenset(keyword.kwlist) | _BUILTINS | {"self", "cls"}
_COMMON = frozenset("the a an of to in is and or for be by on it as at are with that this from not if".split())


def _names(text: str, least: int) -> list[str]:
    counts = Counter(w for w in _WORD.findall(text) if w not in _KEYWORDS and len(w) > 2)
    return sorted(w for w, c in counts.items() if c >= least)


def _substitute(text: str, old: str, new: str) -> str:
    return re.sub(rf"\b{re.escape(old)}\b", new, text)


def _other_name(rng: random.Random, text: str, pool: list[str]) -> str:
    while True:
        name = rng.choice(pool)
        if not re.search(rf"\b{re.escape(name)}\b", text):
            return name


def rename(text: str, rng: random.Random, pool: list[str]) -> Exchange | None:
    """Rename one identifier that occurs at least twice."""
    names = _names(text, 2)
    if not names:
        return None
    old = rng.choice(names)
    new = _other_name(rng, text, pool)
    return (f"Rename `{old}` to `{new}`.\n\n{text}",), (_substitute(text, old, new),)


def remove_docstring(text: str, rng: random.Random, pool: list[str]) -> Exchange | None:
    """Drop the docstring of the outermost function; the rest is unchanged."""
    try:
        node = ast.parse(text).body[0]
    except (SyntaxError, ValueError, IndexError):
        return None
    body = getattr(node, "body", [])
    if not isinstance(node, ast.FunctionDef) or ast.get_docstring(node) is None or len(body) < 2:
        return None
    lines = text.split("\n")
    first, last = body[0].lineno, body[0].end_lineno
    if body[0].lineno == node.lineno or body[1].lineno <= last:
        return None
    answer = "\n".join(lines[: first - 1] + lines[last:])
    return (f"Remove the docstring.\n\n{text}",), (answer,)


def quote_lines(text: str, rng: random.Random, pool: list[str]) -> Exchange | None:
    """Quote, in order, each line that contains a given word."""
    words = [w for w in _names(text, 2) if 2 <= sum(bool(re.search(rf"\b{w}\b", s)) for s in text.split("\n")) <= 8]
    if not words:
        return None
    word = rng.choice(words)
    lines = [s for s in text.split("\n") if re.search(rf"\b{word}\b", s)]
    return (f"Quote the lines with `{word}`.\n\n{text}",), ("\n".join(lines),)


def replace_word(text: str, rng: random.Random, pool: list[str]) -> Exchange | None:
    """Replace each occurrence of a word of a paragraph."""
    words = sorted({w for w in _WORD.findall(text) if len(w) > 2 and w.lower() not in _COMMON})
    if not words:
        return None
    old = rng.choice(words)
    new = _other_name(rng, text, pool)
    return (f"Replace `{old}` by `{new}`.\n\n{text}",), (_substitute(text, old, new),)


def outline(text: str, rng: random.Random, pool: list[str]) -> Exchange | None:
    """List the ``class`` and ``def`` lines."""
    lines = [s for s in text.split("\n") if re.match(r"\s*(async )?(def|class)\b", s)]
    if len(lines) < 2:
        return None
    return (f"List the definitions.\n\n{text}",), ("\n".join(lines),)


def complete(text: str, rng: random.Random, pool: list[str]) -> Exchange | None:
    """Continue the quotation that starts with the given beginning of a line, to the end of the text."""
    lines = text.split("\n")
    starts = [i for i in range(1, len(lines) - 1) if len(lines[i].strip()) > 12 and text.count(lines[i]) == 1]
    if not starts:
        return None
    i = rng.choice(starts)
    return (f"Continue from the line `{lines[i].strip()}`.\n\n{text}",), ("\n".join(lines[i + 1 :]),)


def two_turn(text: str, rng: random.Random, pool: list[str]) -> Exchange | None:
    """Two renames, the second of another name, on the first one's answer."""
    names = _names(text, 2)
    if len(names) < 2 or len(text) > 600:
        return None
    old, other = rng.sample(names, 2)
    new = _other_name(rng, text, pool)
    newer = _other_name(rng, text + " " + new, pool)
    first = _substitute(text, old, new)
    second = _substitute(first, other, newer)
    return (f"Rename `{old}` to `{new}`.\n\n{text}", f"Now rename `{other}` to `{newer}`."), (first, second)


Maker = Callable[[str, random.Random, list[str]], Exchange | None]
#: Maker of each chat task, and the kind of :func:`materials` that it works on.
MAKERS: dict[str, tuple[Maker, str]] = {
    "rename": (rename, "code"),
    "remove-docstring": (remove_docstring, "code"),
    "quote-lines": (quote_lines, "code"),
    "replace-word": (replace_word, "prose"),
    "outline": (outline, "code"),
    "complete": (complete, "code"),
    "two-turn": (two_turn, "code"),
    **{name: (maker, "code") for name, maker in edit_tasks.MAKERS.items()},
}
#: Length in characters of the pieces of text that tasks are made from.
CODE_CHARS = (160, 800)
PROSE_CHARS = (120, 600)


def materials(modules: Iterable[Module]) -> dict[str, list[Snippet]]:
    """Distinct pieces of code and of prose in ``modules``, in order."""
    modules = list(modules)
    code = {s.text: s for m in modules for s in definitions(m, *CODE_CHARS)}
    prose = {s.text: s for m in modules for s in paragraphs(m, *PROSE_CHARS)}
    return {"code": list(code.values()), "prose": list(prose.values())}


def name_pool(snippets: Iterable[Snippet]) -> list[str]:
    """Identifiers of 3 to 16 characters that occur in ``snippets``, in alphabetical order."""
    words = {w for s in snippets for w in _WORD.findall(s.text)}
    return sorted(w for w in words - _KEYWORDS if 3 <= len(w) <= 16)


@lru_cache(maxsize=2)
def _split_materials(split: str) -> tuple[dict[str, list[Snippet]], list[str]]:
    # Parsing the whole library takes seconds, in each of the processes that make a book.
    modules = stdlib_modules(split)
    made_by = [Path(file).read_text(encoding="utf-8") for file in (corpus.__file__, __file__)]
    read = [f"{module.name}\n{module.text}" for module in modules]
    key = hashlib.sha256("\0".join([sys.version, *made_by, *read]).encode()).hexdigest()
    path = paths.cache() / f"pieces-{split}-{key[:16]}.json"
    if not path.is_file():
        snippets = materials(modules)
        kept = {kind: [(piece.module, piece.text) for piece in pieces] for kind, pieces in snippets.items()}
        write_atomic(path, json.dumps({"pieces": kept, "names": name_pool(snippets["code"])}))
    held = json.loads(path.read_text(encoding="utf-8"))
    return {kind: [Snippet(*piece) for piece in pieces] for kind, pieces in held["pieces"].items()}, held["names"]


def _completions(n: int, rng: random.Random, split: str, task: str) -> list[Prompt]:
    # Only modules that are not tests: a reader completes library code, and tests repeat themselves.
    modules = [m for m in stdlib_modules(split) if not m.name.startswith("test.") and len(m.text) > 4000]
    # Each piece starts with a function of the module's top level and leaves room for its continuation.
    places = [
        (module, match.start() + 1)
        for module in modules
        for match in re.finditer(r"\n(?=def )", module.text)
        if match.start() + 1600 <= len(module.text)
    ]
    rng.shuffle(places)
    out: list[Prompt] = []
    for module, start in places[:n]:
        end = module.text.index("\n", start + rng.randrange(300, 900)) + 1
        out.append(
            Prompt(
                id=f"{task}-{len(out)}",
                task=task,
                turns=(module.text[start:end],),
                chat=False,
                reference=module.text[end : end + 600],
                meta={"module": module.name},
            )
        )
    return out


def _exchanges(n: int, rng: random.Random, split: str, task: str) -> list[Prompt]:
    maker, kind = MAKERS[task]
    snippets, pool = _split_materials(split)
    pieces = list(snippets[kind])
    rng.shuffle(pieces)
    out: list[Prompt] = []
    shown = set()
    for piece in pieces:
        if len(out) == n:
            break
        made = maker(piece.text, rng, pool)
        given = made[0][0].partition("\n\n")[2] if made is not None else ""
        if made is not None and given not in shown:  # two functions may share their signature and docstring
            turns, answers = made
            shown.add(given)
            out.append(
                Prompt(
                    id=f"{task}-{len(out)}",
                    task=task,
                    turns=turns,
                    reference=answers[-1],
                    meta={"module": piece.module, "answers": answers},
                )
            )
    return out


def prompts(task: str, n: int, seed: int = 0, split: str = "heldout") -> list[Prompt]:
    """Make ``n`` prompts of a mechanical task of :data:`TASKS`, each from another piece of the standard library's side
    ``split``.

    ``reference`` is the right answer to the last turn; ``meta["answers"]`` those to all turns. ValueError if the task
    is unknown or the modules have fewer than ``n`` usable pieces of text.
    """
    if task not in TASKS:
        raise ValueError(f"task is {task!r}; expected one of {', '.join(TASKS)}")
    if n < 0:
        raise ValueError(f"n is {n}; expected 0 or more prompts")
    rng = random.Random(f"{task}/{seed}")
    out = _completions(n, rng, split, task) if task == "code-completion" else _exchanges(n, rng, split, task)
    if len(out) < n:
        raise ValueError(f"n is {n}, but the {split} modules give only {len(out)} prompts of {task!r}; ask for fewer")
    return out
