"""The widget of number formats: a number's bits, value and rounding error in every format, bits that can be set."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from playbook.precision.formats import FORMATS, Format
from playbook_widgets.base import Widget
from playbook_widgets.compute.number_setting import DEFAULTS, LIMITS, read
from playbook_widgets.compute.number_text import decimal, raised, shown


class NumberFormats(Widget):
    """``NumberFormats({"number": "70000", "format": "fp16"})`` as the last line of a cell.

    Keys are those of ``playbook_widgets.compute.number_setting.DEFAULTS``. ``number`` is a number or a text such as
    "1/3", "2^-25", "-0", "nan", or a code of a format, "e4m3:0x7f". ``rounding`` is to_even, towards_zero, half_up or
    stochastic, which takes the random number that the seed ``draw`` gives; ``saturate`` is that of `Format.encode`;
    ``scale`` is the exponent of a power of two that the number is multiplied by before it is stored. It opens with
    ``format`` explained. In a notebook::

        from playbook_widgets import NumberFormats

        NumberFormats({"number": "0.1"})

    ``start`` says when a page loads Python, as for every widget. Raises PlaybookError for settings that cannot be.
    """

    script = "number_formats.mjs"
    compute = "playbook_widgets.compute.number_formats:compute"
    name = "bits"

    def __init__(self, inputs: Mapping[str, Any] | None = None, *, start: str = "touch"):
        shown = {"number": DEFAULTS["number"], **(inputs or {})}
        shown["number"] = str(shown["number"])
        read(shown)  # refused here, where the cell is, and not in the page
        super().__init__(shown, start=start, constants=constants())

    def summary(self) -> str:
        head = _row("th", ["format", "bits", "value", "", "error", "relative", "in units of the last place"])
        rows = "".join(_row("td", _texts(row)) for row in self.outputs["rows"])
        table = f"<table><thead>{head}</thead><tbody>{rows}</tbody></table>"
        return f"<p>{html.escape(self.outputs['number'])} in every format:</p><div class='pb-scroll'>{table}</div>"


# --- What the page's controls are. Formats and limits come from the library.


def _controls() -> list[dict[str, Any]]:
    """One for each setting as a reader meets it."""
    least, most = LIMITS["scale"]
    rounding = {
        "to_even": "to even",
        "towards_zero": "towards zero",
        "half_up": "half up",
        "stochastic": "stochastic",
    }
    scales = [[k, f"× 2{raised(k)}" if k else "none"] for k in range(least, most + 1)]
    return [
        {"field": "number", "label": "Number", "kind": "text"},
        {
            "field": "rounding",
            "label": "Rounding",
            "kind": "choice",
            "choices": [*map(list, rounding.items())],
        },
        {
            "field": "saturate",
            "label": "Overflow",
            "kind": "choice",
            "choices": [[False, "infinity or NaN"], [True, "saturate"]],
        },
        {"field": "scale", "label": "Scale", "kind": "select", "choices": scales},
    ]


#: Numbers to load: a name, what is set, and a note.
EXAMPLES: list[tuple[str, dict[str, Any], str]] = [
    ("0.1", {"number": "0.1"}, "0.1 has no finite binary expansion: every format rounds it, a double too."),
    ("1/3", {"number": "1/3"}, "The binary digits 01 repeat without end; each format cuts them at another place."),
    (
        "1 + 2⁻⁹",
        {"number": "1 + 2^-9", "format": "bf16"},
        "A weight of 1 and an update of 1/512: BF16 rounds the sum back to 1, so the update is lost.",
    ),
    ("65504", {"number": "65504", "format": "fp16"}, "The largest number of FP16."),
    (
        "70000",
        {"number": "70000", "format": "fp16"},
        "Beyond the range of FP16. BF16 and TF32 have as many exponent bits as FP32 and only round it.",
    ),
    (
        "3 × 10⁻⁸",
        {"number": "3e-8", "format": "fp16"},
        "A little more than half of FP16's smallest positive number, to which it is rounded: almost twice as much.",
    ),
    (
        "2⁻²⁵",
        {"number": "2^-25", "format": "fp16"},
        "A small gradient, halfway between 0 and FP16's smallest positive number, 2⁻²⁴: rounding to even gives 0.",
    ),
    (
        "2⁻²⁵, scaled",
        {"number": "2^-25", "scale": 16, "format": "fp16"},
        "The same gradient with the loss multiplied by 2¹⁶ (loss scaling): FP16 represents it exactly.",
    ),
    ("448", {"number": "448", "format": "e4m3"}, "The largest number of E4M3. The code after it is NaN."),
    (
        "449",
        {"number": "449", "format": "e4m3"},
        "Larger than 448, but nearer to it than to 480, which would come next: it is rounded to 448.",
    ),
    ("465", {"number": "465", "format": "e4m3"}, "Nearer to 480, which E4M3 does not have: an overflow."),
    ("−0", {"number": "-0", "format": "fp16"}, "Zero has a sign. E8M0 has neither a sign nor a zero."),
    ("∞", {"number": "inf", "format": "e4m3"}, "E4M3 has more numbers instead of infinity. FP6 and FP4 lack NaN too."),
    ("NaN", {"number": "nan", "format": "e4m3"}, "IEEE 754 formats have many codes for NaN; E4M3 has one of each sign."),
]  # fmt: skip


@cache
def constants() -> dict[str, Any]:
    """All that the page shows and that no input changes."""
    examples = [{"name": name, "inputs": inputs, "note": note} for name, inputs, note in EXAMPLES]
    formats = [_format(form) for form in FORMATS.values()]
    return {"controls": _controls(), "defaults": DEFAULTS, "examples": examples, "formats": formats}


def _format(form: Format) -> dict[str, Any]:
    """A format's name, its fields from left to right, and its numbers: name, number, remark."""
    fields = {"sign": int(not form.unsigned), "exponent": form.exponent, "mantissa": form.mantissa}
    facts = [
        ["Bits", str(form.bits), ", ".join(f"{bits} {field}" for field, bits in fields.items() if bits)],
        ["Bias", str(form.bias), "subtracted from the exponent field"],
        ["Largest number", shown(form.max, 5), _specials(form)],
        ["Smallest normal number", f"2{raised(form.least)}", decimal(form.min_normal)],
        [
            "Smallest positive number",
            f"2{raised(form.least - form.mantissa)}",
            f"{decimal(form.min_positive)}, {'sub' if form.min_positive < form.min_normal else ''}normal",
        ],
        ["Step above 1 (epsilon)", f"2{raised(-form.mantissa)}", f"{decimal(form.epsilon)}, the ulp of 1"],
    ]
    return {
        "name": form.name,
        "title": form.title or form.name.upper(),
        "fields": [[field, bits] for field, bits in fields.items() if bits],
        "facts": facts,
    }


def _specials(form: Format) -> str:
    return {"ieee": "then infinity and NaN", "nan": "then NaN, no infinity", "none": "no infinity, no NaN"}[
        form.specials
    ]


# --- The first state in words, for readers without JavaScript and for paper.


def _texts(row: Mapping[str, Any]) -> list[str]:
    return [row["name"], row["bits"], row["value"], row["word"], *(row["errors"] or [""] * 3)]


def _row(cell: str, texts: Iterable[str]) -> str:
    return "<tr>" + "".join(f"<{cell}>{html.escape(text)}</{cell}>" for text in texts) + "</tr>"
