"""The sources of the book and the README: what every page must hold before anything is built, and what its code does."""

import ast
import re
from pathlib import Path

import method_examples
import nbformat
import pytest
import readme
import typer

import specdec_lib
from specdec_lib import cli, generate, methods, paths
from specdec_lib.decoding.results import Generation, Step, metrics
from specdec_lib.decoding.tree import DraftTree
from specdec_lib.report import numbers, params, plots
from specdec_lib.report.build import book
from specdec_lib.report.claims import rules
from specdec_lib.report.numbers import Number, NumberError
from tests.families import build, prompt

ROOT = paths.ROOT or Path()
PAGES = sorted((ROOT / "book").glob("**/*.md"))
CORE = ("decoding", "drafters", "datastores", "heads", "models")
pytestmark = pytest.mark.skipif(paths.ROOT is None, reason="needs a checkout")


def test_every_public_name_of_the_core_has_a_docstring():
    """Without one, autodoc leaves the name out of the pages of the library."""
    missing = []
    package = Path(specdec_lib.__file__).parent
    for path in (path for folder in CORE for path in (package / folder).rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        named = [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
        public = [tree, *(node for node in named if not node.name.startswith("_"))]
        missing += [(path.stem, node) for node in public if not ast.get_docstring(node)]
    assert missing == []


def test_every_folder_of_code_is_a_package_so_that_its_page_is_found():
    """A folder without ``__init__.py`` would be missing from the pages of the library, and from a wheel."""
    folders = {path.parent for path in (ROOT / "specdec_lib").rglob("*.py")}
    assert {folder for folder in folders if not (folder / "__init__.py").is_file()} == set()
    index = (ROOT / "book" / "api" / "index.md").read_text(encoding="utf-8")
    assert all(f"   specdec_lib.{core}\n" in index for core in CORE)


def test_every_page_is_in_the_contents_and_has_one_title():
    listed = set(book.toc_files(ROOT / "book" / "_toc.yml"))
    for page in PAGES:
        assert page.relative_to(ROOT / "book").with_suffix("").as_posix() in listed, page
        text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        assert len(re.findall(r"^# ", text, re.MULTILINE)) == 1, page


def test_every_command_that_the_pages_tell_exists():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    text = "\n".join(path.read_text(encoding="utf-8") for path in [*PAGES, *ROOT.glob("README.md")])
    told = set(re.findall(r"^(?:\w+=\S+ )*make ([a-z-]+)", text, re.MULTILINE))
    assert told and told <= targets, told - targets
    named = set(re.findall(r"python -m specdec_lib ([\w-]+)", text))
    known = set(typer.main.get_command(cli.app).commands)
    assert named and named <= known, named - known


def test_every_parameter_that_a_page_names_is_one_of_its_notebook():
    declared = {path.stem[:2]: params.declared_parameters(path) for path in (ROOT / "notebooks").glob("*.ipynb")}
    sources = [*PAGES, *ROOT.glob("README.md"), ROOT / "CHANGELOG.md", *(ROOT / "notebooks").glob("*.ipynb")]
    told = set()
    for path in sources:
        text = path.read_text(encoding="utf-8").partition("\n## [1.0.0]")[
            0
        ]  # what the change log says of older versions stays
        told |= {(path.name, *found) for found in re.findall(r"\b(0\d)\.([a-z_]+)=", text)}
    assert len(told) > 8 and [one for one in told if one[2] not in declared[one[1]]] == []


def run_blocks(name, fence="python", model="pocket", **scope):
    """What the blocks of a page leave behind that are run in order, with a model instead of the book's; and their number."""
    text = (ROOT / name).read_text(encoding="utf-8").replace("smollm2", model)
    blocks = re.findall(rf"^```{fence}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    for block in blocks:
        exec(compile(block, f"{name}: {block.splitlines()[0]}", "exec"), scope)
    return scope, len(blocks)


def test_the_page_on_companions_reads_their_stories():
    scope, count = run_blocks("book/companions.md", r"\{code-cell\} python\n:tags: \[hide-input\]", "smollm2")
    by_name = {row[0]: row for row in scope["rows"]}
    assert count == 3 and {"acceptance", "eagle", "hydra", "medusa"} <= set(by_name)
    assert 0 < by_name["eagle"][5] < by_name["eagle"][4] < 1
    first, *_, last = scope["bought"]
    assert first["depth 1"] < last["depth 1"] == by_name["hydra"][4] and last["depth 4"] == by_name["hydra"][5]


def test_the_example_of_the_glossary_has_the_numbers_that_the_library_gives_it():
    page = (ROOT / "book" / "glossary.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| [123] \| (\d) \| (\d) \| (\d) \|", page, re.MULTILINE)
    steps = [
        Step(DraftTree.chain(range(drafted)), tuple(range(accepted)), (0,) * emitted, 0, 0, 0)
        for drafted, accepted, emitted in (map(int, row) for row in rows)
    ]
    first = 1
    found = metrics([Generation([0] * (first + sum(len(step.tokens) for step in steps)), steps, "length", 1, 0)])
    said = re.findall(r"\{term\}`(\w+)` is \$[^$]*?(\d+) / (\d+)\$", page)
    assert {name for name, *_ in said} == {
        "tokens_per_forward", "mean_accepted_drafts", "acceptance_rate", "discard_rate", "verification_rate"
    }  # fmt: skip
    for name, above, below in said:
        assert found[name] == pytest.approx(int(above) / int(below)), name


@pytest.mark.parametrize("model", ["pocket", pytest.param("smollm2", marks=pytest.mark.realmodel)])
def test_python_of_the_readme_runs_in_order(model, capsys):
    scope, count = run_blocks("README.md", model=model)
    assert count == 2
    assert re.search(r"prompt lookup: \d+\.\d s, \d+\.\d tokens per pass", capsys.readouterr().out)
    # `custom_generate` through transformers gives what generate() gives.
    new = scope["out"][0, len(scope["prompt"]) :].tolist()
    assert new == scope["plain"].tokens[: len(new)]


def test_a_marked_number_is_renewed_and_nothing_else():
    tables = {"04": {"a": Number(1.25, 1.0, 1.5), "n": Number(1234)}}
    text = "One 1.2 and <!--04/a:.1f-->9<!----> of <!--04/n:,d--><!----> or <!--04/n-->x<!---->."
    new = "One 1.2 and <!--04/a:.1f-->1.2 (1.0\u2060–\u20601.5)<!----> of <!--04/n:,d-->1,234<!----> or <!--04/n-->1234<!---->."
    assert readme.renewed(text, tables) == readme.renewed(new, tables) == new
    with pytest.raises(NumberError, match="04/b"):
        readme.renewed("<!--04/b-->1<!---->", tables)


def test_the_readme_and_its_figure_are_those_of_the_committed_tables():
    text = (paths.root() / "README.md").read_text(encoding="utf-8")
    assert len(readme._NUMBER.findall(text)) >= 6
    assert readme.renew(paths.root()) == [], "make readme"
    drawing = (numbers.COMMITTED / "what-reproduces.svg").read_text(encoding="utf-8")
    assert "data/results/cpu/what-reproduces.svg" in text and len(drawing) < 100_000
    # Without a ground of its own it is read on a dark page as on a light one.
    assert "fill: #ffffff" not in drawing


@pytest.fixture(scope="module")
def page():
    """What the blocks of the page leave behind, and what they print."""
    lines: list[str] = []
    table = dict(methods.METHODS)
    try:
        scope, count = run_blocks("book/add-a-method.md", print=lambda *words: lines.append(" ".join(map(str, words))))
        assert count == 4
        yield scope, lines
    finally:
        methods.METHODS.clear()
        methods.METHODS.update(table)


def test_the_page_and_its_drafter_decode_losslessly_and_it_prints_numbers_of_every_method(page):
    scope, lines = page
    assert scope["fast"].tokens == scope["plain"].tokens and scope["fast"].stats["tokens_per_forward"] > 1
    assert re.fullmatch(r"\d\.\d\d tokens per forward pass", lines[0])
    assert [line.partition(":")[0] for line in lines[-3:]] == ["PLD", "SpecDec", "Followers"]
    assert all(line.endswith(" tokens per pass") for line in lines[-3:])
    model, start = build("llama-gqa"), prompt(3, 20)
    drafted = generate(model, start, scope["Followers"](), max_new_tokens=24)
    assert drafted.tokens == generate(model, start, max_new_tokens=24).tokens


def test_a_row_is_compared_and_shown_without_another_line(page):
    named = set(re.findall(r"`(\w+)=", (ROOT / "book" / "add-a-method.md").read_text(encoding="utf-8")))
    assert named - {"capture"} <= set(methods.Method.__dataclass_fields__) and "state" in named
    assert plots.color("Followers") in plots.PALETTE
    assert methods.exact(["Followers", "SpecDec"]) == ("Followers",)
    examples = method_examples.Examples(page[0]["target"], None, page[0]["tokenizer"], max_new_tokens=24)
    assert examples.drafted("Followers").path and examples.drafted("Followers").own


def test_the_blocks_of_the_page_on_claims_judge_its_claim(tmp_path, monkeypatch, capsys):
    text = (ROOT / "book" / "add-a-claim.md").read_text(encoding="utf-8")
    (claim,) = re.findall(r"^```yaml\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    (tmp_path / "my_claim.yml").write_text(claim, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    scope, _ = run_blocks("book/add-a-claim.md")
    assert list(scope["judged"].verdict) == [rules.HOLDS] and "my-claim   holds" in capsys.readouterr().out
    assert scope["number"].low <= scope["number"].value <= scope["number"].high
    # Every field that claims have is explained, and every one that is explained exists.
    named = set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)) | set(re.findall(r"`(\w+)` \(", text))
    assert named | {"note", "headline"} == set(rules.Claim.model_fields)


def test_every_saved_number_is_read_by_a_page_a_claim_or_the_library():
    pages = [path.read_text(encoding="utf-8") for path in (*paths.root().glob("book/**/*.md"), paths.CLAIMS)]
    # Functions of a chapter write keys, as the cells do that save.
    modules = [path for path in paths.PACKAGE.rglob("*.py") if paths.PACKAGE / "chapters" not in path.parents]
    code = [path.read_text(encoding="utf-8") for path in modules]
    for notebook in (paths.root() / "notebooks").glob("*.ipynb"):
        cells = nbformat.read(notebook, as_version=4).cells
        pages += [cell.source for cell in cells if cell.cell_type == "markdown"]
        code += [cell.source for cell in cells if cell.cell_type == "code" and "report.save(" not in cell.source]
    read = set(re.findall(r"\b\d\d/[A-Za-z_]\w*", "\n".join([*pages, *code])))
    read |= {key for claim in rules.load_claims() for one in claim.of_second_model().conditions for key in one.keys}
    named = set(re.findall(r"""["']([A-Za-z_]\w*)["']""", "\n".join(code)))
    saved = {
        f"{chapter}/{key}"
        for chapter, own in numbers.tables().items()
        for key, number in own.items()
        if chapter.isdigit() and not number.measured  # each page shows its times
    }
    assert sorted(key for key in saved - read if key[3:] not in named) == []
