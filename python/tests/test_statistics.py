"""Numbers about times."""

from __future__ import annotations

from gpreempt.statistics import SAMPLES_MAX, Latencies, Samples


def test_percentiles_are_samples() -> None:
    found = Latencies.of(100, [float(number) for number in range(100, 0, -1)])
    assert (found.min_us, found.p50_us, found.p99_us, found.max_us) == (1, 50, 99, 100)
    assert found.mean_us == 50.5
    one = Latencies.of(1, [7.0])
    assert (one.min_us, one.p50_us, one.p99_us, one.max_us) == (7, 7, 7, 7)


def test_nothing_is_zero() -> None:
    assert Latencies.of(0, []) == Latencies(0, 0, 0, 0, 0, 0)


def test_only_the_last_samples_are_kept_but_all_are_counted() -> None:
    samples = Samples()
    for number in range(SAMPLES_MAX + 5):
        samples.add(number / 1e6)
    found = samples.latencies()
    assert found.count == SAMPLES_MAX + 5
    assert round(found.min_us) == 5
