"""Several rounds: pooled figures, the wider interval, and what differs between rounds."""

import numpy as np
import pytest
from make import level, make_run, record
from report_make import level as summed
from report_make import view

from loadgen.analysis.distribution import QUANTILES
from loadgen.analysis.metrics import summarise
from loadgen.analysis.soundness import measurement_checks
from loadgen.analysis.stats import error_of_median, spread_by_chance, t_interval
from loadgen.analysis.summary import LevelSummary, Quantile, RoundFigures
from loadgen.analysis.table import RunData
from loadgen.analysis.times import SPEEDS, TIMES, _wider
from loadgen.report.write import view_of


def of_rounds(*means_ms: float, n: int = 60) -> RunData:
    """One slot in each round; all rounds draw the same noise around a mean of their own."""
    noise, records, levels = np.random.default_rng(3).normal(0, 1, n), [], []
    for number, mean in enumerate(means_ms):
        start = now = 1e6 * number
        for ttft in mean + noise:
            facts = {"at": [ttft, ttft + 10], "round": number}
            records.append(record(len(records), sent=now, **facts))
            now += ttft + 10
        levels.append(level(round=number, window=(start, now), concurrency=1))
    return make_run(records, levels)


def only(run: RunData) -> LevelSummary:
    (found,) = summarise(run).levels
    return found


def of_a_schedule(seed: int, *, third: float = 1.0, tokens: int = 24) -> LevelSummary:
    """Three rounds of Poisson arrivals at a server that serves all; the third's times are longer.

    Answers have up to so many tokens.
    """
    rng, records, levels = np.random.default_rng(seed), [], []
    for number, slower in enumerate((1.0, 1.0, third)):
        start = 1e6 * number
        for due in np.sort(rng.uniform(0, 10_000, rng.poisson(100))):
            ttft, tpot = slower * rng.lognormal((4, 2), 0.1)
            at = ttft + tpot * np.arange(rng.integers(tokens // 4, tokens) + 1)
            records.append(record(len(records), sent=start + due, at=at, round=number))
        levels.append(level(round=number, window=(start, start + 10_000), rate=10.0))
    return only(make_run(records, levels))


def warned(found: LevelSummary) -> bool:
    verdicts = {one.name: one.verdict for one in measurement_checks(found)}
    return verdicts["rounds apart by"] == "warn"


@pytest.mark.parametrize("tokens", [24, 1], ids=["TPOT", "E2E"])
def test_of_a_schedule_a_slower_round_is_told_and_the_arrivals_drawn_are_not(tokens: int) -> None:
    found = of_a_schedule(4, tokens=tokens)
    rates = [one.output_tokens_per_s for one in found.by_round]
    assert np.std(rates, ddof=1) > 0.05 * np.mean(rates)
    assert not warned(found)
    assert warned(of_a_schedule(4, tokens=tokens, third=1.2))


@pytest.mark.parametrize("scatter", [0.05, 0.1, 0.2], ids=lambda share: f"± {share:.0%}")
@pytest.mark.parametrize("n", [50, 100, 200, 400])
def test_how_often_rounds_of_a_schedule_are_told_to_be_apart(n: int, scatter: float) -> None:
    def share(third: float) -> float:
        rng, told = np.random.default_rng(1), []
        for _ in range(300):
            drawn = [rng.lognormal(2, scatter, rng.poisson(n)) for _ in range(3)]
            drawn[2] *= third
            rounds = [
                RoundFigures(round=i, tpot_p50=float(np.median(one)),
                             tpot_p50_error=error_of_median(one))
                for i, one in enumerate(drawn)
            ]  # fmt: skip
            told.append(warned(summed(concurrency=None, rate=10.0, by_round=rounds)))
        return float(np.mean(told))

    assert share(1.0) <= 0.05
    assert share(1.2) > 0.75


def test_the_error_of_a_median_and_what_chance_makes_of_it() -> None:
    rng = np.random.default_rng(5)
    medians = np.median(rng.normal(10, 2, (4000, 100)), axis=1)
    error = error_of_median(rng.normal(10, 2, 100_000))
    assert error is not None
    assert error * np.sqrt(1000) == pytest.approx(medians.std(), rel=0.05)
    spreads = medians[:3999].reshape(-1, 3).std(axis=1, ddof=1)
    apart = spreads > spread_by_chance(np.full(3, medians.std()))
    assert apart.mean() == pytest.approx(0.01, abs=0.008)
    assert error_of_median(np.array([1.0])) is None


def test_rounds_that_differ_widen_the_interval_and_say_so() -> None:
    apart = only(of_rounds(100, 110, 120)).ttft
    assert apart.p50.by_rounds
    assert (apart.p50.low, apart.p50.high) == (pytest.approx(85, abs=2), pytest.approx(135, abs=2))
    assert apart.p50.value == pytest.approx(110, abs=1)


def test_like_rounds_keep_the_interval_of_the_samples() -> None:
    alike = only(of_rounds(100, 100, 100)).ttft
    assert not alike.p90.by_rounds
    assert alike.p90.low < alike.p90.value < alike.p90.high


@pytest.mark.parametrize("slow", [[1000.0], [300.0, 900.0]], ids=["one", "two"])
@pytest.mark.parametrize("rounds", [3, 5, 10], ids=lambda n: f"of {n}")
def test_no_interval_leaves_its_own_percentile_out(rounds: int, slow: list[float]) -> None:
    """The pooled p95 lies in the slow rounds, far from the mean of all rounds' p95."""
    found = only(of_rounds(*[100.0] * (rounds - len(slow)), *slow, n=200))
    for name in (*TIMES, *SPEEDS, "itl"):
        for quantile in QUANTILES:
            one = getattr(getattr(found, name), quantile)
            if one.low is not None:
                assert one.low <= one.value, (name, quantile)
                assert one.high is None or one.value <= one.high, (name, quantile)
    assert found.ttft.p95.by_rounds
    assert found.ttft.p95.low < 100 < found.ttft.p95.high


def test_an_interval_by_rounds_holds_that_of_the_samples_too() -> None:
    pooled = Quantile(value=100, low=80, high=104)
    between = Quantile(low=97, high=130)
    assert _wider(pooled, between) == Quantile(value=100, low=80, high=130, by_rounds=True)
    opened = Quantile(value=100, low=98)
    assert _wider(opened, between) == Quantile(value=100, low=97, high=None, by_rounds=True)
    assert _wider(pooled, Quantile(low=81, high=103)) == pooled


def test_two_rounds_have_no_interval_between_them() -> None:
    assert not only(of_rounds(100, 120)).ttft.p50.by_rounds


def test_the_t_interval_by_hand() -> None:
    found = t_interval(np.array([9.0, 10.0, 11.0]))
    assert found is not None
    assert (found.low, found.high) == (pytest.approx(7.516, abs=1e-3), pytest.approx(12.484, 1e-3))
    assert t_interval(np.array([9.0, 11.0])) is None


def test_each_round_has_its_own_figures() -> None:
    found = only(of_rounds(100, 110, 120)).by_round
    assert [one.round for one in found] == [0, 1, 2]
    assert [one.ttft_p50 for one in found] == pytest.approx([100, 110, 120], abs=1)
    assert [one.arrivals for one in found] == [60, 60, 60]
    assert only(of_rounds(100)).by_round == []


@pytest.mark.parametrize("row", ["F13"])
def test_rounds_are_shown_with_mean_and_spread_and_a_single_run_is_marked(row: str) -> None:
    rates = (25_000.0, 42_000.0, 8_000.0)
    swing = [RoundFigures(round=i, arrivals=50, output_tokens_per_s=r) for i, r in enumerate(rates)]
    table = view(summed(rounds=3, by_round=swing)).rounds
    output = [column.label for column in table.columns].index("output")
    assert [row[1].text for row in table.rows] == ["1", "2", "3", "mean ± spread"]
    assert table.rows[-1][output].text == "25,000 ± 17,000"
    assert "single run" in {fact.label: fact.text for fact in view(summed()).facts}["levels"]
    assert view(summed()).rounds.rows == ()


def test_an_interval_by_rounds_is_labelled_in_every_table() -> None:
    run = of_rounds(100, 110, 120)
    shown = view_of(run, summarise(run))
    ttft = next(table for table in shown.percentiles if table.title.startswith("TTFT"))
    labels = [column.label for column in ttft.columns]
    assert "(by rounds)" in ttft.rows[0][labels.index("p50")].small
    assert shown.intervals.rows[0][2].text.endswith("*")


def test_correlated_samples_say_what_they_are_worth_and_how_many_are_needed() -> None:
    rng = np.random.default_rng(8)
    slow = np.repeat(rng.normal(100, 20, 12), 20)  # 240 requests in 12 spells
    records = [record(i, sent=200.0 * i, at=[one, one + 5]) for i, one in enumerate(slow)]
    run = make_run(records, [level(window=(0, 48_000), concurrency=1)], scenario={
        "each_level": {"truncate": "off"}})  # fmt: skip
    shown = view_of(run, summarise(run))
    ttft = next(table for table in shown.percentiles if table.title.startswith("TTFT"))
    assert "worth" in ttft.rows[0][1].small
    assert int(shown.intervals.rows[0][3].text.removeprefix("needs ").replace(",", "")) > 240
