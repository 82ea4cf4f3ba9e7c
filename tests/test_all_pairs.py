"""The helper that chooses cases for other tests leaves no pair out."""

from all_pairs import all_pairs, combined, pairs


def test_every_pair_of_values_is_there_in_far_fewer_cases():
    for sizes in ((2, 2), (3, 2, 2), (4, 3, 2, 2), (3, 3, 3, 3), (4, 3, 3, 2, 2, 2)):
        cases = combined(**{f"option{i}": range(size) for i, size in enumerate(sizes)})
        chosen = all_pairs(cases)
        assert all(
            set().union(*(pairs(one) for one in chosen if one != case)) < set().union(*map(pairs, cases))
            for case in chosen
        )
        assert set().union(*map(pairs, chosen)) == set().union(*map(pairs, cases))
        largest, second, *_ = sorted(sizes, reverse=True)
        assert largest * second <= len(chosen) <= 1.5 * largest * second
        assert all_pairs(cases) == chosen


def test_only_what_is_allowed_is_chosen():
    allowed = [case for case in combined(a=(1, 2, 3), b=(1, 2, 3), c=(1, 2)) if case["a"] != case["b"]]
    chosen = all_pairs(allowed)
    assert all(case in allowed for case in chosen)
    assert set().union(*map(pairs, chosen)) == set().union(*map(pairs, allowed))
