import pytest

from sweeps.plan import check_resources, make_plan
from sweeps.settings import SettingError

SMALL = ["base.checkpoint=fresh", "sweep.values=0.01,0.1"]


def labels(*assignments: str, seeds: int = 1) -> list[str]:
    return [trial.label for trial in make_plan("noise_scale", "demo", [*SMALL, *assignments], seeds).trials]


def test_noise_scale_has_base_control_sigmas_and_reference() -> None:
    assert labels() == ["base", "zero", "random_noise 0.01", "random_noise 0.1", "state_passing"]


def test_its_own_sigmas_are_seven_from_far_too_small_to_far_too_large() -> None:
    plan = make_plan("noise_scale", "demo", ["base.checkpoint=fresh"], 1)
    sigmas = [t.config.intervention.sigma for t in plan.trials if t.config.arm == "random_noise"]
    assert len(sigmas) >= 7 and sigmas == sorted(sigmas) and sigmas[-1] / sigmas[0] >= 1000


def test_seeds_repeat_every_arm_but_the_untouched_base() -> None:
    assert labels(seeds=2).count("base") == 1
    assert [label for label in labels(seeds=2) if "state" in label] == ["state_passing seed 0", "state_passing seed 1"]


def test_identities_differ_and_are_stable() -> None:
    first, again = (make_plan("noise_scale", "demo", SMALL, 2) for _ in range(2))
    identities = [trial.identity for trial in first.trials]
    assert len(set(identities)) == len(identities) and identities == [trial.identity for trial in again.trials]
    assert first.identity == again.identity


def test_only_state_passing_sends_states_to_the_bank() -> None:
    plan = make_plan("noise_scale", "demo", SMALL, 1)
    state_bytes = {trial.label: trial.state_bytes for trial in plan.trials}
    # 48 rows x 2 layers x 16 heads x 16 channels x 64 columns x 4 bytes
    assert state_bytes.pop("state_passing") == 48 * 2 * 16 * 16 * 64 * 4
    assert set(state_bytes.values()) == {0}


def test_threads_limit_how_many_trials_run_at_once() -> None:
    plan = make_plan("noise_scale", "demo", [*SMALL, "trial.threads=2"], 1)
    assert plan.concurrency(cpus=4) == 2 and plan.concurrency(cpus=2) == 1


def test_more_cpus_than_there_are_is_said_at_once() -> None:
    plan = make_plan("noise_scale", "demo", [*SMALL, "trial.workers=4", "trial.threads=2"], 1)
    with pytest.raises(SettingError, match="asks for 8 CPUs .* but this machine has 2"):
        check_resources(plan, 2, "this machine")


@pytest.mark.parametrize(
    ("name", "assignments", "sentence"),
    [
        ("noise_scal", [], "did you mean 'noise_scale'"),
        ("noise_scale", ["sweep.values=0.1,0.1"], "has a value twice"),
        ("noise_scale", ["sweep.values=-1"], "intervention.sigma is -1.0"),
        ("noise_scale", ["sweep.values=nan"], "intervention.sigma is nan"),
        ("noise_scale", ["data.files=/no/such/file.txt"], "/no/such/file.txt"),
        ("noise_scale", ["base.checkpoint=/no/such/folder"], "/no/such/folder"),
        ("demo_base", ["sweep.values=1"], "varies no value"),
    ],
)
def test_mistakes_are_found_before_anything_starts(name: str, assignments: list[str], sentence: str) -> None:
    with pytest.raises(SettingError, match=sentence):
        make_plan(name, "demo", assignments, 1)


def test_an_unknown_preset_names_those_there_are() -> None:
    with pytest.raises(SettingError, match="no preset 'huge'; it has demo"):
        make_plan("noise_scale", "huge", [], 1)
