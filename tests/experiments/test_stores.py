"""Which text the experiments' stores hold, and that each is built once."""

import pytest

from specdec_lib import load_model
from specdec_lib.datastores import StoreBusy
from specdec_lib.experiments import stores
from specdec_lib.experiments.corpus import stdlib_modules


@pytest.fixture(scope="module")
def tokenizer():
    return load_model("pocket")[1]


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path / "cache"))


def test_a_store_holds_its_texts_and_is_opened_the_second_time(tokenizer, monkeypatch):
    texts = ["def f(x):\n    return x\n", "class Stack:\n    pass\n"]
    index = stores.text_store("mine", tokenizer, 10_000, texts)
    assert [tokenizer.decode(index.store.document(i)) for i in range(2)] == texts
    monkeypatch.setattr(stores, "build_from_texts", None)
    assert stores.text_store("mine", tokenizer, 10_000, texts).store.path == index.store.path
    with pytest.raises(TypeError):
        stores.text_store("mine", tokenizer, 9_999, texts)


def test_a_store_that_another_process_is_building_is_waited_for(tokenizer, monkeypatch):
    build, calls = stores.build_from_texts, []

    def busy_first(*args, **kwargs):
        calls.append(args)
        if len(calls) == 1:
            raise StoreBusy("another process builds it")
        return build(*args, **kwargs)

    monkeypatch.setattr(stores, "build_from_texts", busy_first)
    monkeypatch.setattr(stores, "LOOK_SECONDS", 0.0)
    assert len(stores.text_store("mine", tokenizer, 10_000, ["x = 1\n"]).store) == 1 and len(calls) == 2


def test_a_store_of_documents_holds_the_ids_as_they_are(tokenizer):
    index = stores.document_store("answers", [[5, 6, 7], [9], [8, 8]], tokenizer)
    assert [index.store.document(i).tolist() for i in range(len(index.store))] == [[5, 6, 7], [8, 8]]


def test_an_unknown_store_is_refused_by_name(tokenizer):
    with pytest.raises(ValueError, match="store 'web' is unknown; expected one of stdlib, packages, prose"):
        stores.text_store("web", tokenizer, 100)


def test_no_text_of_the_standard_library_store_is_of_a_heldout_module():
    heldout = {module.text for module in stdlib_modules("heldout")}
    assert heldout and not heldout.intersection(stores.stdlib_texts())


def test_packages_leave_out_what_shares_text_with_a_heldout_module_under_any_name(tmp_path):
    heldout = max(stdlib_modules("heldout"), key=lambda module: len(module.text)).text
    lines = heldout[: stores.LARGEST_FILE // 2].splitlines()
    wanted = "".join(f"number_{i} = compute_something_of_our_own({i})\n" for i in range(60))
    texts = {
        "own": wanted,
        "copy": "\n".join(lines),
        "indented": "class Vendored:\n" + "\n".join(f"    {line}" for line in lines[:400]),
        "part": wanted + "\n".join(lines[100:160]),
    }
    for name, text in texts.items():
        (tmp_path / f"zq_{name}.py").write_text(text, encoding="utf-8")
    (tmp_path / "__init__.py").write_text("", encoding="utf-8")
    assert list(stores.package_texts(tmp_path)) == [wanted]
    with pytest.raises(FileNotFoundError, match="no Python files under"):
        stores.package_texts(tmp_path / "none")


def test_package_texts_come_in_one_order_that_does_not_depend_on_the_folder(tmp_path):
    for side in ("a", "b"):
        for i in range(6):
            file = tmp_path / side / f"p{i}" / "zq_own.py"
            file.parent.mkdir(parents=True)
            file.write_text(f"# {i}\n" + "x = 1\n" * 60, encoding="utf-8")
    first, second = (list(stores.package_texts(tmp_path / side)) for side in ("a", "b"))
    assert first == second and first != sorted(first)


def test_a_part_of_a_store_is_its_first_whole_documents(tokenizer):
    documents = [[1, 2, 3], [4, 5], [6, 7, 8, 9]]
    index = stores.document_store("three", documents, tokenizer)
    for tokens, count in ((1, 1), (3, 1), (4, 1), (5, 2), (8, 2), (9, 3), (100, 3)):
        part = stores.first_part(index, tokens).store
        assert [part.document(i).tolist() for i in range(len(part))] == documents[:count]


def test_states_and_dense_index_are_of_their_store_and_made_once(tokenizer, monkeypatch):
    model = load_model("pocket", dtype="float32")[0]
    index = stores.document_store("long", [list(range(5, 1500)), [7, 8, 9]], tokenizer)
    states = stores.dense_states(model, index)
    # Windows cover what lies beyond the first 1,024 tokens; the last token of a document has no continuation.
    assert len(states) == 1494 + 2
    found = stores.dense_index(states, index, dims=16)
    assert found.store.path == index.store.path and found.dims == 16
    monkeypatch.setattr(stores, "build_dense_index", None)
    monkeypatch.setattr(stores, "embed_store", None)
    assert len(stores.dense_states(model, index)) == len(states)
    assert stores.dense_index(states, index, dims=16).path == found.path
