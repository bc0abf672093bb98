"""What brings results to a page: parameters, numbers, tables, figures, the runner and the book.

A notebook needs ``from specdec_lib import report`` and nothing else of this package::

    parameters = report.check_parameters(globals())      # in the cell after the parameters
    report.save("04", {"tokens_per_forward": 2.5})       # in the last cell
    report.Table(frame, name="tab-speed", caption="Speed by method")
"""

from specdec_lib.lazy import names_of

# Loaded on first use, so that a command that needs no figures does not import matplotlib.
__getattr__, __dir__, __all__ = names_of(
    __name__,
    {
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
    },
)
