"""Times and memory sizes: the table of sbatch(1), and what is printed reads back."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.domain.units import format_slurm_time, parse_duration, parse_memory, parse_slurm_time

H = timedelta(hours=1)
M = timedelta(minutes=1)
S = timedelta(seconds=1)
DAY = timedelta(days=1)

seconds = st.integers(0, 10**9)  # more than thirty years


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("90", 90 * M),
        ("0", timedelta(0)),
        ("1:30", M + 30 * S),
        ("90:00", 90 * M),
        ("12:00:00", 12 * H),
        ("100:00:00", 100 * H),
        ("2-0", 2 * DAY),
        ("1-12", 36 * H),
        ("1-12:30", 36 * H + 30 * M),
        ("1-12:30:15", 36 * H + 30 * M + 15 * S),
        ("0-1", H),
        ("007", 7 * M),
        ("UNLIMITED", None),
        ("infinite", None),
    ],
)
def test_a_time_means_what_sbatch_takes_it_for(text: str, meaning: timedelta | None) -> None:
    assert parse_slurm_time(text) == meaning


@pytest.mark.parametrize(
    "text",
    [
        "",
        "soon",
        "-1",
        "1.5",
        "1:2:3:4",
        "1-",
        "-1:00",
        "1-2-3",
        "1h",
        " 90",
        "90 ",
        "1:-2",
        "1:",
        "\n1",
        "1\n",
        "9" * 20,
        "\N{ARABIC-INDIC DIGIT ONE}",
    ],
)
def test_what_is_no_time_is_an_error_that_names_the_forms(text: str) -> None:
    with pytest.raises(ValueError, match=r"MM:SS, HH:MM:SS"):
        parse_slurm_time(text)


@given(seconds)
def test_a_printed_time_reads_back(value: int) -> None:
    duration = timedelta(seconds=value)
    assert parse_slurm_time(format_slurm_time(duration)) == duration


@given(st.integers(0, 400), st.integers(0, 23), st.integers(0, 59), st.integers(0, 59))
def test_all_forms_with_days_agree(days: int, hours: int, minutes: int, secs: int) -> None:
    whole = timedelta(days=days, hours=hours, minutes=minutes, seconds=secs)
    assert parse_slurm_time(f"{days}-{hours}:{minutes}:{secs}") == whole
    assert parse_slurm_time(f"{days}-{hours:02d}:{minutes:02d}:{secs:02d}") == whole
    assert parse_slurm_time(f"{days}-{hours}:{minutes}") == whole - secs * S
    assert parse_slurm_time(f"{days}-{hours}") == whole - secs * S - minutes * M


@pytest.mark.parametrize(
    ("duration", "text"),
    [
        (timedelta(0), "00:00:00"),
        (59 * S, "00:00:59"),
        (H, "01:00:00"),
        (DAY - S, "23:59:59"),
        (DAY, "1-00:00:00"),
        (100 * DAY + H, "100-01:00:00"),
        (timedelta(seconds=1.9), "00:00:01"),
        (-5 * S, "00:00:00"),
        (None, "UNLIMITED"),
    ],
)
def test_a_time_is_printed_as_squeue_does(duration: timedelta | None, text: str) -> None:
    assert format_slurm_time(duration) == text


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("90s", 90 * S),
        ("5m", 5 * M),
        ("1.5h", 90 * M),
        ("2d", 2 * DAY),
        ("0s", timedelta(0)),
        ("01:30:00", 90 * M),
        ("90", 90 * M),
        ("1-0", DAY),
    ],
)
def test_a_duration_of_ours_has_a_unit_or_is_a_slurm_time(text: str, meaning: timedelta) -> None:
    assert parse_duration(text) == meaning


@pytest.mark.parametrize(
    "text",
    [
        "UNLIMITED",
        "5w",
        "5 m",
        "m",
        "-5m",
        "5M",
        "",
        "1e3s",
        "5m\n",
        "9" * 20 + "d",
    ],
)
def test_an_endless_or_senseless_duration_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"duration|Slurm time"):
        parse_duration(text)


@given(st.integers(0, 10**8 - 1))
def test_a_duration_in_seconds_reads_back(value: int) -> None:
    assert parse_duration(f"{value}s") == timedelta(seconds=value)


@pytest.mark.parametrize(
    ("text", "mib"),
    [
        ("0", 0),
        ("4000", 4000),
        ("4000M", 4000),
        ("4G", 4096),
        ("1T", 1024 * 1024),
        ("2048K", 2),
        ("1000K", 0),
        ("4g", 4096),
        ("4GB", 4096),
    ],
)
def test_a_memory_size_means_what_sbatch_takes_it_for(text: str, mib: int) -> None:
    assert parse_memory(text) == mib


@pytest.mark.parametrize(
    "text",
    [
        "",
        "G",
        "4P",
        "4.5G",
        "-4G",
        "4 G",
        "4GiB",
        "all",
        "4G\n",
        "9" * 400,
        "4\N{KELVIN SIGN}",
    ],
)
def test_what_is_no_memory_size_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="is not a memory size"):
        parse_memory(text)


@given(st.integers(0, 10**7), st.sampled_from([("K", 1), ("M", 1024), ("G", 1024**2), ("T", 1024**3)]))
def test_a_suffix_multiplies(number: int, unit: tuple[str, int]) -> None:
    suffix, factor = unit
    assert parse_memory(f"{number}{suffix}") == number * factor // 1024
    assert parse_memory(f"{number}{suffix.lower()}") == parse_memory(f"{number}{suffix}B")


@given(st.text(max_size=20))
def test_any_text_is_read_or_refused_and_nothing_else(text: str) -> None:
    for parse in (parse_slurm_time, parse_duration, parse_memory):
        try:
            parse(text)
        except ValueError:
            continue
