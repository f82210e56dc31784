"""The charts of the last hour, and years of calendars: what is drawn is what was counted."""

from __future__ import annotations

import re
from datetime import date, datetime, timezone

import pytest

from redbeat.store.figures import BOUNDS
from redbeat.telemetry.metrics.last_hour import LastHour, Minute, quantile_of
from redbeat.web.charts.minutes import HEIGHT, WIDTH, bars_of, lines_of, rows_of
from redbeat.web.charts.years import draw_year

AT = datetime(2026, 3, 14, 9, 26, tzinfo=timezone.utc)
NOBODY = (0,) * (len(BOUNDS["late"]) + 1)


def minute(sent: int = 0, failed: int = 0, **buckets: int) -> Minute:
    late = [buckets.get(f"in_{bucket}", 0) for bucket in range(1, len(NOBODY) + 1)]
    return Minute(AT, sent, failed, tuple(late))


def test_a_part_of_the_runs_is_late_by_less_than_a_point_in_its_bucket() -> None:
    assert quantile_of(NOBODY, 0.5) is None
    assert quantile_of(minute(in_1=10).late, 0.5) == pytest.approx(0.005)
    assert quantile_of(minute(in_1=50, in_3=50).late, 0.5) == pytest.approx(0.01)
    assert quantile_of(minute(in_1=50, in_3=50).late, 0.75) == pytest.approx(0.3)
    assert quantile_of(minute(in_9=1).late, 0.95) == BOUNDS["late"][-1]
    hour = LastHour([minute(sent=2, in_1=2), minute(sent=2, failed=3, in_4=2)], is_counted=True)
    assert (hour.sent, hour.failed) == (4, 3)
    assert hour.late_seconds(0.95) == pytest.approx(0.95)


def test_bars_of_sent_and_failed_runs_have_one_scale_and_stay_in_the_chart() -> None:
    chart = bars_of([minute(), minute(100, 0), minute(50, 50), minute(1, 1)] * 15)
    nothing, most, half, one = chart.bars[:4]
    assert (chart.most, chart.worst) == (100, 50)
    assert nothing.sent_height == nothing.failed_height == 0
    assert most.sent_height == pytest.approx(2 * half.sent_height, rel=0.01)
    assert half.failed_height == pytest.approx(half.sent_height, rel=0.01)
    assert one.sent_height >= 1.5  # one can see it
    for bar in chart.bars:
        assert bar.x >= 0
        assert bar.x + bar.width <= WIDTH
        assert bar.sent_y >= 0
        assert chart.middle + bar.failed_height <= HEIGHT


def test_a_single_failure_among_thousands_of_runs_is_seen() -> None:
    chart = bars_of([minute(5000, 1)] + [minute(4000, 0)] * 59)
    assert chart.bars[0].failed_height >= 8
    assert chart.bars[0].sent_height > 80
    assert chart.middle + chart.bars[0].failed_height <= HEIGHT


def test_lines_are_interrupted_where_nothing_was_sent_and_stay_in_the_chart() -> None:
    assert lines_of([minute()] * 60).most == ""
    late = [minute(10, in_1=10)] * 3 + [minute()] + [minute(10, in_9=10)] * 2
    chart = lines_of(late)
    assert chart.most.count("M") == chart.half.count("M") == 2
    heights = [float(y) for y in re.findall(r"[ML][\d.]+ ([\d.]+)", chart.most)]
    assert all(0 <= y <= HEIGHT for y in heights)
    assert heights[0] > heights[-1]  # late is high
    assert [mark.label for mark in chart.marks][-1] == "3 h"
    assert [mark.label for mark in lines_of([minute(1, in_1=1)]).marks][-1] == "1 s"


def test_the_table_has_the_latest_minute_first() -> None:
    first, last = minute(10, 1, in_1=10), minute(20)
    assert [(row.sent, row.failed, row.half_late) for row in rows_of([first, last])] == [
        (20, 0, None),
        (10, 1, pytest.approx(0.005)),
    ]


def test_a_day_tells_a_few_of_many_labels_each_once() -> None:
    fields = {f"2026-01-01/2026-12-{day:02}": f"label {day % 9}" for day in range(1, 31)}
    fields |= {"2026-06-01": "", "2026-12-31": "the last", "2026-12-31/2027-01-01": "the last"}
    year = draw_year(fields, 2026, timezone.utc, date(2026, 7, 1))
    words = {day.on: day.words for month in year.months for day in month.days}
    assert words[date(2026, 1, 1)] == "excluded: label 1, label 2, label 3, label 4, label 5 and 4 more"
    assert words[date(2026, 6, 1)] == words[date(2026, 1, 1)]
    assert words[date(2026, 12, 31)] == "excluded: the last"
    assert (year.excluded, len(year.rows)) == (365, 33)
