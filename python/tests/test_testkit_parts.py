"""The criteria and the output of the test kit: no process is started here."""

from __future__ import annotations

from typing import Optional

import pytest

from gpreempt.testkit import __main__ as command
from gpreempt.testkit import text
from gpreempt.testkit.cases import boundary, preemption, stability
from gpreempt.testkit.judge import Criterion, Rank, at_least, at_most, is_passed, nothing_wrong
from gpreempt.testkit.play import total_at
from gpreempt.testkit.result import CaseResult, OfflineNumbers, OnlineNumbers, Phase, Result
from gpreempt.testkit.work import Work, mixed


def online(p50_us: float, requests: int = 10, window_s: float = 1.0) -> OnlineNumbers:
    latency = {"p50": p50_us, "p90": p50_us, "p99": 2 * p50_us, "max": 3 * p50_us}
    return OnlineNumbers(requests, 0, latency, window_s)


def offline(kernels: float, preempts: int = 0) -> OfflineNumbers:
    return OfflineNumbers(kernels, 1.0, None, preempts)


def statistics(suspends: int, cost_us: float = 500.0) -> dict[str, object]:
    cost = {"count": suspends, "p50_us": cost_us}
    return {"suspends": suspends, "resumes": suspends, "suspend": cost, "resume": cost}


def phases(
    *, p50_us: float = 25_000.0, kernels: float = 75.0, suspends: int = 10, wrong: str = ""
) -> dict[str, Phase]:
    """A run in which requests of 20 ms take a fifth of the time."""
    made = [
        Phase("online alone", "alone", 1.0, online=[online(20_000.0)]),
        Phase("offline alone", "alone", 1.0, offline=[offline(100.0)]),
        Phase("together", "both", 1.0, online=[online(100_000.0)], offline=[offline(90.0)]),
        Phase(
            "scheduler",
            "both",
            1.0,
            online=[online(p50_us)],
            offline=[offline(kernels, suspends)],
            scheduler=statistics(suspends),
            wrongs=[wrong] if wrong else [],
        ),
        Phase("priorities", "both", 1.0, online=[online(21_000.0)], offline=[offline(79.0)]),
    ]
    return {phase.name: phase for phase in made}


def judged(made: dict[str, Phase]) -> dict[str, Criterion]:
    alone, offline_alone = made["online alone"], made["offline alone"]
    kept = {
        name: value
        for name, phase in made.items()
        if (value := phase.kept(alone, offline_alone)) is not None
    }
    return {one.name: one for one in preemption.judge(made, kept)}


def test_a_good_run_passes() -> None:
    lines = judged(phases())
    assert {name: one.passed for name, one in lines.items()} == {
        **{name: True for name in lines},
    }
    assert "10 suspensions" in lines["the online model preempts the offline one"].reason
    assert "0.25 of what it is" in lines["the online model gains by it"].reason
    assert "1.25 (at most 2.5)" in lines["online latency"].reason
    assert is_passed(lines.values(), True)


@pytest.mark.parametrize(
    "change, name",
    [
        ({"suspends": 0}, "the online model preempts the offline one"),
        ({"kernels": 0.0}, "the offline model resumes"),
        ({"wrong": "it ran twice"}, "nothing is lost, nothing fails, nothing stays suspended"),
    ],
)
def test_what_must_be_so_fails_the_run(change: dict[str, object], name: str) -> None:
    lines = judged(phases(**change))  # type: ignore[arg-type]
    assert lines[name].passed is False and lines[name].word == "FAIL"
    assert not is_passed(lines.values(), False)


@pytest.mark.parametrize(
    "change, name",
    [
        ({"p50_us": 100_001.0}, "the online model gains by it"),
        ({"p50_us": 50_001.0}, "online latency"),
        ({"kernels": 63.0}, "offline throughput"),
    ],
)
def test_what_should_be_so_fails_only_a_strict_run(change: dict[str, float], name: str) -> None:
    lines = judged(phases(**change))  # type: ignore[arg-type]
    assert lines[name].word == "missed"
    assert is_passed(lines.values(), False) and not is_passed(lines.values(), True)


def test_what_would_be_nice_fails_nothing() -> None:
    lines = judged(phases(p50_us=31_000.0, kernels=65.0))
    assert lines["low online latency"].passed is False
    assert lines["high offline throughput"].passed is False
    assert is_passed(lines.values(), True)


def test_what_was_not_measured_is_not_met() -> None:
    made = phases()
    made["scheduler"].online = []
    lines = judged(made)
    assert lines["online latency"].passed is False
    assert lines["the online model preempts the offline one"].passed is False
    for judge in (at_most, at_least):
        assert judge(Rank.MUST, "x", None, 1.0, "y").passed is False


def test_kept_is_of_the_time_that_online_work_leaves() -> None:
    made = phases(kernels=40.0)
    kept = made["scheduler"].kept(made["online alone"], made["offline alone"])
    assert kept == pytest.approx(0.5)
    made["scheduler"].online = [online(25_000.0, requests=50)]
    assert made["scheduler"].kept(made["online alone"], made["offline alone"]) is None


def test_complaints_are_the_reason_each_once() -> None:
    line = nothing_wrong(Rank.MUST, "x", ["a", "b", "a"], "good")
    assert (line.passed, line.reason) == (False, "a; b")
    assert nothing_wrong(Rank.MUST, "x", [], "good").passed is True


def test_totals_between_reports() -> None:
    points: list[tuple[int, float]] = [(100, 0), (200, 10), (300, 10), (400, 20)]
    for when, total in ((100, 0), (150, 5), (200, 10), (250, 10), (350, 15), (900, 20), (0, 0)):
        assert total_at(points, when) == total, when


@pytest.mark.parametrize(
    "ends, part", [([3.0, 2.0, 1.0], 1.0), ([1.0, 2.0, 3.0], 0.0), ([2.0, 3.0, 1.0], 2 / 3)]
)
def test_levels_are_in_order(ends: list[float], part: float) -> None:
    assert boundary.ordered(ends) == pytest.approx(part)
    assert boundary.ordered([]) is None


def test_memory_is_compared_with_what_it_was_early() -> None:
    assert stability.memory([100] * 19).passed is None
    assert stability.memory([50, 90, *[100] * 30]).passed is True
    assert stability.memory([*[100] * 30, 126]).passed is False


@pytest.mark.parametrize(
    "value, seconds", [("4", 4.0), ("0.5", 0.5), ("90s", 90.0), ("10m", 600.0), ("1h", 3600.0)]
)
def test_times(value: str, seconds: float) -> None:
    assert command._time(value) == seconds


@pytest.mark.parametrize("value", ["", "0", "-1", "1d", "h", "25h", "nan", "1e3"])
def test_no_times(value: str) -> None:
    with pytest.raises(Exception, match="no time"):
        command._time(value)


class Paper(Work):
    """Work that does what it is told to."""

    def __init__(self, replay: Optional[list[int]] = None) -> None:
        super().__init__()
        self._numbers: list[int] = []
        self._replay = replay

    @property
    def device(self) -> str:
        return "paper"

    def wait(self) -> bool:
        return True

    def completed(self) -> int:
        return len(self._numbers)

    def close(self) -> None:
        pass

    def _submit(self, number: int) -> bool:
        self._numbers.append(number)
        return True

    def _words(self) -> set[int]:
        word = 0
        for number in self._numbers if self._replay is None else self._replay:
            word = mixed(word, number)
        return {word}


@pytest.mark.parametrize("ran", [[0, 1], [0, 1, 2, 2], [0, 2, 1], [1, 2], [0, 1, 2, 3]])
def test_work_that_is_not_done_once_and_in_order_is_noticed(ran: list[int]) -> None:
    for work, is_exact in ((Paper(), True), (Paper(ran), False)):
        for _ in range(3):
            assert work.submit()
        assert work.is_exact() == is_exact


def result(name: str = "basic") -> Result:
    made = phases()
    case = CaseResult(name, name, list(made.values()), list(judged(made).values()))
    case.kept["scheduler"] = 0.94
    return Result("emulated", "the command", {"device": name}, "now", "later", cases=[case])


def test_the_results_file_has_every_phase_and_every_line() -> None:
    one = result()
    one.cases[0].phases[3].wrongs.append("it ran twice")
    told = one.to_dict()
    assert [mode["name"] for mode in told["modes"]] == list(phases())
    assert [mode["alone"] for mode in told["modes"]] == [None, *["online alone"] * 4]
    alone, _, together, scheduler, _ = told["measurements"]
    assert alone["be"] is None and together["be"]["of_alone"] == pytest.approx(0.9)
    assert scheduler["be"]["kept"] == 0.94
    assert scheduler["status"] == {"state": "failed", "reason": "it ran twice"}
    latency = scheduler["lc"]["latency"]
    # Percentiles that a load does not report are the next higher ones.
    assert [latency[f"{name}_ns"] for name in ("p50", "p90", "p95", "p99", "p999", "max")] == [
        *[25_000_000] * 2,
        *[50_000_000] * 2,
        *[75_000_000] * 2,
    ]
    assert latency["cdf"][-1]["share"] == 1.0
    assert len(told["checks"]) == len(one.cases[0].criteria)
    assert told["checks"][0]["name"].startswith("must: ")


def test_an_interrupted_run_has_not_passed_and_is_shown() -> None:
    half = result()
    assert half.passed
    half.finished = None
    assert not half.passed
    assert "interrupted" in half.to_dict()["conclusion"] and "interrupted" in text.summary(half)
    half.cases.append(CaseResult("boundary", "nothing yet"))
    assert half.to_dict()["cases"][-1]["title"] == "nothing yet"


def test_the_text_has_every_phase_and_every_line() -> None:
    told = text.summary(result())
    assert "25.00 ms" in told and "must" in told and told.endswith("passed (basic)")
