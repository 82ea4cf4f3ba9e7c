"""The overlap widget: its bars are the library's ratios, and every setting is a control, a link and a key."""

from __future__ import annotations

import math

import pytest
from playbook_widgets import OverlapRatios
from playbook_widgets.compute.overlap import DEFAULTS, LIMITS, TECHNIQUES, compute
from playbook_widgets.overlap import EXAMPLES, constants
from widget_homes import Form, showing

from playbook.hardware import CLUSTERS
from playbook.shapes import PRESETS

CONTROLS = {control["field"]: control for control in constants()["controls"]}
SEVERAL = [dict(inputs) for _, inputs, _ in EXAMPLES] + [
    {"tokens": 64, "cluster": "b200-8"},
    {"model": "deepseek-v3", "tp": 1, "dp": 256, "ep": 256, "two_step": True, "tokens": 1048576},
    {"tp": 1, "dp": 1, "pp": 1},
]


# --- in Python


def test_every_setting_is_a_control_whose_values_can_be():
    assert set(CONTROLS) == set(DEFAULTS)
    assert [value for value, _ in CONTROLS["model"]["choices"]] == list(PRESETS)
    assert [value for value, _ in CONTROLS["cluster"]["choices"]] == list(CLUSTERS)
    for field, (least, most) in LIMITS.items():
        stops = CONTROLS[field]["stops"]
        assert stops == sorted(set(stops))
        assert least <= stops[0] <= stops[-1] <= most
        assert DEFAULTS[field] in stops


def test_the_summary_says_every_row():
    widget = OverlapRatios({"model": "deepseek-v3", "tp": 1})
    text, rows = widget.summary(), widget.outputs["rows"]
    assert text.count("<tr>") == 1 + len(TECHNIQUES)
    for row in rows:
        assert f"<td>{row['name']}</td>" in text
        if row["ratio"] is not None:
            assert f"<td>{row['ratio']:.3g} ({row['phase']})</td><td>{row['link']}</td>" in text
    assert widget.outputs["answer"] in text


# --- in the browser: the module over real Python


class Page(Form):
    """The widget as a reader meets it."""

    prefix = "ov"

    def bars(self) -> list[dict]:
        return self.page.locator(".pb-ov-bar").evaluate_all(
            """(all) => all.map((el) => {
              const [name, track, number, words] = el.children, width = track.getBoundingClientRect().width;
              const ends = [...track.children].map((part) => part.getBoundingClientRect().width / width);
              return { name: name.children[0].textContent, link: name.children[1].textContent, ends,
                label: track.ariaLabel, number: number.textContent, words: words.textContent,
                over: el.hasAttribute("data-over") };
            })"""
        )


overlap = showing(Page, OverlapRatios)


@pytest.mark.browser
def test_bars_are_pythons_ratios_with_the_line_at_one(overlap):
    view = overlap()
    for inputs in ({}, *SEVERAL):
        view.set({"tokens": DEFAULTS["tokens"], **inputs})
        answer = compute(inputs)
        for bar, row in zip(view.bars(), answer["rows"], strict=True):
            assert (bar["name"], bar["link"]) == (row["name"], row["link"])
            assert bar["words"].startswith(row["text"])
            if row["ratio"] is None:
                assert bar["ends"] == [0, 0]
                assert bar["number"] == "–"
                continue
            place = min(1.0, max(0.0, (math.log10(row["ratio"]) + 3) / 4))
            assert bar["ends"] == pytest.approx([min(place, 0.75), max(0.0, place - 0.75)], abs=2e-3)
            assert bar["over"] == (row["ratio"] > 1)
            assert bar["number"].endswith("exposed" if row["ratio"] > 1 else "hidden")
            assert row["phase"] in bar["label"]
        assert view.text("answer") == answer["answer"]
        assert view.page.locator(".pb-ov-note").last.inner_text() == answer["machine"]
