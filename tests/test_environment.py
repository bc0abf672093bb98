"""The files that describe the environment agree, and name what the project needs."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from specdec_lib import paths

pytestmark = pytest.mark.skipif(paths.ROOT is None, reason="needs a checkout")
ROOT = paths.ROOT or Path()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = {name: [Requirement(text) for text in texts] for name, texts in PROJECT["optional-dependencies"].items()}
DEPENDENCIES = [Requirement(text) for text in PROJECT["dependencies"]]


def declared() -> dict[str, Requirement]:
    everything = DEPENDENCIES + [requirement for texts in EXTRAS.values() for requirement in texts]
    return {canonicalize_name(requirement.name): requirement for requirement in everything}


def conda() -> tuple[list[str], list[str]]:
    content = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    (pip,) = (entry["pip"] for entry in content["dependencies"] if isinstance(entry, dict))
    return [entry for entry in content["dependencies"] if isinstance(entry, str)], pip


def test_the_conda_file_brings_python_pip_and_the_project_with_its_extras():
    packages, pip = conda()
    match = re.fullmatch(r"-e \.\[(.+)\]", pip[0])
    assert len(pip) == 1 and match, pip
    assert set(match[1].split(",")) == set(EXTRAS) - {"gpu", "ray", "bench"}
    assert [re.split(r"[<>=]", package)[0] for package in packages] == ["python", "pip"]


def test_the_makefile_and_the_conda_file_install_the_same_extras():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert f"EXTRAS ?= {re.search(r'.(book[^]]*)', conda()[1][0])[1]}" in makefile


def test_every_pinned_version_is_one_that_the_project_allows():
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and not line.startswith("#")]
    pins = {canonicalize_name(pin.name): pin for pin in map(Requirement, lines)}
    assert str(pins["torch"].specifier) == "==2.13.0"
    for name, pin in pins.items():
        (version,) = (clause.version for clause in pin.specifier)
        if name in declared():
            assert version in declared()[name].specifier, f"{name}: {version} is not within {declared()[name]}"


def test_every_package_that_the_code_imports_is_declared():
    modules = {
        "yaml": "pyyaml",
        "faiss": "faiss-cpu",
        "IPython": "ipykernel",
        "matplotlib_inline": "ipykernel",
        "jupyter_client": "nbclient",
        "cycler": "matplotlib",
        "importlinter": "import-linter",
        "markdown_it": "jupyter-book",
        "myst_parser": "jupyter-book",
    }
    own = {"specdec_lib", "tests", "benchmarks", "setuptools", *sys.stdlib_module_names}
    own |= {path.stem for folder in ("tests", "scripts") for path in (ROOT / folder).rglob("*.py")}
    for path in [*(ROOT / "specdec_lib").rglob("*.py"), *(ROOT / "tests").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module]
            for name in {name.split(".")[0] for name in names} - own:
                assert canonicalize_name(modules.get(name, name)) in declared(), f"{path.name} imports {name}"


def test_the_oldest_transformers_that_is_declared_is_the_one_that_is_tested():
    floor = str(declared()["transformers"].specifier).removeprefix(">=")
    assert f"transformers=={floor}.*" in (ROOT / "Makefile").read_text(encoding="utf-8")


def test_a_wheel_carries_every_file_of_the_pocket_models():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    assert settings["package-dir"] == {"specdec_lib._data": "data"} and paths.DATA == ROOT / "data"
    carried = {file for pattern in settings["package-data"]["specdec_lib._data"] for file in paths.DATA.glob(pattern)}
    files = {file for file in paths.POCKET.rglob("*") if file.is_file()}
    assert files and files <= carried


def test_the_version_is_the_same_everywhere_and_the_changelog_knows_it():
    import specdec_lib

    version = PROJECT["version"]
    assert specdec_lib.__version__ == version
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))["version"] == version
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    sections = re.findall(r"^## \[(.+?)\]( - \d{4}-\d\d-\d\d)?$", changes, re.MULTILINE)
    released = [section for section in sections if section[0] != "Unreleased"]
    assert released[0][0] == version and released[0][1]


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """What the wheel puts beside other packages, as the settings of the build say: no network, no second torch."""
    site = tmp_path_factory.mktemp("site")
    skipped = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "specdec_lib", site / "specdec_lib", ignore=skipped)
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    for pattern in settings["package-data"]["specdec_lib._data"]:
        for file in paths.DATA.glob(pattern):
            if file.is_file():
                target = site / "specdec_lib" / "_data" / file.relative_to(paths.DATA)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, target)
    return site


def call(site: Path, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the command line of the installed copy, far from the checkout and without it on the path."""
    program = (
        "import sys; site, root = sys.argv[1:3]\n"
        "sys.meta_path[:] = [f for f in sys.meta_path if 'editable' not in repr(f)]\n"
        "sys.path[:] = [site, *(p for p in sys.path if p not in ('', root))]\n"
        "import specdec_lib, specdec_lib.__main__ as command\n"
        "assert specdec_lib.__file__.startswith(site), specdec_lib.__file__\n"
        "sys.exit(command.main(sys.argv[3:]))"
    )
    variables = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "SPECDEC_CACHE", "SPECDEC_DATASETS")}
    return subprocess.run(
        [sys.executable, "-c", program, str(site), str(ROOT), *words],
        cwd=folder,
        env=variables,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_an_installed_copy_works_outside_of_the_checkout(installed, tmp_path):
    (tmp_path / "a.txt").write_text("def f(x):\n    return x\n", encoding="utf-8")
    assert call(installed, tmp_path, "--help").returncode == 0
    assert call(installed, tmp_path, "datastore", "build", "store", "a.txt").returncode == 0
    done = call(installed, tmp_path, "datastore", "dense", "store", "--dims", "4")
    assert done.returncode == 0 and "8 states" in done.stdout, done.stdout + done.stderr
