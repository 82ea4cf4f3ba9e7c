"""The widget of number formats: its bits are the format's, a bit that is set sets the number, all by keyboard too."""

from __future__ import annotations

import random

import pytest
from playbook_widgets import NumberFormats
from playbook_widgets.compute.number_formats import compute
from playbook_widgets.compute.number_setting import DEFAULTS, LIMITS, ROUNDINGS
from playbook_widgets.number_formats import constants
from widget_homes import BACKGROUNDS, Form, apart, in_module, rgb, showing

from playbook.errors import ConfigError
from playbook.precision.formats import FORMATS

SCRIPT = NumberFormats.script
CONTROLS = {control["field"]: control for control in constants()["controls"]}
#: Settings that show what the first state does not: every kind of number, a scale, other roundings, long numbers.
SEVERAL = [
    {"number": "70000", "format": "fp16"},
    {"number": "-3e-8", "format": "e8m0"},
    {"number": "nan", "format": "e2m1"},
    {"number": "e5m2:0xff", "format": "e5m2"},
    {"number": "-inf", "saturate": True, "format": "e4m3"},
    {"number": "-2^-25/3", "scale": 16, "rounding": "stochastic", "draw": 7, "format": "e4m3"},
    {"number": "-1.23456789e38", "rounding": "half_up", "scale": -3},
]


# --- in Python


def test_every_setting_is_a_control_or_a_button():
    assert {*CONTROLS, "draw", "format"} == set(DEFAULTS)
    assert [value for value, _ in CONTROLS["rounding"]["choices"]] == list(ROUNDINGS)
    least, most = LIMITS["scale"]
    assert [value for value, _ in CONTROLS["scale"]["choices"]] == list(range(least, most + 1))
    for field, control in CONTROLS.items():
        for value, _ in control.get("choices", ()):
            assert compute({field: value})["values"][field] == value


def test_formats_are_those_of_the_library():
    for form, shown in zip(FORMATS.values(), constants()["formats"], strict=True):
        fields = {"sign": 0 if form.unsigned else 1, "exponent": form.exponent, "mantissa": form.mantissa}
        assert shown["name"] == form.name
        assert dict(shown["fields"]) == {field: bits for field, bits in fields.items() if bits}
    facts = {one["name"]: {name: texts for name, *texts in one["facts"]} for one in constants()["formats"]}
    assert facts["fp16"] == {
        "Bits": ["16", "1 sign, 5 exponent, 10 mantissa"],
        "Bias": ["15", "subtracted from the exponent field"],
        "Largest number": ["65504", "then infinity and NaN"],
        "Smallest normal number": ["2⁻¹⁴", "6.1 × 10⁻⁵"],
        "Smallest positive number": ["2⁻²⁴", "5.96 × 10⁻⁸, subnormal"],
        "Step above 1 (epsilon)": ["2⁻¹⁰", "0.000977, the ulp of 1"],
    }
    assert facts["e8m0"]["Smallest positive number"] == ["2⁻¹²⁷", "5.88 × 10⁻³⁹, normal"]


def test_settings_that_cannot_be_are_refused_where_the_cell_is():
    with pytest.raises(ConfigError, match="number must be a number such as"):
        NumberFormats({"number": "much"})
    assert NumberFormats({"number": 0.25}).inputs == {"number": "0.25"}


def test_the_summary_says_every_row():
    text = NumberFormats({"number": "70000"}).summary()
    assert "<p>70000 in every format:</p>" in text
    assert text.count("<tr>") == 1 + len(FORMATS)
    assert "<td>fp16</td><td>0111110000000000</td><td>∞</td><td>overflow: infinity</td><td></td>" in text
    assert "<td>+144</td><td>+0.206\u202f%</td><td>+0.281 ulp</td>" in text


# --- in the browser: the module over real Python


class Page(Form):
    """The widget as a reader meets it."""

    prefix = "nf"

    def line(self, name: str):
        return self.page.locator(f'[data-format="{name}"]')

    def bits(self, name: str):
        return self.line(name).locator("button.pb-nf-bit")

    def picture(self) -> dict:
        """Of each row its bits, value, word and errors."""
        return self.page.evaluate(PICTURE)


PICTURE = """() => Object.fromEntries([...document.querySelectorAll("[data-format]")].map((row) => {
  const texts = (place) => [...row.querySelectorAll(place)].map((el) => el.innerText);
  const [bits, said, errors] = ["button.pb-nf-bit", ".pb-nf-result :is(b, .pb-nf-word)", ".pb-nf-errors"].map(texts);
  return [row.dataset.format, [bits.join(""), ...said, ...errors]];
}))"""


def expected(inputs: dict) -> dict:
    found = {}
    for row in compute(inputs)["rows"]:
        errors = "no error" if row["word"].endswith("exact") else " · ".join(row["errors"])
        bits = row["bits"] or "–" * FORMATS[row["name"]].bits
        found[row["name"]] = [bits, row["value"], row["word"], errors]
    return found


formats = showing(Page, NumberFormats)


@pytest.mark.browser
def test_rows_and_words_are_pythons(formats):
    view = formats()
    for inputs in ({"number": "0.1"}, *SEVERAL):
        view.set(inputs)
        result = compute(inputs)
        assert view.picture() == expected(inputs), inputs
        chosen = next(row for row in result["rows"] if row["name"] == result["values"]["format"])
        title = next(one["title"] for one in constants()["formats"] if one["name"] == chosen["name"])
        assert view.text("heading") == f"{result['number']} in {title}"
        assert view.text("answer") == chosen["answer"]
        value = f"{chosen['formula']} = {chosen['value']}" if chosen["formula"] else chosen["value"]
        assert view.text("formula") == value
        code = view.page.locator(".pb-nf-code code")
        assert code.text_content() == chosen["python"]
        assert code.is_visible() == bool(chosen["python"])


@pytest.mark.browser
def test_a_bit_is_a_toggle_button_that_says_what_it_is(formats):
    view = formats({"number": "1.5"})
    names = view.bits("e4m3").evaluate_all("(all) => all.map((el) => [el.ariaLabel, el.ariaPressed])")
    assert names == [
        ["0, sign bit of FP8 E4M3", "false"],
        ["0, exponent bit 1, worth 8 of FP8 E4M3", "false"],
        ["1, exponent bit 2, worth 4 of FP8 E4M3", "true"],
        ["1, exponent bit 3, worth 2 of FP8 E4M3", "true"],
        ["1, exponent bit 4, worth 1 of FP8 E4M3", "true"],
        ["1, mantissa bit 1, worth 1/2 of FP8 E4M3", "true"],
        ["0, mantissa bit 2, worth 1/4 of FP8 E4M3", "false"],
        ["0, mantissa bit 3, worth 1/8 of FP8 E4M3", "false"],
    ]
    for name, form in FORMATS.items():
        kinds = view.bits(name).evaluate_all("(all) => all.map((el) => el.dataset.kind)")
        assert (
            kinds
            == ["sign"] * (not form.unsigned) + ["exponent"] * form.exponent + ["mantissa"] * form.mantissa
        )


@pytest.mark.browser
def test_setting_a_bit_makes_that_row_the_number_and_the_others_follow(formats):
    view = formats({"number": "0.1"})
    rng = random.Random(0)
    for name in FORMATS:
        at = rng.randrange(FORMATS[name].bits)
        row = next(row for row in compute(view.inputs())["rows"] if row["name"] == name)
        if not row["bits"]:
            continue
        before, code = view.inputs(), int(row["bits"], 2) ^ 1 << (FORMATS[name].bits - 1 - at)
        view.bits(name).nth(at).click()
        view.settle()
        assert view.inputs()["format"] == name or name == DEFAULTS["format"]
        assert int("".join(view.bits(name).all_inner_texts()), 2) == code
        assert view.picture() == expected(view.inputs())
        assert view.row("number").locator("input").input_value() == view.inputs()["number"]
        view.bits(name).nth(at).click()  # and back
        view.settle()
        assert view.picture()[name][:2] == [row["bits"], row["value"]], before


@pytest.mark.browser
def test_bits_of_what_a_format_has_no_code_for_do_nothing(formats):
    view = formats({"number": "-1"})
    bit = view.bits("e8m0").nth(3)
    assert bit.get_attribute("aria-disabled") == "true"
    bit.click(force=True)
    view.settle()
    assert view.inputs() == {"number": "-1"}


@pytest.mark.browser
def test_the_keyboard_alone_sets_bits(formats):
    view = formats({"number": "1"})
    keys = view.page.keyboard
    view.line("e4m3").get_by_role("button", name="FP8 E4M3", exact=True).focus()
    keys.press("Enter")
    view.settle()
    assert view.inputs() == {"number": "1", "format": "e4m3"}
    for press, at in (
        ("Tab", 0),
        ("ArrowRight", 1),
        ("End", 7),
        ("ArrowRight", 7),
        ("ArrowLeft", 6),
        ("Home", 0),
        ("End", 7),
    ):
        keys.press(press)
        assert view.bits("e4m3").nth(at).evaluate("(el) => el === document.activeElement"), press
    keys.press("Space")
    view.settle()
    assert view.inputs() == {"number": "1.125", "format": "e4m3"}
    assert (
        view.bits("e4m3")
        .nth(7)
        .evaluate("(el) => el === document.activeElement && el.ariaPressed === 'true'")
    )
    keys.press("Enter")
    view.settle()
    assert view.inputs() == {"number": "1", "format": "e4m3"}
    keys.press("Tab")  # one stop of the tab key to a row: its name, then its bits
    assert view.page.evaluate("document.activeElement.textContent") == "E8M0, a scale"
    keys.press("Shift+Tab")
    assert view.bits("e4m3").nth(7).evaluate("(el) => el === document.activeElement")


@pytest.mark.browser
def test_drawing_again_is_for_stochastic_rounding(formats):
    view = formats({"number": "1+2^-8"})
    again = view.button("Draw again")
    assert again.is_hidden()
    view.row("rounding").get_by_text("stochastic", exact=True).click()
    view.settle()
    values = []
    for draw in range(6):
        asked = {"number": "1+2^-8", "rounding": "stochastic", **({"draw": draw} if draw else {})}
        assert view.inputs() == asked
        assert f"u = {compute(asked)['u']} was drawn" in view.text("draw")
        assert view.picture() == expected(asked)
        values.append(view.picture()["bf16"][1])
        again.click()
        view.settle()
    assert set(values) == {"1", "1.0078125"}


@pytest.mark.browser
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_parts_of_a_number_look_different_to_every_eye(formats, theme):
    """On the page's background, in colour; in shape, too."""
    view = formats({"number": "-1.5"}, theme=theme)
    page = BACKGROUNDS[theme]
    found = view.page.evaluate(
        """() => Object.fromEntries(["sign", "exponent", "mantissa"].map((kind) => {
          const style = getComputedStyle(document.querySelector(`.pb-nf-legend [data-kind=${kind}]`));
          return [kind, [style.backgroundColor, style.borderRadius + style.boxShadow.replace(/color.*?\\)/, "")]];
        }))"""
    )
    assert len({shape for _, shape in found.values()}) == 3
    apart({"page": page, **{kind: rgb(colour) for kind, (colour, _) in found.items()}})


@pytest.mark.browser
def test_links_hold_the_state_as_it_was_typed(open_page):
    page = open_page("")
    rng = random.Random(0)
    numbers = ["-0", "0.10", "1e5", "1 + 2^-9", "1/3", "e4m3:0x7f", "9" * 20, "nan", "true", "a&b=c %", ""]
    for number in numbers:
        keys = rng.sample(sorted(set(DEFAULTS) - {"number"}), 3)
        inputs = {"number": number, **{key: DEFAULTS[key] for key in keys}}
        assert in_module(page, SCRIPT, "m.decode(m.encode(x))", inputs) == inputs
    said = in_module(page, SCRIPT, "m.decode(x)", "scale=16&nonsense=1&__proto__=2&saturate=true&draw")
    assert said == {"number": "0.1", "scale": 16, "saturate": True}


@pytest.mark.browser
def test_copied(formats):
    view = formats({"number": "2^-25", "scale": 16}, permissions=["clipboard-read", "clipboard-write"])
    view.button("Copy Python").click()
    assert "form.encode(2**-25 * 2**16)" in view.page.evaluate("navigator.clipboard.readText()")
    view.button("Copy link").click()
    assert "#bits?" in view.page.evaluate("navigator.clipboard.readText()")


@pytest.mark.browser
def test_sixteen_bits_are_a_line_so_that_bf16_stands_under_the_beginning_of_fp32(formats):
    view = formats({"number": "0.1"})
    for width in (1280, 390):
        view.page.set_viewport_size({"width": width, "height": 900})
        view.frames()
        places = "(all) => all.map((el) => (({ x, y }) => ({ x, y }))(el.getBoundingClientRect()))"
        boxes = {name: view.bits(name).evaluate_all(places) for name in ("fp32", "bf16", "e8m0")}
        assert len({round(box["y"]) for box in boxes["bf16"]}) == 1
        assert [len({round(box["y"]) for box in boxes["fp32"][k : k + 16]}) for k in (0, 16)] == [1, 1]
        for wide, short in zip(boxes["fp32"], boxes["bf16"], strict=False):
            assert wide["x"] == pytest.approx(short["x"], abs=0.5)
        for wide, short in zip(boxes["fp32"][1:], boxes["e8m0"], strict=False):
            assert wide["x"] == pytest.approx(short["x"], abs=4.5)
