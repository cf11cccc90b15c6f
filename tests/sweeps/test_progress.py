import io

import pytest

from sweeps.progress import Progress, duration, use_live_display


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (59.4, "59 s"), (60, "1 min 00 s"), (185, "3 min 05 s"), (7800, "2 h 10 min")]
)
def test_durations_read_as_people_say_them(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_a_file_gets_plain_lines() -> None:
    assert not use_live_display(io.StringIO())


def report(done: int, loss: float) -> dict[str, object]:
    return {
        "phase": "training",
        "at": done,
        "of": 100,
        "history": [{"loss": loss, "tokens_per_second": 9000.0}],
    }


def test_one_line_per_event_says_where_things_stand(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(planned=3, finished_before=1, concurrency=1, expected_seconds=30) as progress:
        progress.start("zero")
        progress.report("zero", report(10, 2.5))
        progress.report("zero", report(20, 2.25))
        progress.finish("zero")
        progress.start("random_noise 0.1")
        progress.fail("random_noise 0.1", "the loss is nan")
    lines = capsys.readouterr().err
    assert "training, 10/100, loss 2.500, 9,000 tok/s" in lines
    assert "loss 2.250" not in lines, "a second line within seconds is noise"
    assert "2 of 3 done" in lines and "random_noise 0.1: failed: the loss is nan" in lines


def test_the_eta_counts_what_waits_and_what_runs() -> None:
    progress = Progress(planned=10, finished_before=2, concurrency=2, expected_seconds=30)
    assert progress.eta() == pytest.approx(8 * 30 / 2)
    progress.start("zero")
    assert progress.eta() == pytest.approx((7 * 30 + 30) / 2, abs=1)
    progress.durations = [10.0, 20.0, 60.0]
    assert progress.eta() == pytest.approx((7 * 20 + 20) / 2, abs=1)
