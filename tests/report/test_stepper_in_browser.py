"""The viewer of a generation, as a reader's browser runs them: keys, a phone, no network."""

from __future__ import annotations

import pytest

from specdec_lib import DraftTree, Generation
from specdec_lib.decoding.results import Step
from specdec_lib.drafters.pass_prices import PassPrices
from specdec_lib.report.display import stepper
from tests.report.browser import open_browser, visit

pytestmark = pytest.mark.browser
PHONE = 360


class Letters:
    """A tokenizer whose token ids are code points."""

    def decode(self, tokens):
        return "".join(map(chr, tokens))


def points(text):
    return [ord(letter) for letter in text]


def run(*steps):
    made = [
        Step(tree, tuple(path), tuple(points(tokens)), 0.0, 0.0, 0.0)
        for tree, path, tokens in steps
    ]  # fmt: skip
    return Generation([*points("a"), *(t for s in made for t in s.tokens)], made, "length", 2, 0.0)


FORK = DraftTree(points("ydz"), [-1, -1, 1], scores=[0.25, 0.5, 0.12], sources=["store", "prompt", "store"])
DRAFTED = run((DraftTree.chain(points("bxx")), [0], "bc"), (FORK, [1, 2], "dze"), (DraftTree.chain([]), [], "f"))
PLAIN = run(*((DraftTree.chain([]), [], letter) for letter in "bcdzef"))
PRICES = [PassPrices({1: 1.0, 4: 2.0}, step=0.5, name="this machine"), PassPrices({1: 1.0, 4: 1.0}, name="a free pass")]


@pytest.fixture(scope="module")
def browser():
    with open_browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    path = tmp_path_factory.mktemp("stepper") / "index.html"
    viewer = stepper.stepper(
        {"PLD": [DRAFTED, DRAFTED], "plain": [PLAIN, PLAIN]},
        Letters(),
        {"first": points("</script> $x$"), "second": points("other\n")},
        PRICES,
    )
    path.write_text(
        f"<!doctype html><meta charset=utf-8><title>t</title><article>{viewer.to_html()}</article>", encoding="utf-8"
    )
    return path.as_uri()


@pytest.fixture
def page(browser, address):
    page = browser.new_page()
    page.set_default_timeout(5000)
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
        "Width of the pass": "4 tokens",
        "Price of the pass (one token = 1)": "2.00",
        "Price of drafting": "0.50",
        "Tokens per pass so far": "2.00",
        "Speed-up so far": "0.80",
    }


def test_the_place_that_a_draft_was_copied_from_is_marked_and_said(browser, tmp_path):
    # Text so far: "abxx " and the first token "a"; the draft copies what stands five tokens back.
    copied = run((DraftTree.chain(points("bxx"), copied_from=1), [0], "bc"), (DraftTree.chain([]), [], "f"))
    path = tmp_path / "copied.html"
    html = stepper.stepper({"PLD": copied}, Letters(), points("abxx "), PRICES).to_html()
    path.write_text(f"<!doctype html><meta charset=utf-8><title>t</title>{html}", encoding="utf-8")
    page = browser.new_page()
    assert visit(page, path.as_uri())["errors"] == []
    assert summary(page).startswith(
        "Step 1 of 2. PLD drafted 3 tokens, copied from 5 tokens back, after “a”; the target accepted 1 and"
    )
    marked = page.locator(".text .source")
    assert "".join(marked.all_text_contents()) == "bxx"
    press(page, "ArrowRight")
    assert summary(page).startswith("Step 2 of 2. PLD drafted nothing") and marked.count() == 0
    page.close()


def test_keys_step_through_from_anywhere_in_the_viewer(page):
    page.keyboard.press("Tab")
    page.get_by_role("button", name="one step on").focus()
    for key, number in (("ArrowRight", "2"), ("ArrowRight", "3"), ("ArrowRight", "3"), ("Home", "0"), ("End", "3")):
        page.keyboard.press(key)
        assert step(page) == number
    page.keyboard.press("ArrowLeft")
    # 5 tokens for two passes over 4 with their look-ups: 5 / 5.
    assert step(page) == "2" and summary(page).endswith(
        "2.50 tokens per pass, and 1.00 times as fast as plain decoding on this machine."
    )


def press(page, key):
    """The step after a key, pressed wherever the focus is."""
    page.keyboard.press(key)
    return step(page)


def test_arrows_step_without_a_click_while_the_viewer_is_in_view_and_nothing_has_the_focus(page):
    page.evaluate("document.addEventListener('keydown', (e) => { window.turned = (window.turned || 0) + 1; })")
    assert [press(page, key) for key in ("ArrowRight", "ArrowRight", "ArrowLeft")] == ["2", "3", "2"]
    # A theme that turns the page with these keys does not hear them.
    assert page.evaluate("window.turned") is None
    assert press(page, "Shift+ArrowRight") == "2" and press(page, "Home") == "2"
    page.evaluate(
        """() => {
            const field = document.createElement("input");
            document.body.append(field);
            field.focus();
        }"""
    )
    assert press(page, "ArrowRight") == "2"
    page.evaluate("document.activeElement.blur()")
    assert press(page, "ArrowRight") == "3"
    # Scrolled out of view, it leaves the keys to the page.
    page.evaluate("document.body.insertAdjacentHTML('beforeend', '<p style=height:5000px></p>'); scrollTo(0, 4000)")
    page.wait_for_function("document.querySelector('.specdec-stepper').getBoundingClientRect().bottom < 0")
    assert press(page, "ArrowLeft") == "3" and page.evaluate("window.turned") >= 3


def test_of_two_viewers_one_moves(page):
    page.evaluate(
        """() => {
            const one = document.querySelector(".specdec-stepper"), script = document.querySelector("script:not([type])");
            const two = one.cloneNode(true);
            delete two.dataset.ready;
            two.classList.remove("is-live");
            two.querySelector(".specdec-live").remove();
            two.style.marginTop = "3000px";
            one.parentNode.append(two);
            const again = document.createElement("script");
            again.textContent = script.textContent;
            document.body.append(again);
        }"""
    )
    sliders = page.get_by_role("slider")
    assert sliders.count() == 2
    page.keyboard.press("ArrowRight")
    assert [slider.input_value() for slider in sliders.all()] == ["2", "1"]


def test_the_slider_and_the_buttons_do_the_same(page):
    page.get_by_role("slider").fill("3")
    assert "the target wrote “f” itself" in summary(page) and "drafted nothing" in summary(page)
    page.get_by_role("button", name="one step back").click()
    assert step(page) == "2" and page.get_by_role("slider").get_attribute("aria-valuetext") == "step 2 of 3"
    page.get_by_role("button", name="first step").click()
    assert summary(page).startswith("Step 0. The pass over the prompt")


def test_every_control_is_reached_by_tab_alone(page):
    names = []
    for _ in range(10):
        page.keyboard.press("Tab")
        names.append(
            page.evaluate("document.activeElement.ariaLabel || document.activeElement.closest('label')?.innerText")
        )
    joined = " ".join(filter(None, names))
    for name in (
        "Prompt",
        "Method",
        "Price of a pass on",
        "first step",
        "one step on",
        "Step",
        "Text so far",
        "Draft of this step",
    ):
        assert name in joined


def test_the_draft_is_a_list_that_says_each_nodes_fate_score_and_source(page):
    page.get_by_role("slider").fill("2")
    draft = page.get_by_role("region", name="Draft of this step")
    nodes = [" ".join(text.split()) for text in draft.locator(".node").all_inner_texts()]
    assert nodes == [
        "last token: c", "accepted: d 0.50 prompt", "accepted: z 0.12 store", "the target's own: e", "refused: y 0.25 store",
    ]  # fmt: skip
    assert draft.get_by_role("listitem").count() == 2


def test_text_so_far_is_the_prompt_and_the_output(page):
    page.get_by_role("slider").fill("3")
    text = page.get_by_role("region", name="Text so far")
    assert text.text_content() == "</script> $x$abcdzef"
    choose(page, "Prompt", "second")
    assert step(page) == "1" and text.text_content() == "other\nabc"


def test_another_method_is_shown_at_the_same_place_of_the_text(page):
    page.get_by_role("slider").fill("2")
    choose(page, "Method", "plain")
    assert step(page) == "5" and summary(page).startswith("Step 5 of 6. The target wrote “e” itself.")
    assert facts(page)["Speed-up so far"] == "1.00" and facts(page)["Price of drafting"] == "0.00"
    choose(page, "Method", "PLD")
    assert step(page) == "2"


def test_another_price_changes_the_time_alone(page):
    page.get_by_role("slider").fill("2")
    choose(page, "Price of a pass on", "a free pass")
    assert facts(page)["Tokens per pass so far"] == "2.50" and facts(page)["Speed-up so far"] == "2.50"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_a_phone(browser, address, scheme):
    page = browser.new_page(color_scheme=scheme)
    seen = visit(page, address, PHONE)
    assert seen["errors"] == [] and seen["width"][0] <= seen["width"][1] == PHONE
    page.get_by_role("button", name="one step on").click()
    assert step(page) == "2"
    heights = page.get_by_role("button").evaluate_all("all => all.map(one => one.getBoundingClientRect().height)")
    assert min(heights) >= 32
    page.close()


def test_without_a_script_and_on_paper_the_static_text_is_there(browser, address):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(address)
    assert page.locator(".specdec-tokens").first.is_visible() and page.get_by_role("slider").count() == 0
    assert "abcdze" in page.locator(".specdec-static").inner_text().replace("▏", "").replace("\u2009", "").replace(
        "xx", ""
    )
    context.close()
    page = browser.new_page()
    page.set_default_timeout(5000)
    page.goto(address)
    assert not page.locator(".specdec-static").is_visible()
    page.emulate_media(media="print")
    assert page.locator(".specdec-static").is_visible() and not page.locator(".specdec-live").is_visible()
    page.close()


def test_it_starts_where_a_notebook_puts_it_into_the_page_and_twice_on_one_page(browser):
    """JupyterLab sets the HTML of a detached element, replaces its scripts by copies, and attaches it."""
    page = browser.new_page()
    page.set_default_timeout(5000)
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
        page.evaluate(insert, stepper.stepper(DRAFTED, Letters(), points("hi"), PRICES).to_html())
    assert page.get_by_role("slider").count() == 2
    page.get_by_role("slider").last.fill("3")
    assert [slider.input_value() for slider in page.get_by_role("slider").all()] == ["1", "3"]
    page.close()
