"""Wrong answers that readers of the chapter on fault tolerance may well give, and what they are told."""

import copy
import math

import pytest
import torch

from playbook.estimates.goodput import daly
from playbook_book.exercises import grade

MTBF = 80_000 * 3600 / 4096
#: Counted second by second: a save of 40 s each interval, and half of one lost with each failure.
RIGHT = min(range(100, 10_000), key=lambda seconds: 40 / seconds + seconds / 2 / MTBF) / 60


def read_parts(lengths, start, stop):
    found, begin = [], 0
    for file, length in enumerate(lengths):
        low, high = max(start - begin, 0), min(stop - begin, length)
        if low < high:
            found.append((file, low, high - low))
        begin += length
    return found


def whole_files(lengths, start, stop):
    return [(file, 0, lengths[file]) for file, _, _ in read_parts(lengths, start, stop)]


def offsets_of_the_tensor(lengths, start, stop):
    return [(f, first + sum(lengths[:f]), count) for f, first, count in read_parts(lengths, start, stop)]


def reads_of_nothing(lengths, start, stop):
    found, begin = [], 0
    for file, length in enumerate(lengths):
        low = min(max(start - begin, 0), length)
        high = max(min(stop - begin, length), low)
        found.append((file, low, high - low))
        begin += length
    return found


def all_but_the_last(lengths, start, stop):
    return read_parts(lengths, start, stop - 1)


def backwards(lengths, start, stop):
    return read_parts(lengths, start, stop)[::-1]


def ends_and_no_counts(lengths, start, stop):
    return [(file, first, first + count) for file, first, count in read_parts(lengths, start, stop)]


def numbers(lengths, start, stop):
    return [file for file, _, _ in read_parts(lengths, start, stop)]


# ---- resuming


def keep(*parts):
    """A pair of functions that save and load these parts of a run."""

    def save(model, optimizer, schedule, data):
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        return {
            **state,
            "schedule": schedule.state_dict(),
            "data": data.position,
            "rng": torch.get_rng_state(),
        }

    def resume(saved, model, optimizer, schedule, data):
        if "model" in parts:
            model.load_state_dict(saved["model"])
        if "optimizer" in parts:
            optimizer.load_state_dict(saved["optimizer"])
        if "schedule" in parts:
            schedule.load_state_dict(saved["schedule"])
        if "data" in parts:
            data.position = saved["data"]
        if "rng" in parts:
            torch.set_rng_state(saved["rng"])

    return save, resume


ALL = ("model", "optimizer", "schedule", "data", "rng")


def without(part):
    return keep(*(each for each in ALL if each != part))


def draws_while_it_loads():
    save, resume = keep(*ALL)

    def load(saved, *run):
        resume(saved, *run)
        torch.rand(1)

    return save, load


# ---- moments


def by_name(saved, optimizer, names):
    for name, p in zip(names, optimizer.param_groups[0]["params"], strict=True):
        optimizer.state[p] = saved[name]


def by_position(saved, optimizer, names):
    for state, p in zip(saved.values(), optimizer.param_groups[0]["params"], strict=True):
        optimizer.state[p] = {**state, "step": torch.tensor(0.0)}


def without_steps(saved, optimizer, names):
    for name, p in zip(names, optimizer.param_groups[0]["params"], strict=True):
        optimizer.state[p] = {**saved[name], "step": torch.tensor(0.0)}


def by_position_with_steps(saved, optimizer, names):
    for state, p in zip(saved.values(), optimizer.param_groups[0]["params"], strict=True):
        optimizer.state[p] = state


def swapped(saved, optimizer, names):
    for name, p in zip(names, optimizer.param_groups[0]["params"], strict=True):
        state = saved[name]
        optimizer.state[p] = {**state, "exp_avg": state["exp_avg_sq"], "exp_avg_sq": state["exp_avg"]}


def first_moments_alone(saved, optimizer, names):
    for name, p in zip(names, optimizer.param_groups[0]["params"], strict=True):
        optimizer.state[p] = {"exp_avg": saved[name]["exp_avg"]}


# ---- committing


def waits_for_all(rank, ranks, disk):
    yield from disk.write(f"step-100/rank-{rank}")
    yield from disk.write(f"step-100/rank-{rank}.written")
    if rank == 0:
        while not all(disk.exists(f"step-100/rank-{r}.written") for r in range(ranks)):
            yield
        yield from disk.write("step-100/complete")


def planted(rank, ranks, disk):
    yield from disk.write(f"step-100/rank-{rank}")
    if rank == 0:
        yield from disk.write("step-100/complete")


def waits_for_names(rank, ranks, disk):
    yield from disk.write(f"step-100/rank-{rank}")
    if rank == 0:
        while not all(disk.exists(f"step-100/rank-{r}") for r in range(ranks)):
            yield
        yield from disk.write("step-100/complete")


def the_last_rank_says_so(rank, ranks, disk):
    yield from disk.write(f"step-100/rank-{rank}")
    if rank == ranks - 1:
        yield from disk.write("step-100/complete")


def waits_a_while(rank, ranks, disk):
    yield from disk.write(f"step-100/rank-{rank}")
    if rank == 0:
        for _ in range(10):
            yield
        yield from disk.write("step-100/complete")


def never(rank, ranks, disk):
    yield from disk.write(f"step-100/rank-{rank}")


def one_file(rank, ranks, disk):
    if rank == 0:
        yield from disk.write("step-100/rank-0")
        yield from disk.write("step-100/complete")


def no_generator(rank, ranks, disk):
    disk.write(f"step-100/rank-{rank}")


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("interval", RIGHT), ("interval", daly(40, MTBF) / 60), ("interval", 39.5), ("reads", read_parts),
        ("resume", keep(*ALL)), ("moments", by_name), ("commit", waits_for_all),
    ],
)  # fmt: skip
def test_right_answers(name, answer):
    verdict = grade(f"fault-tolerance.{name}", answer)
    assert verdict.right, verdict.text


@pytest.mark.parametrize(
    ("name", "answer", "hint"),
    [
        ("interval", 60 * RIGHT, "in seconds"),
        ("interval", RIGHT / math.sqrt(2), "half an interval on average"),
        ("interval", RIGHT * math.sqrt(2), "compare again"),
        ("interval", RIGHT * 64, "one GPU alone"),
        ("interval", MTBF / 60, "between two failures"),
        ("interval", math.sqrt(2 * 40 * 80_000) / 60, "hours and seconds do not mix"),
        ("interval", 5, "too small"),
        ("reads", whole_files, "a file is not read whole"),
        ("reads", offsets_of_the_tensor, "from the beginning of the file"),
        ("reads", reads_of_nothing, "a read of nothing"),
        ("reads", all_but_the_last, "not the right parts"),
        ("reads", backwards, "in the order of the files"),
        ("reads", ends_and_no_counts, "more elements than are needed"),
        ("reads", numbers, "expected a list of (file, first, count)"),
        ("resume", without("model"), "the weight is"),
        ("resume", without("optimizer"), "the update count is 4"),
        ("resume", without("schedule"), "the learning rate is"),
        ("resume", without("data"), "the place in the data is 4; the resumed run begins with 0"),
        ("resume", without("rng"), "dropout draws other masks"),
        ("resume", draws_while_it_loads(), "dropout draws other masks"),
        ("resume", keep("model", "optimizer"), "the learning rate is"),
        ("resume", keep(*ALL)[0], "hand in both functions"),
        ("moments", by_position, "has had 5 updates, and Adam is told 0"),
        ("moments", by_position_with_steps, "is blocks."),
        ("moments", without_steps, "has had 5 updates, and Adam is told 0"),
        ("moments", swapped, "the exp_avg of blocks.0.down is blocks.0.down's exp_avg_sq"),
        ("moments", first_moments_alone, "has no exp_avg_sq"),
        ("commit", planted, "`complete` is there"),
        ("commit", waits_for_names, "exists, but is still being written"),
        ("commit", the_last_rank_says_so, "`complete` is there"),
        ("commit", waits_a_while, "`complete` is there"),
        ("commit", never, "never becomes complete"),
        ("commit", one_file, "`complete` is there, and step-100/rank-1 is not"),
        ("commit", no_generator, "no generator any more"),
    ],
)
def test_wrong_answers_get_their_hint(name, answer, hint):
    verdict = grade(f"fault-tolerance.{name}", answer)
    assert not verdict.right
    assert hint in verdict.text


def test_the_grader_leaves_random_numbers_as_they_are():
    torch.manual_seed(5)
    before = copy.deepcopy(torch.get_rng_state())
    assert grade("fault-tolerance.resume", keep(*ALL)).right
    assert torch.equal(torch.get_rng_state(), before)
