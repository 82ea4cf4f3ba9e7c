"""Each exercise: right answers pass, a wrong one is told its hint, and one that is missing that it is missing."""

import pytest

from playbook_book.exercises import exercises, grade


def unwritten(*given, **named):
    raise NotImplementedError


@pytest.mark.parametrize("name", exercises())
def test_right_answers_pass_and_wrong_ones_get_their_hint(name):
    exercise = exercises()[name]
    right, wrong = exercise.right, exercise.wrong
    assert right
    for answer in right:
        assert grade(name, answer).right, answer
    assert len({hint for _, hint in wrong}) >= 3
    for answer, hint in wrong:
        verdict = grade(name, answer)
        assert not verdict.right, answer
        assert hint in verdict.text, (answer, verdict.text)
    if exercise.kind == "number":
        assert " is too large. " in grade(name, 1e30).text  # and what to think about
    for missing in [..., unwritten] if exercise.kind == "function" else [...]:
        assert grade(name, missing).text.startswith("no answer yet: ")


def test_what_else_goes_wrong_in_a_kernel_is_not_hidden():
    from triton.runtime.errors import InterpreterError

    from playbook_book.exercises.writing_kernels_kernels import sums

    with pytest.raises(InterpreterError):
        grade("writing-kernels.stride", lambda x: sums(x, strides=lambda x: (None, 1)))


def test_a_grader_that_sets_the_state_of_random_numbers_puts_it_back():
    import torch

    before = torch.get_rng_state()
    assert grade("recomputation.dropout", exercises()["recomputation.dropout"].right[0]).right
    assert torch.equal(torch.get_rng_state(), before)
