"""Small notebooks for the tests of the runner."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

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
    tags: Mapping[int, str] = MappingProxyType({}),
) -> Path:
    """Write a notebook whose last cells are ``code``; ``tags`` has tags of these by their number. Returns its path."""
    cells = [
        new_markdown_cell("# Small", id="title"),
        new_code_cell("from specdec_lib import report", id="imports"),
        new_code_cell(PARAMETERS.strip(), id="parameters", metadata={"tags": ["parameters"]}),
        new_code_cell("values = report.check_parameters(globals())", id="check"),
        new_markdown_cell(f"## Result\n\n{prose}", id="prose"),
    ]
    sources = ['report.save("01", {"alpha": alpha})'] if code is None else code
    tagged = {number: {"tags": [tag]} for number, tag in tags.items()}
    cells += [new_code_cell(each, id=f"code{i}", metadata=tagged.get(i, {})) for i, each in enumerate(sources)]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    content = new_notebook(cells=cells, metadata={"kernelspec": kernel, "language_info": {"name": "python"}})
    nbformat.validate(content)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.ipynb"
    path.write_text(check.canonical(content), encoding="utf-8")
    return path
