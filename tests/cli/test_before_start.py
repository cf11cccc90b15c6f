"""What the command line says before anything starts: lists, plans and mistakes."""

import json
import pickle
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from models.shipped import BASES
from tests.cli.command_line import ROOT, Command, environment, small_sweep


def test_list_shows_every_sweep_with_its_question(run_command: Command) -> None:
    done = run_command("--list")
    assert done.returncode == 0
    assert "noise_scale" in done.stdout and "demo_base" in done.stdout and "?" in done.stdout


def test_dry_run_json_is_what_would_run(run_command: Command) -> None:
    done = run_command(*small_sweep("--dry-run", "--json", "--seeds", "2", "--set", "sweep.values=0.1"))
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    assert plan["sweep"] == "noise_scale"
    arms = [(trial["arm"], trial["seed"]) for trial in plan["trials"]]
    one_seed = ["zero", "random_noise", "state_passing"]
    assert arms == [("base", 0), *((arm, 0) for arm in one_seed), *((arm, 1) for arm in one_seed)]
    assert all(trial["config"]["trial"]["steps"] == 4 for trial in plan["trials"])


def test_dry_run_table_shows_trials_needs_and_total(run_command: Command, tmp_path: Path) -> None:
    done = run_command("noise_scale", "--dry-run")
    assert done.returncode == 0, done.stderr
    shown = ("base", "zero", "random_noise 0.1", "state_passing", "3.0 MiB", "10 trials", "1,382,400", "GPU-hours")
    for word in (*shown, "mlflow.db"):
        assert word in done.stdout
    assert list(tmp_path.iterdir()) == [], "a dry run leaves nothing behind"


def test_dry_run_table_shows_what_every_bank_moves_and_holds(run_command: Command) -> None:
    done = run_command("interventions", "--dry-run", "--set", "trial.workers=2", "--set", "sweep.arms=tbtt,reservoir")
    assert done.returncode == 0, done.stderr
    (bank,) = [line.split() for line in done.stdout.splitlines() if "everything" in line and "tbtt" in line]
    # 2 shards; a row of 2 x (16 x 16 x 64 + 384 x 3) x 4 bytes; 24 rows a step, 2 x 12 in a shard, 3 x 12 in a worker.
    numbers = [word for word in bank if word not in ("│", "tbtt", "everything")]
    assert numbers == ["2", "137", "KiB", *("3.2", "MiB") * 2, "4.8", "MiB", "16.1", "MiB"]
    assert "at once: at most" in done.stdout


def test_a_pipe_that_closes_early_gives_no_traceback(tmp_path: Path) -> None:
    command = f"{sys.executable} -m sweeps.run noise_scale --dry-run --json | head -1"
    done = subprocess.run(
        ["bash", "-c", command], cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=60
    )
    assert (done.stdout, done.stderr) == ("{\n", "")


@pytest.mark.parametrize("arguments", [["--help"], ["--list"], ["interventions", "--dry-run"]])
def test_nothing_heavy_is_imported(arguments: list[str], tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "from sweeps.run import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'ray', 'mlflow', 'pandas', 'triton', 'fla', 'mamba_ssm', 'transformers', 'datasets'}\n"
        "heavy &= set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", program, *arguments], cwd=tmp_path, env=environment(), check=True, timeout=60)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["noise_scal"], "did you mean 'noise_scale'"),
        (["noise_scale", "--set", "trial.stepz=3"], "did you mean 'trial.steps'"),
        (["noise_scale", "--set", "sweep.values=-0.1"], "intervention.sigma is -0.1; write a number of at least 0"),
        (["noise_scale", "--set", "sweep.values=abc"], "sweep.values is 'abc'; write a number"),
        (["noise_scale", "--set", "intervention.sigma=1"], "write --set sweep.values="),
        (["noise_scale", "--set", "data.files=missing.txt"], "missing.txt"),
        (["noise_scale", "--set", "data.files=empty.txt"], "empty"),
        (["noise_scale", "--set", "base.checkpoint=nowhere"], "nowhere"),
        (
            ["noise_scale", "--set", "model.size=130m", "--set", "base.checkpoint=demo-mamba2"],
            "d_model = 128, but the chosen model has 768",
        ),
        (["noise_scale", "--set", "trial.workers=24"], "asks for 24 CPUs"),
        (["noise_scale", "--set", "model.kernel=fused"], "a CUDA GPU, which this machine does not have: install"),
        (["interventions", "--set", "trial.rows=80000000"], "lower trial.rows (now 80000000)"),
        (["interventions", "--set", "sweep.arms=tbt"], "did you mean 'tbtt'"),
        (["noise_scale", "--out", "occupied"], "not a sweep"),
        (["noise_scale", "--out", "empty.txt/sub"], "cannot be written"),
        (["noise_scale", "--set", "tracking.uri=sqlite:///no/folder/mlflow.db"], "no/folder"),
        ([], "no sweep is named"),
    ],
)
@pytest.mark.parametrize("dry_run", [True, False], ids=["dry run", "run"])
def test_mistakes_are_one_sentence_and_exit_code_2(
    arguments: list[str], sentence: str, dry_run: bool, run_command: Command, tmp_path: Path
) -> None:
    (tmp_path / "empty.txt").touch()
    (tmp_path / "occupied").mkdir()
    (tmp_path / "occupied" / "thesis.txt").write_text("precious")
    done = run_command(*arguments, *(["--dry-run"] if dry_run else []), timeout=60)
    assert done.returncode == 2, done.stderr
    assert sentence in done.stderr and "Traceback" not in done.stderr
    assert done.stderr.count("\n") == 1 and done.stdout == ""


@pytest.mark.parametrize("flags", [["--dry-run"], []], ids=["dry run", "run"])
@pytest.mark.parametrize("setting", ["trial.context=300000", "eval.length=300000"])
def test_a_window_longer_than_every_document_names_the_longest(
    setting: str, flags: list[str], run_command: Command
) -> None:
    done = run_command(*small_sweep("--set", setting, *flags), timeout=60)
    assert done.returncode == 2 and "Traceback" not in done.stderr and done.stderr.count("\n") == 1
    assert setting.partition("=")[0] in done.stderr


def test_a_locked_tracking_store_is_said_at_once(run_command: Command, tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "mlflow.db") as writer:
        writer.execute("CREATE TABLE held (x)")
        writer.commit()
        writer.execute("BEGIN EXCLUSIVE")
        done = run_command("noise_scale", timeout=60)
    assert done.returncode == 2 and "locked" in done.stderr and "Traceback" not in done.stderr


def test_an_address_without_a_cluster_is_said(run_command: Command) -> None:
    done = run_command(*small_sweep("--address", "127.0.0.1:1"), timeout=200)
    assert done.returncode == 2 and "no Ray cluster" in done.stderr and "Traceback" not in done.stderr


def test_the_command_is_found_from_the_repository() -> None:
    assert (ROOT / "sweeps" / "run.py").is_file()


@pytest.mark.parametrize(
    "content", [b"not a pickle", pickle.dumps({"backbone.norm_f.weight": print})], ids=["text", "code"]
)
def test_pickled_weights_that_are_no_tensors_are_refused_before_anything_starts(
    content: bytes, run_command: Command, tmp_path: Path
) -> None:
    base = tmp_path / "base"
    base.mkdir()
    shutil.copyfile(BASES / "demo-mamba2" / "config.json", base / "config.json")
    (base / "pytorch_model.bin").write_bytes(content)
    done = run_command("noise_scale", "--set", f"base.checkpoint={base}", "--out", "out")
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stderr.startswith(f"error: {base / 'pytorch_model.bin'} cannot be read")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()
