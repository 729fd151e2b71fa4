"""Files of visits: what is read, in which order, and how each bad row is named."""

import pytest

from whence import WhenceError
from whence_papers.pointer.next_location.visits import Visit, describe_time_zones, read_visits

HEAD = "user_id,location_id,start_day,start_min,weekday"


def written(tmp_path, text, **how):
    path = tmp_path / "visits.csv"
    path.write_text(text, **how)
    return path


def refused(path):
    with pytest.raises(WhenceError) as error:
        read_visits(path, "asked")
    return str(error.value)


def test_rows_become_visits_in_time_within_each_user(tmp_path):
    path = written(tmp_path, f"id,{HEAD},duration\n7,b,y,1,30,2,45.5\n8,a,x,0,5,1,\n\n9,b,z,1,20,2,10\n")
    assert read_visits(path, "asked") == [
        Visit("b", "z", 1, 20, 2, 10.0), Visit("b", "y", 1, 30, 2, 45.5), Visit("a", "x", 0, 5, 1, None),
    ]  # fmt: skip


def test_one_column_of_time_does_too_and_a_mark_of_spreadsheets_is_no_name(tmp_path):
    path = written(
        tmp_path, "user_id,location_id,time\na,x,2024-05-17T08:30\na,y,2024-05-18 00:05\n", encoding="utf-8-sig"
    )
    first, second = read_visits(path, "asked")
    assert (first.minute, first.weekday, second.minute, second.weekday) == (510, 4, 5, 5)  # a Friday, then a Saturday
    assert second.day - first.day == 1


def test_days_may_be_dates_and_then_need_no_weekday(tmp_path):
    for text in ("user_id,location_id,start_day,start_min\na,x,2024-05-17,510", f"{HEAD}\na,x,2024-05-17,510,4"):
        (visit,) = read_visits(written(tmp_path, text), "asked")
        assert (visit.day, visit.minute, visit.weekday) == (739023, 510, 4)
    for row, expected_text in (
        ("a,x,2024-05-17,510,0", "line 2 (weekday=0, but 2024-05-17 has weekday 4)"),
        ("a,x,2024-05-32,510,0", "line 2 (start_day='2024-05-32' is not a date)"),
    ):
        assert expected_text in refused(written(tmp_path, f"{HEAD}\n{row}"))
    text = "user_id,location_id,start_day,start_min\na,x,12,510"
    assert "line 2 (start_day='12' is not a date, so a column weekday is needed)" in refused(written(tmp_path, text))


def test_time_zones_are_named(tmp_path):
    head = "user_id,location_id,time\n"
    rows = ["a,x,2024-05-17T08:30+02:00", "a,y,2024-05-17T09:00", "a,z,2024-05-17T09:30+02:00"]
    assert "line 3 (no UTC offset, unlike line 2)" in refused(written(tmp_path, head + "\n".join(rows)))
    rows = ["a,x,2024-05-17T08:30", "a,y,2024-05-17T09:00Z", "a,z,2024-05-17T09:30"]
    assert "line 3 (a UTC offset, unlike line 2)" in refused(written(tmp_path, head + "\n".join(rows)))
    rows = ["a,later,2024-05-17T08:30+01:00", "a,earlier,2024-05-17T08:45+02:00"]
    visits = read_visits(written(tmp_path, head + "\n".join(rows)), "asked")
    assert [visit.place for visit in visits] == ["earlier", "later"] and visits[0].minute == 525
    assert "+01:00 (1 visit), +02:00 (1 visit)" in describe_time_zones(visits)
    assert describe_time_zones(visits[:1]) == "" == describe_time_zones([Visit("a", "x", 1, 2, 3)])


def test_bad_rows_are_named_with_their_lines(tmp_path):
    rows = ["a,x,1,2,3", "a,x,1,2", ",x,1,2,3", "a,,1,2,3", "a,x,-1,2,3", "a,x,1,1440,3", "a,x,1,2,7", "a,x,1.5,2,3"]
    message = refused(written(tmp_path, "\n".join([HEAD, *rows])))
    assert message.startswith("asked got visits.csv") and message.endswith("correct these rows.")
    for part in (
        "line 3 (4 cells for 5 columns)",
        "line 4 (no user_id)",
        "line 5 (no location_id)",
        "line 6 (start_day='-1'",
        "from 0 to 3652059",
        "line 7 (start_min='1440'",
        "from 0 to 1439",
        "and lines 8 to 9",
    ):
        assert part in message  # fmt: skip
    long = f"{HEAD},duration\n\na,x,1,2,3,nan\na,x,1,2,3,-5\na,x,1,2,3,soon\n"
    expected_text = refused(written(tmp_path, long))
    assert all(
        f"line {line} (duration={value!r}" in expected_text for line, value in ((3, "nan"), (4, "-5"), (5, "soon"))
    )
    assert "line 2 (time='yesterday' is not a date and time)" in refused(
        written(tmp_path, "user_id,location_id,time\na,x,yesterday\n")
    )


def test_no_bad_row_goes_without_its_line(tmp_path):
    good, bad = "a,x,1,2,3", "a,x,1,2,9"
    rows = [bad] * 6 + [good, bad, good, good, bad, bad, bad]
    expected_text = refused(written(tmp_path, "\n".join([HEAD, *rows])))
    assert (
        all(f"line {line} (weekday='9'" in expected_text for line in range(2, 7))
        and "; and lines 7, 9, 12 to 14, but" in expected_text
    )
    assert "; and line 7, but" in refused(written(tmp_path, "\n".join([HEAD, *[bad] * 6])))


@pytest.mark.parametrize(
    "rows, expected_text",
    [
        (
            'a,"x\ny",1,2,3\na,"x\ny",1,2,9',
            "line 4 (weekday='9'",
        ),  # a cell may have lines, a row begins where it begins
        ('a,x,1,2,3\na,"x,1,2,3\na,x,1,2,3', "line 3 (invalid CSV from here on: unexpected end of data)"),
        ('a,x,1,2,3\na,x,1,2,"3', "line 3 (invalid CSV from here on: unexpected end of data)"),
        (f"a,{'x' * 200_000},1,2,3", "line 2 (invalid CSV from here on: field larger"),
        ("a,x,1,2,3\na,x,99999999999999999999,2,3", "line 3 (start_day='99999999999999999999'"),
    ],
)
def test_rows_that_hide_others_or_do_not_end(tmp_path, rows, expected_text):
    assert expected_text in refused(written(tmp_path, f"{HEAD}\n{rows}\n"))


@pytest.mark.parametrize(
    "text, expected_text",
    [
        ('"user_id,location_id\n', "line 1 (invalid CSV from here on"),
        ("user_id,start_day\n1,2\n", "without location_id, start_min"),
        (f"{HEAD},user_id\n", "with user_id twice"),
        (f"{HEAD}\n", "without a visit"),
        ("", "without location_id, start_day, start_min, user_id"),
    ],
)
def test_files_without_what_is_needed(tmp_path, text, expected_text):
    assert expected_text in refused(written(tmp_path, text))


def test_no_file_and_no_text(tmp_path):
    assert "no file" in refused(tmp_path / "none.csv")
    assert "Is a directory" in refused(tmp_path)
    (tmp_path / "visits.csv").write_bytes(b"user_id,\xff\xfe")
    assert "at byte 8" in refused(tmp_path / "visits.csv")
