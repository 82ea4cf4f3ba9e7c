"""α and β out of measured times: one line, or two that meet where they cross."""

import random

import pytest

from playbook.collectives.links import AlphaBeta, Sample
from playbook_book.collectives.regimes import Regimes, fit_regimes


def test_two_regimes_where_one_line_does_not_do():
    short, long = AlphaBeta(10e-6, 1 / 10e9), AlphaBeta(60e-6, 1 / 1e9)  # out of the cache at 64 KB
    sizes = [1 << i for i in range(8, 27, 2)]
    found = fit_regimes([Sample(4 * k, (short if k < 1 << 16 else long).time(4 * k, 4), 4) for k in sizes])
    assert len(found.links) == 2
    assert 1 << 14 < found.limits[0] <= 1 << 16
    for k in (1 << 9, 1 << 13, 1 << 17, 1 << 25):
        expected = (short if k < 1 << 16 else long).time(4 * k, 4)
        assert found.time(4 * k, 4) == pytest.approx(expected, rel=1e-3)
    assert fit_regimes([Sample(k, short.time(k)) for k in sizes]).limits == ()
    noise = random.Random(0)
    noisy = [Sample(k, short.time(k) * noise.uniform(0.9, 1.1)) for k in sizes]
    assert fit_regimes(noisy).limits == ()  # two lines would only follow the noise
    meeting = Regimes((AlphaBeta(1e-6, 1e-9), AlphaBeta(0, 2e-9)), (1000.0,))
    assert meeting.time(999) < meeting.time(1000) < meeting.time(1001)


@pytest.mark.parametrize("messages", [1, 4])
def test_two_lines_meet_where_they_cross(messages):
    short, long = AlphaBeta(10e-6, 1 / 1e9), AlphaBeta(60e-6, 1 / 10e9)
    crossing = 50e-6 / (1 / 1e9 - 1 / 10e9)  # 55 556 bytes, between two of the sizes
    times = [
        (k, min(line.time(k, messages) for line in (short, long)))
        for k in (messages << i for i in range(8, 27, 2))
    ]
    found = fit_regimes(Sample(k, seconds, messages) for k, seconds in times)
    assert found.limits == (pytest.approx(crossing),)
    assert found.links[0].time(1000) == pytest.approx(short.time(1000))
    assert found.links[1].time(1 << 20) == pytest.approx(long.time(1 << 20))
