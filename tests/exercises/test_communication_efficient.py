"""Wrong answers that readers of the chapter on compressed gradients may well give, and what they are told."""

import pytest
import torch

from playbook_book.exercises import grade


def merged(a, b):
    total = dict(zip(*a, strict=True))
    for at, value in zip(*b, strict=True):
        total[at] = total.get(at, 0.0) + value
    places = sorted(total)
    return places, [total[at] for at in places]


def concatenated(a, b):
    pairs = sorted([*zip(*a, strict=True), *zip(*b, strict=True)])
    return [at for at, _ in pairs], [value for _, value in pairs]


def unsorted(a, b):
    total = dict(zip(*b, strict=True))
    for at, value in zip(*a, strict=True):
        total[at] = total.get(at, 0.0) + value
    return list(total), list(total.values())


def the_last_wins(a, b):
    total = dict(zip(*a, strict=True)) | dict(zip(*b, strict=True))
    return sorted(total), [total[at] for at in sorted(total)]


def shared_alone(a, b):
    both = sorted(set(a[0]) & set(b[0]))
    return both, [1.0] * len(both)


def uneven(a, b):
    places, values = merged(a, b)
    return places, values[:-1]


# ---- feedback over epochs


def remembers(x, gradient, compress, lr, epochs, steps):
    left = torch.zeros_like(x)
    for _ in range(epochs * steps):
        wanted = lr * gradient(x) + left
        sent = compress(wanted)
        left, x = wanted - sent, x - sent
    return x


def forgets(x, gradient, compress, lr, epochs, steps):
    for _ in range(epochs):
        x = remembers(x, gradient, compress, lr, 1, steps)
    return x


def sends_the_rest(x, gradient, compress, lr, epochs, steps):
    for _ in range(epochs * steps):
        x = x - lr * gradient(x)
    return x


def keeps_what_it_sends(x, gradient, compress, lr, epochs, steps):
    left = torch.zeros_like(x)
    for _ in range(epochs * steps):
        wanted = lr * gradient(x) + left
        x = x - compress(wanted)
        left = wanted
    return x


def one_epoch(x, gradient, compress, lr, epochs, steps):
    return remembers(x, gradient, compress, lr, 1, steps)


def returns_nothing(x, gradient, compress, lr, epochs, steps):
    remembers(x, gradient, compress, lr, epochs, steps)


# ---- places and values


def by_place(places, values, d):
    total = torch.zeros(d, dtype=values.dtype)
    return total.index_add(0, places.flatten(), values.flatten()) / len(values)


def planted(places, values, d):
    total = torch.zeros(d, dtype=values.dtype)
    total[places[0]] = values.sum(0)
    return total / len(values)


def overwrites(places, values, d):
    total = torch.zeros(d, dtype=values.dtype)
    total[places.flatten()] = values.flatten()
    return total / len(values)


def the_sum(places, values, d):
    return by_place(places, values, d) * len(values)


def values_alone(places, values, d):
    return values.mean(0)


def everywhere(places, values, d):
    return by_place(places, values, d) + 0.1


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("nodes", 109), ("nodes", 108.47), ("merge", merged), ("epochs", remembers), ("indices", by_place),
    ],
)  # fmt: skip
def test_right_answers(name, answer):
    verdict = grade(f"communication-efficient.{name}", answer)
    assert verdict.right, verdict.text


@pytest.mark.parametrize(
    ("name", "answer", "hint"),
    [
        ("nodes", 54.2, "nearly twice"),
        ("nodes", 200, "values alone"),
        ("nodes", 100, "27 bits"),
        ("nodes", 107.5, "cancels"),
        ("nodes", 7, "too small"),
        ("merge", concatenated, "stands there twice"),
        ("merge", unsorted, "ascending order"),
        ("merge", the_last_wins, "the places are right"),
        ("merge", shared_alone, "the sum has values at"),
        ("merge", uneven, "3 places, and 2 values"),
        ("epochs", forgets, "has never moved"),
        ("epochs", sends_the_rest, "nothing is compressed"),
        ("epochs", keeps_what_it_sends, "kept twice"),
        ("epochs", one_epoch, "4 gradients were asked for, not 80"),
        ("epochs", returns_nothing, "expected the parameters at the end, got None"),
        ("indices", planted, "is 0 there"),
        ("indices", overwrites, "overwrites the other"),
        ("indices", the_sum, "the mean is asked for"),
        ("indices", values_alone, "expected a tensor of shape"),
        ("indices", everywhere, "no sum of anything"),
    ],
)
def test_wrong_answers_get_their_hint(name, answer, hint):
    verdict = grade(f"communication-efficient.{name}", answer)
    assert not verdict.right
    assert hint in verdict.text
