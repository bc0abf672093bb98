"""The version is one everywhere, and an installed copy has its files and loads nothing of the extras."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from specdec_lib import __version__, paths

pytestmark = pytest.mark.skipif(paths.ROOT is None, reason="needs a checkout")
ROOT = paths.ROOT or Path()
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = PYPROJECT["project"]


def carried() -> set[Path]:
    """The files of data/ that a wheel carries."""
    settings = PYPROJECT["tool"]["setuptools"]
    assert settings["package-dir"] == {"specdec_lib._data": "data"} and paths.DATA == ROOT / "data"
    found = {file for pattern in settings["package-data"]["specdec_lib._data"] for file in paths.DATA.glob(pattern)}
    return {file for file in found if file.is_file()}


def test_the_version_is_the_same_everywhere_and_the_changelog_knows_it():
    version = PROJECT["version"]
    assert __version__ == version
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))["version"] == version
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    sections = re.findall(r"^## \[(.+?)\]( - \d{4}-\d\d-\d\d)?$", changes, re.MULTILINE)
    released = [section for section in sections if section[0] != "Unreleased"]
    assert released[0][0] == version and released[0][1]


def call(site: Path, folder: Path, *commands: str) -> subprocess.CompletedProcess[str]:
    """Run commands of the installed copy in one process, far from the checkout and without it on the path."""
    program = (
        "import sys; site, root = sys.argv[1:3]\n"
        "sys.meta_path[:] = [f for f in sys.meta_path if 'editable' not in repr(f)]\n"
        "sys.path[:] = [site, *(p for p in sys.path if p not in ('', root))]\n"
        "import specdec_lib, specdec_lib.__main__ as command\n"
        "assert specdec_lib.__file__.startswith(site), specdec_lib.__file__\n"
        "sys.exit(any(command.main(words.split()) for words in sys.argv[3:]))"
    )
    variables = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "SPECDEC_CACHE", "SPECDEC_DATASETS")}
    command = [sys.executable, "-c", program, str(site), str(ROOT), *commands]
    return subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.slow
def test_an_installed_copy_has_every_file_of_the_pocket_models_and_works_outside_of_the_checkout(tmp_path):
    """The files of a wheel are copied by hand, which needs neither a network nor a second torch."""
    assert carried() >= {file for file in paths.POCKET.rglob("*") if file.is_file()}
    site, folder = tmp_path / "site", tmp_path / "elsewhere"
    folder.mkdir()
    shutil.copytree(ROOT / "specdec_lib", site / "specdec_lib", ignore=shutil.ignore_patterns("__pycache__"))
    for file in carried():
        target = site / "specdec_lib" / "_data" / file.relative_to(paths.DATA)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)
    (folder / "a.txt").write_text("def f(x):\n    return x\n", encoding="utf-8")
    built, dense = "datastore build store a.txt --tokenizer pocket", "datastore dense store --model pocket --dims 4"
    done = call(site, folder, built, dense)
    assert done.returncode == 0 and "8 states" in done.stdout, done.stdout + done.stderr


#: What only the book, a dense index or a cluster needs, and which takes a second and more to import.
HEAVY = {
    "pandas", "matplotlib", "papermill", "nbformat", "nbclient", "jupyter_client", "jupyter_book", "IPython",
    "sphinx", "faiss", "ray",
}  # fmt: skip
PUBLIC = (
    "specdec_lib", "specdec_lib.drafters", "specdec_lib.datastores", "specdec_lib.heads.acceptance",
    "specdec_lib.heads.induction", "specdec_lib.heads.training", "specdec_lib.models.loading",
    "specdec_lib.models.embedding", "specdec_lib.decoding.generate", "specdec_lib.decoding.transformers_generate",
)  # fmt: skip


def loaded_by(*imports: str) -> list[list[str]]:
    """Every module that is there after each of some imports, made one after the other."""
    program = "import sys\n" + "\n".join(f"{each}\nprint(*sys.modules)" for each in imports)
    command = [sys.executable, "-c", program]
    run = subprocess.run(command, cwd=paths.PACKAGE.parent, capture_output=True, text=True, timeout=300, check=True)
    return [line.split() for line in run.stdout.splitlines()]


@pytest.mark.slow
def test_what_a_user_imports_loads_nothing_of_the_extras_and_a_drafter_not_the_others_and_their_stores():
    loaded, all_loaded = loaded_by("from specdec_lib.drafters import PromptLookup", "import " + ", ".join(PUBLIC))
    assert not HEAVY & set(all_loaded)
    own = [name for name in loaded if name.startswith("specdec_lib")]
    assert "specdec_lib.drafters.prompt_lookup" in own and len(own) <= 20
    assert not [name for name in loaded if name.startswith(("faiss", "numba", "specdec_lib.datastores"))]


def test_every_script_and_benchmark_finds_what_it_imports():
    programs = [path for folder in ("scripts", "benchmarks") for path in sorted((paths.root() / folder).glob("*.py"))]
    assert len(programs) > 20
    reads = f"import runpy, sys\nsys.path[:0] = {[str(paths.root()), str(paths.root() / 'scripts')]}\n"
    runs = "\n".join(f"runpy.run_path({str(path)!r}, run_name='imported')" for path in programs)
    run = subprocess.run([sys.executable, "-c", reads + runs], capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
