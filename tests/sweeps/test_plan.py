from dataclasses import replace
from pathlib import Path

import pytest

from models.checkpoints import save_checkpoint
from models.mamba2.dims import SIZES
from models.mamba2.model import Mamba2LanguageModel
from storage.hub import is_commit
from sweeps.plan import make_plan
from sweeps.planned import SweepPlan
from sweeps.settings import SettingError
from tests.tokenizer_makers import VOCABULARY, added_token, changed, make_tokenizer

TOKENIZER = "neox/tokenizer.json"
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
    banks = {trial.label: trial.as_json()["bank"] for trial in make_plan("noise_scale", "demo", SMALL, 1).trials}
    # 24 rows x 2 layers x 16 heads x 16 channels x 64 columns x 4 bytes
    passing = banks.pop("state_passing")
    assert (passing["mode"], passing["step_bytes"]) == ("everything", 24 * 2 * 16 * 16 * 64 * 4)
    assert set(banks.values()) == {None}


def test_threads_limit_how_many_trials_run_at_once() -> None:
    plan = make_plan("noise_scale", "demo", [*SMALL, "trial.threads=2"], 1)
    assert plan.concurrency(cpus=4) == 2 and plan.concurrency(cpus=2) == 1


def test_gpus_limit_them_too_unless_the_trials_run_on_cpus() -> None:
    plan = make_plan("noise_scale", "demo", [*SMALL, "trial.workers=2"], 1)
    assert plan.concurrency(cpus=16, gpus=4) == 2
    on_cpus = make_plan("noise_scale", "demo", [*SMALL, "trial.workers=2", "trial.device=cpu"], 1)
    assert on_cpus.concurrency(cpus=16, gpus=4) == 8


@pytest.mark.parametrize(
    ("name", "assignments", "sentence"),
    [
        ("noise_scal", [], "did you mean 'noise_scale'"),
        ("noise_scale", ["sweep.values=0.1,0.1"], "has a value twice"),
        ("noise_scale", ["sweep.values=-1"], "intervention.sigma is -1.0"),
        ("noise_scale", ["sweep.values=nan"], "intervention.sigma is nan"),
        ("noise_scale", ["data.files=/no/such/file.txt"], "/no/such/file.txt"),
        ("noise_scale", ["base.checkpoint=/no/such/folder"], "/no/such/folder"),
        ("demo_base", ["sweep.values=1"], "sweep.values is set, but the sweep demo_base has no choice of values"),
        ("steps", ["sweep.values=1.5"], "sweep.values holds 1.5, but trial.steps is a whole number"),
        ("steps", ["sweep.stage=pretrain"], "the sweep steps has no stage 'pretrain'; it has no stages"),
        ("warmup", ["sweep.stage=later"], "has no stage 'later'; it has pretrain, posttrain"),
        ("beta", ["sweep.sizes=demo"], "sweep.sizes is set, but the sweep beta has no choice of sizes"),
        ("context_length", ["sweep.values=100"], "a step of 3072 tokens .* is no whole number of such windows"),
        ("training_tokens", ["base.checkpoint=demo-mamba2"], "write base.checkpoint=trained"),
    ],
)
def test_mistakes_are_found_before_anything_starts(name: str, assignments: list[str], sentence: str) -> None:
    with pytest.raises(SettingError, match=sentence):
        make_plan(name, "demo", assignments, 1)


def test_an_unknown_preset_names_those_there_are() -> None:
    with pytest.raises(SettingError, match="no preset 'huge'; it has demo"):
        make_plan("noise_scale", "huge", [], 1)


def save_small_base(folder: Path, vocabulary: int) -> None:
    small = replace(SIZES["demo"], vocab_size=vocabulary)
    save_checkpoint(Mamba2LanguageModel(small, seed=0), small, folder)


@pytest.fixture
def published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a small checkpoint, tokenizer and text in place of those that the preset names."""
    save_small_base(tmp_path / "state-spaces" / "mamba2-130m", VOCABULARY)
    (tmp_path / TOKENIZER).parent.mkdir(parents=True)
    make_tokenizer(tmp_path / TOKENIZER)
    (tmp_path / "texts.jsonl").write_text("".join(f'{{"text": "speech {number}"}}\n' for number in range(30)))
    monkeypatch.chdir(tmp_path)
    return tmp_path


PUBLISHED = "base.checkpoint=state-spaces/mamba2-130m"


def paper(*assignments: str) -> SweepPlan:
    own = ["model.size=demo", PUBLISHED, "data.files=texts.jsonl", f"data.tokenizer={TOKENIZER}"]
    return make_plan("noise_scale", "paper", [*own, *assignments], 1)


def test_paper_preset_takes_base_and_tokenizer_from_the_current_folder(published: Path) -> None:
    plan = paper()
    config = plan.trials[0].config
    assert config.base.checkpoint == str(published / "state-spaces" / "mamba2-130m")
    assert config.data.tokenizer == str(published / TOKENIZER)
    assert config.data.packing == "eos" and config.trial.context == 2048
    assert {trial.dims.vocab_size for trial in plan.trials} == {VOCABULARY}


def test_identity_follows_the_content_of_the_tokenizer_and_not_its_place(published: Path) -> None:
    (published / "elsewhere").mkdir()
    (published / TOKENIZER).rename(published / "elsewhere" / "t.json")
    elsewhere = paper("data.tokenizer=elsewhere/t.json")
    # The same content as JSON, in other bytes: to be safe it counts as another tokenizer.
    changed(published / "elsewhere" / "t.json", "other.json", lambda values: None)
    other = paper("data.tokenizer=elsewhere/other.json")
    (published / "elsewhere" / "t.json").rename(published / TOKENIZER)
    assert paper().identity == elsewhere.identity != other.identity


def test_bytes_and_a_tokenizer_file_have_other_identities(published: Path) -> None:
    identities = {paper("base.checkpoint=fresh", f"data.tokenizer={name}").identity for name in ("bytes", TOKENIZER)}
    assert len(identities) == 2


COMMIT = "c0ffee" + "0" * 34


def shown(*assignments: str) -> SweepPlan:
    own = ["base.checkpoint=fresh", "model.size=demo", *assignments]
    return make_plan("noise_scale", "paper", own, 1, to_show=True)


def test_text_and_tokenizer_of_the_paper_preset_are_pinned_and_shown_without_a_network() -> None:
    plan = shown()
    data = plan.trials[0].config.data
    assert (data.dataset, data.dataset_split, data.max_tokens) == ("monology/pile-uncopyrighted", "train", 10**9)
    assert is_commit(data.revision) and is_commit(data.tokenizer.removeprefix("EleutherAI/gpt-neox-20b@"))
    assert plan.trials[0].dims.vocab_size == 50_277
    assert f"the tokenizer {data.tokenizer}" in plan.fetches
    assert f"revision {data.revision}, the first 1,000,000,000 tokens, into the token cache in " in plan.fetches[-1]


def test_text_of_the_users_own_takes_the_place_of_the_presets(published: Path) -> None:
    data = paper().trials[0].config.data
    assert data.files == (str(published / "texts.jsonl"),)
    assert (data.dataset, data.revision, data.max_tokens) == ("", "", 0)
    other = shown("data.dataset=own/text", "data.dataset_split=all").trials[0].config.data
    assert (other.dataset, other.dataset_split, other.revision, other.max_tokens) == ("own/text", "all", "", 10**9)
    with pytest.raises(SettingError, match="data.dataset=own/text and data.files=.*texts.jsonl are both set"):
        shown("data.dataset=own/text", "data.files=texts.jsonl")


def test_a_branch_is_named_in_a_plan_that_is_shown_and_identities_follow_the_name(published: Path) -> None:
    own = ["data.dataset=own/text", f"data.tokenizer={TOKENIZER}"]
    plans = [shown(*own, *more) for more in ([], ["data.revision=v1"], ["data.field=body"])]
    assert "the text own/text, split train, revision main, " in plans[0].fetches[-1]
    assert len({plan.identity for plan in plans}) == 3


def test_a_commit_gives_the_identity_of_the_run_without_asking(published: Path) -> None:
    own = ["base.checkpoint=fresh", "model.size=demo", "data.dataset=own/text", f"data.tokenizer={TOKENIZER}"]
    own += [f"data.revision={COMMIT}"]
    assert shown(*own).identity == make_plan("noise_scale", "paper", own, 1).identity


def test_the_shared_folder_of_caches_is_no_part_of_the_identity(published: Path) -> None:
    assert paper("data.cache=here").identity == paper("data.cache=there").identity


@pytest.mark.parametrize(
    ("assignment", "sentence"),
    [
        ("base.checkpoint=/no/such/folder", "base.checkpoint is '/no/such/folder', which is no folder"),
        ("data.tokenizer=/no/such/t.json", "there is no file /no/such/t.json; write 'bytes' or the path"),
        ("data.tokenizer=texts.json", "texts.json is not the JSON of a tokenizer"),
        (
            f"data.tokenizer={Path(TOKENIZER).with_name('spaces.json')}",
            "vocabulary of 500, but the tokenizer has 501 entries",
        ),
        ("data.tokenizer=bytes", "vocabulary of 500, but the tokenizer has 256 entries"),
        ("data.tokenizer=endless.json", "endless.json has none of the tokens .*; write data.packing=document"),
    ],
)
def test_a_tokenizer_or_base_that_does_not_fit_is_found_before_anything_starts(
    published: Path, assignment: str, sentence: str
) -> None:
    (published / "texts.json").write_text('{"text": "no tokenizer"}')
    space = added_token("    ", VOCABULARY)
    changed(published / TOKENIZER, "spaces.json", lambda values: values["added_tokens"].append(space))
    make_tokenizer(published / "endless.json", ())
    with pytest.raises(SettingError, match=sentence):
        paper(assignment)
