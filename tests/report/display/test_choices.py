"""The figure of the page "Which method when"."""

from __future__ import annotations

import html
import re

from specdec_lib.experiments.elsewhere import PROGRAMS, SWITCHED_ON
from specdec_lib.methods import METHODS
from specdec_lib.report.display import choices


def test_every_method_says_where_it_is_had_and_is_shown_to_those_who_have_what_it_needs():
    text = choices.figure()
    rows = dict(re.findall(r'<details class="(\w+)"><summary><b>(.*?)</b>', text))
    assert set(rows) == set(choices.HAVE) == {method.needs for method in METHODS.values()}
    folded = re.findall(r"<summary><b>(.*?)</b>.*?<dl>(.*?)</dl>", text)
    assert [name for name, _ in folded] == list(METHODS)
    for name, places in folded:
        told = [html.unescape(line) for line in re.findall(r"<dd>(?:<code>)?(.*?)(?:</code>)?</dd>", places)]
        assert told[:-1] == [SWITCHED_ON.get(name, {}).get(program, "not available") for program in PROGRAMS]
        assert f'href="methods/{METHODS[name].page}.html"' in told[-1]
    # Whoever has nothing but the model is shown no other method; whoever has several things, all.
    assert "value=nothing]:checked) details:not(.nothing):not(.nothing){display:none}" in text
    assert "value=several]:checked)" not in text
