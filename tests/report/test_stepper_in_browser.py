"""The viewer of a generation, as a reader's browser runs them: keys, a phone, no network."""

import pytest

from specdec_lib import DraftTree
from specdec_lib.drafters.pass_prices import PassPrices
from specdec_lib.report.display import stepper
from tests.report.browser import open_browser, visit
from tests.report.display.test_stepper_data import Letters, points
from tests.report.display.test_stepper_data import run as made
from tests.report.display.test_stepper_data import step as made_step

pytestmark = pytest.mark.browser


def run(*steps):
    return made(*(made_step(tree, path, tokens) for tree, path, tokens in steps))


FORK = DraftTree(points("ydz"), [-1, -1, 1]).annotated(scores=[0.25, 0.5, 0.12], sources=["store", "prompt", "store"])
DRAFTED = run((DraftTree.chain(points("bxx")), [0], "bc"), (FORK, [1, 2], "dze"), (DraftTree.chain([]), [], "f"))
PLAIN = run(*((DraftTree.chain([]), [], letter) for letter in "bcdzef"))
PRICES = [PassPrices({1: 1.0, 4: 2.0}, step=0.5, name="this machine"), PassPrices({1: 1.0, 4: 1.0}, name="a free pass")]


@pytest.fixture(scope="module")
def browser():
    with open_browser() as browser:
        yield browser


@pytest.fixture
def page(browser, tmp_path):
    """A page that holds a viewer."""
    runs = {"PLD": [DRAFTED, DRAFTED], "plain": [PLAIN, PLAIN]}
    viewer = stepper.stepper(runs, Letters(), {"first": points("</script> $x$"), "second": points("other\n")}, PRICES)
    html = f"<!doctype html><meta charset=utf-8><title>t</title><article>{viewer.to_html()}</article>"
    (tmp_path / "index.html").write_text(html, encoding="utf-8")
    page, address = browser.new_page(), (tmp_path / "index.html").as_uri()
    page.set_default_timeout(20000)  # a busy machine
    facts = visit(page, address)
    assert facts["errors"] == [] and facts["requests"] == [address]
    yield page
    page.close()


def summary(page):
    return page.get_by_role("status").text_content()


def step(page):
    return page.get_by_role("slider").input_value()


def choose(page, label, option):
    page.get_by_role("combobox", name=label).select_option(label=option)


def facts(page):
    return dict(zip(page.locator("dt").all_text_contents(), page.locator("dd").all_text_contents(), strict=True))


def test_the_first_step_says_what_was_drafted_accepted_and_paid(page):
    # 2 tokens for a pass over 4 at 2.0 and a look-up at 0.5: 2 / 2.5.
    assert summary(page) == (
        "Step 1 of 3. PLD drafted 3 tokens; the target accepted 1 and wrote “c” itself. 2 tokens from a pass over 4. "
        "So far 2.00 tokens per pass, and 0.80 times as fast as plain decoding on this machine."
    )
    assert facts(page) == {
        "Width of the pass": "4 tokens", "Price of the pass (one token = 1)": "2.00", "Price of drafting": "0.50",
        "Tokens per pass so far": "2.00", "Speed-up so far": "0.80",
    }  # fmt: skip


def test_keys_buttons_and_the_slider_step_through(page):
    page.get_by_role("button", name="one step on").focus()
    for key, at in zip("ArrowRight ArrowRight ArrowRight Home End ArrowLeft".split(), "233032", strict=True):
        page.keyboard.press(key)
        assert step(page) == at
    # 5 tokens for two passes over 4 with their look-ups: 5 / 5.
    assert summary(page).endswith("2.50 tokens per pass, and 1.00 times as fast as plain decoding on this machine.")
    page.get_by_role("slider").fill("3")
    assert "the target wrote “f” itself" in summary(page) and "drafted nothing" in summary(page)
    page.get_by_role("button", name="one step back").click()
    assert step(page) == "2" and page.get_by_role("slider").get_attribute("aria-valuetext") == "step 2 of 3"
    page.get_by_role("button", name="first step").click()
    assert summary(page).startswith("Step 0. The pass over the prompt")


def test_the_draft_is_a_list_that_says_each_nodes_fate_and_what_is_chosen_is_shown_at_the_same_place(page):
    page.get_by_role("slider").fill("2")
    draft = page.get_by_role("region", name="Draft of this step")
    nodes = [" ".join(text.split()) for text in draft.locator(".node").all_inner_texts()]
    assert nodes == [
        "last token: c", "accepted: d 0.50 prompt", "accepted: z 0.12 store", "the target's own: e", "refused: y 0.25 store",
    ]  # fmt: skip
    choose(page, "Method", "plain")
    assert step(page) == "5" and summary(page).startswith("Step 5 of 6. The target wrote “e” itself.")
    assert facts(page)["Speed-up so far"] == "1.00" and facts(page)["Price of drafting"] == "0.00"
    choose(page, "Method", "PLD")
    choose(page, "Price of a pass on", "a free pass")
    assert step(page) == "2" and facts(page)["Tokens per pass so far"] == facts(page)["Speed-up so far"] == "2.50"
    page.get_by_role("slider").fill("3")
    text = page.get_by_role("region", name="Text so far")
    assert text.text_content() == "</script> $x$abcdzef"
    choose(page, "Prompt", "second")
    assert step(page) == "1" and text.text_content() == "other\nabc"


def test_it_starts_where_a_notebook_puts_it_into_the_page_and_of_two_one_moves(browser):
    """JupyterLab sets the HTML of a detached element, replaces its scripts by copies, and attaches it."""
    page = browser.new_page()
    page.set_default_timeout(20000)  # a busy machine
    insert = """html => {
      const host = document.createElement("div");
      host.innerHTML = html;
      for (const script of host.querySelectorAll("script")) {
        const copy = document.createElement("script");
        for (const { name, value } of script.attributes) copy.setAttribute(name, value);
        copy.textContent = script.textContent;
        script.replaceWith(copy);
      }
      document.body.append(host);
    }"""
    for _ in range(2):
        page.evaluate(insert, stepper.stepper({"PLD": [DRAFTED]}, Letters(), {"one": points("hi")}, PRICES).to_html())
    sliders = page.get_by_role("slider")
    sliders.last.fill("3")
    assert [slider.input_value() for slider in sliders.all()] == ["1", "3"]
    page.close()
