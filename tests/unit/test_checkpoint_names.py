import pytest

from supervisor.checkpoint.names import format_name, parse_name


@pytest.mark.parametrize(
    ("name", "step", "attempt"),
    [
        ("step-120", 120, None),
        ("step_120", 120, None),
        ("step-00000120", 120, None),
        ("checkpoint-120", 120, None),
        ("ckpt-120", 120, None),
        ("iter_0000120", 120, None),
        ("global_step120", 120, None),
        ("120", 120, None),
        ("step-120-a7", 120, 7),
        ("step-00000120.a7", 120, 7),
        ("120-a0", 120, 0),
    ],
)
def test_a_save_is_known_by_its_name(name: str, step: int, attempt: int | None) -> None:
    assert parse_name(name) == (step, attempt)


@pytest.mark.parametrize(
    "name",
    [
        ".trash-step-9",
        "step-9.tmp",
        "step-9-a",
        "step--9",
        "step-",
        "xstep-9",
        "step-9\n",
        "step-9 ",
        "step-\u0669",
        "step-9-a7-a8",
        "latest",
        "",
        "step-" + "9" * 5000,
    ],
)
def test_anything_more_than_a_save_name_is_no_save(name: str) -> None:
    assert parse_name(name) is None


def test_the_name_of_a_fresh_save_is_read_back() -> None:
    assert parse_name(format_name(120, 7)) == (120, 7)
