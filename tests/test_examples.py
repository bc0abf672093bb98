"""The examples of the core's docstrings print what they say, and every public name there has one and names its parameters."""

import ast
import doctest
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from specdec_lib import paths

CORE = ("decoding", "drafters", "datastores", "heads", "models")
FILES = [path for core in CORE for path in sorted((paths.PACKAGE / core).glob("*.py"))]
Documented = ast.FunctionDef | ast.ClassDef
#: Modules without examples: the loops of the lean forward, and what needs a GGUF file, the network or a cluster.
WITHOUT = {
    *("lean", "lean_runtime", "packed", "tiles", "gguf", "gguf_tensors", "packed_models"),
    *("smollm2", "gemma3", "ray_cluster", "ray_data"),
}
#: Names without: what needs a GPU, and what only its own package calls, between steps that have one.
NAMES_WITHOUT = {
    *("clock.DeviceClock", "runtime.CudaRecorder"),
    *("attention.settings", "attention.install", "attention.AttentionRows"),
    *("merged_tree.visit_emitted", "merged_tree.judge_sources", "merged_tree.learn"),
    *(
        "build.check_target",
        "dense.check_target",
        "states.check_target",
        "sharded_build.check_target",
        "arrays.npy_header",
    ),
    *("faiss_index.check_lists", "faiss_index.chain", "faiss_index.read", "faiss_index.reduction_of"),
    *("sharded.write_shards", "sharded.Answer", "sharded.dense_slots", "sharded.take_slot"),
    *("sharded_build.ShardJob", "sharded_build.build_here"),
    *("sharded_build.DenseJob", "sharded_build.embed_shard", "sharded_build.index_shard"),
    "loading.check_threads",
    *("one_tree.fit", "one_tree.node_outcomes"),  # the command fit-tree and chapter 8
    "exact_search.ExactIndex",
}
pytestmark = pytest.mark.skipif(paths.ROOT is None, reason="needs a checkout")


def documented(path: Path) -> Iterator[Documented]:
    """Functions, classes and methods of a file."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, Documented):
            yield node


def public(path: Path) -> Iterator[Documented]:
    """Those that the pages of the library list."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, Documented) and not node.name.startswith("_"):
            yield node


def docstring(node: Documented) -> str:
    return ast.get_docstring(node) or ""


def has_example(node: Documented) -> bool:
    return ">>> " in docstring(node)


@pytest.fixture(scope="module")
def names():
    """What the page of the library says that each example assumes."""
    page = (paths.root() / "book" / "api" / "index.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    scope: dict = {}
    exec(compile(block, "book/api/index.md", "exec"), scope)
    scope["folder"].rmdir()
    return scope


OTHERS = [paths.PACKAGE / name for name in ("files.py", "vllm.py")]
WITH_EXAMPLES = [path for path in [*OTHERS, *FILES] if any(map(has_example, documented(path)))]


@pytest.mark.parametrize("path", WITH_EXAMPLES, ids=lambda path: f"{path.parent.name}.{path.stem}")
def test_the_examples_of_a_file_print_what_they_say(path, names, tmp_path):
    failures: list[str] = []
    runner = doctest.DocTestRunner(verbose=False, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    for number, node in enumerate(filter(has_example, documented(path))):
        (folder := tmp_path / str(number)).mkdir()
        example = doctest.DocTestParser().get_doctest(
            docstring(node), names | {"folder": folder}, node.name, str(path), node.body[0].lineno - 1
        )
        runner.run(example, out=failures.append)
    assert not failures, "".join(failures)


def test_every_public_name_of_the_core_has_an_example_unless_it_is_listed_here():
    without = {(path.stem, node.name) for path in FILES for node in public(path) if not has_example(node)}
    assert {file for file, _ in without} >= WITHOUT
    assert {f"{file}.{name}" for file, name in without if file not in WITHOUT} == NAMES_WITHOUT


@pytest.mark.parametrize("package", ["", ".drafters", ".datastores"])
def test_every_name_that_a_package_exports_has_an_example(package):
    module = import_module(f"specdec_lib{package}")
    without = {name for name in module.__all__ if ">>> " not in (getattr(module, name).__doc__ or "")}
    assert without <= {"LAST", "StoreBusy"}, "a number, and an error that takes two processes"


def named_parameters(node: Documented) -> set[str]:
    """Names in the section Parameters."""
    section = re.search(r"^Parameters\n-+\n(.*?)(?=^\w+\n-+$|\Z)", docstring(node), re.DOTALL | re.MULTILINE)
    lines = re.findall(r"^\S.*$", section[1] if section else "", re.MULTILINE)
    return {name.strip().lstrip("*") for line in lines for name in line.partition(" : ")[0].split(",")}


def taken_parameters(node: Documented) -> set[str]:
    """Names that a function, or a class that says how it is made, takes."""
    methods = [part for part in node.body if isinstance(part, ast.FunctionDef) and part.name == "__init__"]
    for function in [node] if isinstance(node, ast.FunctionDef) else methods:
        given = function.args
        every = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
        return {each.arg for each in every if each is not None} - {"self"}
    return set()


def test_what_has_an_example_names_each_of_its_parameters():
    wrong = {}
    for path in [*OTHERS, *FILES]:
        for node in filter(has_example, public(path)):
            # What custom_generate takes besides is refused, with a word on how to call it.
            taken = taken_parameters(node) - ({"called", "given"} if node.name == "custom_generate" else set())
            if taken and taken != named_parameters(node):
                wrong[f"{path.stem}.{node.name}"] = taken ^ named_parameters(node)
    assert wrong == {}
