"""Small notebooks for the tests of the runner."""

from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from specdec_lib.report.build import check

PARAMETERS = """alpha: float = 0.5         # a share
ks: list[int] = [1, 2]     # lengths
"""


def write_notebook(
    folder: Path,
    code: list[str] | None = None,
    name: str = "01_small",
    prose: str = "Text.",
    tags: tuple[str, ...] = (),
) -> Path:
    """Write a notebook whose last cells are ``code``, with these tags; returns its path."""
    cells = [
        new_markdown_cell("# Small", id="title"),
        new_code_cell("from specdec_lib import report", id="imports"),
        new_code_cell(PARAMETERS.strip(), id="parameters", metadata={"tags": ["parameters"]}),
        new_code_cell("values = report.check_parameters(globals())", id="check"),
        new_markdown_cell(f"## Result\n\n{prose}", id="prose"),
    ]
    sources = ['report.save("01", {"alpha": alpha})'] if code is None else code
    tagged = {"tags": list(tags)} if tags else {}
    cells += [new_code_cell(source, id=f"code{number}", metadata=tagged) for number, source in enumerate(sources)]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    content = new_notebook(cells=cells, metadata={"kernelspec": kernel, "language_info": {"name": "python"}})
    nbformat.validate(content)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.ipynb"
    path.write_text(check.canonical(content), encoding="utf-8")
    return path
