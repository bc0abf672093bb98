"""How the book shows each method: colour and marker in figures, its page, its paper, and the chapters that compare it."""

from __future__ import annotations

from dataclasses import dataclass

from specdec_lib.decoding.checks import one_of

#: Chapters that compare methods, by their numbers.
COMPARISONS = ("01", "04", "06", "07")
#: The look of plain decoding.
PLAIN_COLOR, PLAIN_MARKER = "#7f7f7f", "o"


@dataclass(frozen=True)
class Appearance:
    """A row of :data:`APPEARANCES`."""

    #: Of figures; no two rows share both, and colours are apart for colour-blind readers where that is possible.
    color: str
    marker: str
    #: Its page ``book/methods/<page>.md``; its key in the bibliography.
    page: str
    paper: str
    #: Which of :data:`COMPARISONS` have it in their tables.
    chapters: tuple[str, ...] = COMPARISONS


#: Every method of :data:`specdec_lib.methods.METHODS` by its name, in the book's order. One that is not here has a colour of the
#: palette, no page, and no place in the chapters' tables.
APPEARANCES = {
    "PLD": Appearance("#0072b2", "s", "pld", "saxena2023"),
    "PLD+ (h)": Appearance("#56b4e9", "D", "pld-plus", "somasundaram2025", ("04", "06", "07")),
    "PLD+ (a)": Appearance("#8c6bb1", "^", "pld-plus", "somasundaram2025", ("04", "06", "07")),
    "REST": Appearance("#009e73", "v", "rest", "he2024", ("04", "06", "07")),
    "DReSD": Appearance("#cc79a7", "P", "dresd", "gritta2025", ("06",)),
    "SpecDec": Appearance("#d55e00", "X", "specdec", "leviathan2023"),
    "SpecDec++": Appearance("#e69f00", "*", "specdec-pp", "huang2024", ("06",)),
    "Token Recycling": Appearance("#8c564b", "h", "token-recycling", "luo2025", ("01", "06", "07")),
    "Lookahead": Appearance("#bcbd22", "<", "lookahead", "fu2024", ("07",)),
    "SuffixDecoding": Appearance("#1b7837", ">", "suffix-decoding", "oliaro2025", ("07",)),
    "SAM-Decoding": Appearance("#762a83", "d", "sam-decoding", "hu2024", ("07",)),
    "Medusa": Appearance("#a6761d", "H", "medusa", "cai2024", ("04", "07")),
    "Hydra": Appearance("#66a61e", "8", "hydra", "ankner2024", ("04", "07")),
    "EAGLE": Appearance("#7570b3", "p", "eagle", "li2024", ("04", "07")),
    "EAGLE-2": Appearance("#e7298a", "$2$", "eagle-2", "li2024b", ("07",)),
    "One tree": Appearance("#000000", "$1$", "one-tree", "wang2025", ("06",)),
}


def compared_in(chapter: str) -> tuple[str, ...]:
    """Names of the methods that a chapter compares, in the book's order; ``chapter`` is its number, such as ``"04"``."""
    one_of("chapter", chapter, COMPARISONS)
    return tuple(name for name, row in APPEARANCES.items() if chapter in row.chapters)
