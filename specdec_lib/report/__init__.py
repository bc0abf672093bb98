"""What brings results to a page: parameters, numbers, tables, figures, the runner and the book.

A notebook needs ``from specdec_lib import report`` and nothing else of this package::

    parameters = report.check_parameters(globals())      # in the cell after the parameters
    report.save("04", {"tokens_per_forward": 2.5})       # in the last cell
    report.Table(frame, name="tab-speed", caption="Speed by method")
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOMES = {
    "check_parameters": "display.session",
    "compared_in": "appearance",
    "evidence": "display.session",
    "evidence_table": "display.session",
    "save": "numbers",
    "Markup": "display.tables",
    "Table": "display.tables",
    "rename_prompt": "display.same_prompt",
    "same_prompt": "display.same_prompt",
    "stepper": "display.stepper",
    "Notice": "display.session",
    "notice": "display.session",
    "provenance_table": "display.session",
    "times_table": "display.session",
    "plots": "plots",
}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    # Loaded on first use, so that a command that needs no figures does not import matplotlib.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = import_module(f"{__name__}.{_HOMES[name]}")
    return home if name == "plots" else getattr(home, name)


def __dir__() -> list[str]:
    return __all__
