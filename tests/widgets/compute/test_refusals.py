"""A refusal names the control that has to change."""

import pytest
from playbook_widgets.compute.refusals import answered, field_of

from playbook.errors import ConfigError, LayoutError


@pytest.mark.parametrize(
    ("message", "field"),
    [
        ("moe.top_k must be at most 3", "moe.top_k"),
        ("unknown precision recipe 'x'; did you mean fp32?", "precision"),
        ("unknown model 'x'", "model"),
        ("seq is 3, but must be a multiple of cp", "seq"),
        ("…", ""),
    ],
)
def test_a_field_is_found_at_the_start_of_a_sentence(message, field):
    assert field_of(message) == field


def test_answers_and_refusals():
    def refuse(error: Exception):
        raise error

    assert answered(lambda: {"bytes": 3}) == {"bytes": 3}
    told = answered(lambda: refuse(LayoutError("tp must divide heads = 6, got 4")))
    assert told == {"error": {"field": "tp", "message": "tp must divide heads = 6, got 4"}}
    assert answered(lambda: refuse(ConfigError("zero is 9")))["error"]["field"] == "zero"
    with pytest.raises(ZeroDivisionError):  # a fault of ours is not the reader's
        answered(lambda: {"bytes": 1 // 0})
