"""The shipped cluster.yaml passes Ray's schema check and ours; each mistake that Ray lets through is found by ours."""

import copy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from sweeps.cluster_check import DRIVER_RESOURCE, locked_ray_version, main, mistakes, placeholders, schema_mistakes

ROOT = Path(__file__).resolve().parents[1]
Config = dict[str, Any]


@pytest.fixture(scope="module")
def shipped() -> Config:
    return yaml.safe_load((ROOT / "cluster.yaml").read_text(encoding="utf-8"))


def found(config: Config) -> list[str]:
    return mistakes(config, ray_version=locked_ray_version(ROOT / "constraints.txt"), python="3.11")


def test_shipped_file_passes_the_schema_check_of_ray(shipped: Config) -> None:
    assert schema_mistakes(shipped) == []


def test_shipped_file_has_no_mistake(shipped: Config) -> None:
    assert found(shipped) == []


def test_shipped_file_has_a_cpu_head_with_drivers_and_spot_workers_with_gpus(shipped: Config) -> None:
    head = shipped["available_node_types"][shipped["head_node_type"]]
    assert head["resources"]["GPU"] == 0 and head["resources"]["sweep_driver"] == 64
    assert "InstanceMarketOptions" not in head["node_config"]
    workers = [kind for name, kind in shipped["available_node_types"].items() if name != shipped["head_node_type"]]
    assert workers and all(kind["node_config"]["InstanceMarketOptions"]["MarketType"] == "spot" for kind in workers)


def test_driver_resource_is_the_one_that_trials_ask_for() -> None:
    from workers import trainable

    assert trainable.DRIVER_RESOURCE == DRIVER_RESOURCE


def test_shipped_file_mounts_shared_storage_outside_and_inside_the_container(shipped: Config) -> None:
    assert any("mount -t nfs4" in line and line.endswith("/shared") for line in shipped["initialization_commands"])
    assert "--volume /shared:/shared" in shipped["docker"]["run_options"]


def test_shipped_file_installs_with_the_lock_file(shipped: Config) -> None:
    assert any("pip install" in line and "-c constraints.txt" in line for line in shipped["setup_commands"])


def test_placeholders_are_named_by_place(shipped: Config) -> None:
    assert placeholders(shipped) == [
        "available_node_types.head.node_config.ImageId",
        "available_node_types.gpu_spot.node_config.ImageId",
        "initialization_commands.4",
    ]


def worker_type_above_the_ceiling(config: Config) -> None:
    config["available_node_types"]["gpu_spot"]["max_workers"] = 9


def min_workers_at_the_top(config: Config) -> None:
    config["min_workers"] = 2


def no_ceiling(config: Config) -> None:
    del config["max_workers"]


def gpu_on_the_head(config: Config) -> None:
    config["available_node_types"]["head"]["resources"]["GPU"] = 1


def gpu_instance_as_head(config: Config) -> None:
    config["available_node_types"]["head"]["node_config"]["InstanceType"] = "g5.xlarge"


def head_silent_on_gpus(config: Config) -> None:
    del config["available_node_types"]["head"]["resources"]["GPU"]


def head_without_drivers(config: Config) -> None:
    del config["available_node_types"]["head"]["resources"]["sweep_driver"]


def drivers_on_spot_machines(config: Config) -> None:
    config["available_node_types"]["gpu_spot"]["resources"] = {"sweep_driver": 1}


def replace_in_head_start(config: Config, old: str, new: str) -> None:
    config["head_start_ray_commands"] = [line.replace(old, new) for line in config["head_start_ray_commands"]]


def dashboard_on_every_interface(config: Config) -> None:
    replace_in_head_start(config, "--dashboard-host=127.0.0.1", "--dashboard-host=0.0.0.0")


def dashboard_host_unsaid(config: Config) -> None:
    replace_in_head_start(config, "--dashboard-host=127.0.0.1", "")


def dashboard_by_the_default_of_ray(config: Config) -> None:
    del config["head_start_ray_commands"]


def dashboard_off(config: Config) -> None:
    replace_in_head_start(config, "--dashboard-host", "--include-dashboard=false --dashboard-host")


def without_option(config: Config, word: str) -> None:
    config["docker"]["run_options"] = [line for line in config["docker"]["run_options"] if word not in line]


def no_token_mode(config: Config) -> None:
    without_option(config, "RAY_AUTH_MODE")


def token_mode_exported_outside_the_container(config: Config) -> None:
    without_option(config, "RAY_AUTH_MODE")
    config["initialization_commands"].append("echo export RAY_AUTH_MODE=token >> ~/.bashrc")


def token_mode_on_the_head_only(config: Config) -> None:
    without_option(config, "RAY_AUTH_MODE")
    config["docker"]["head_run_options"].append("--env RAY_AUTH_MODE=token")


def token_not_mounted(config: Config) -> None:
    del config["file_mounts"]["/home/ray/sweeps-cluster"]


def token_in_the_file(config: Config) -> None:
    config["docker"]["run_options"].append("--env RAY_AUTH_TOKEN=abcdef")


def rule(first: int, last: int, protocol: str = "tcp") -> Config:
    ranges = [{"CidrIp": "0.0.0.0/0"}]
    return {"FromPort": first, "ToPort": last, "IpProtocol": protocol, "IpRanges": ranges}


def dashboard_port_open(config: Config) -> None:
    config["provider"]["security_group"] = {"IpPermissions": [rule(8265, 8265)]}


def every_port_open(config: Config) -> None:
    config["provider"]["security_group"] = {"IpPermissions": [rule(-1, -1, "-1")]}


def other_ray_in_the_image(config: Config) -> None:
    config["docker"]["worker_image"] = "rayproject/ray:2.59.0-py311-gpu"


def other_python_in_the_image(config: Config) -> None:
    config["docker"]["head_image"] = "rayproject/ray:2.60.0-py312-cpu"


def moving_image(config: Config) -> None:
    config["docker"]["head_image"] = "rayproject/ray:latest"


MISTAKES: list[tuple[Callable[[Config], None], str]] = [
    (worker_type_above_the_ceiling, "gpu_spot.max_workers is 9, above max_workers = 8"),
    (min_workers_at_the_top, "min_workers at the top level is dropped"),
    (no_ceiling, "max_workers is missing"),
    (gpu_on_the_head, "the head (available_node_types.head) has a GPU"),
    (gpu_instance_as_head, "the head (available_node_types.head) has a GPU"),
    (head_silent_on_gpus, "head.resources says nothing of GPUs"),
    (head_without_drivers, "has no sweep_driver"),
    (drivers_on_spot_machines, "only the head may have it"),
    (dashboard_on_every_interface, "binds the dashboard to 0.0.0.0"),
    (dashboard_host_unsaid, "does not say where the dashboard listens"),
    (dashboard_by_the_default_of_ray, "Ray's default for aws opens the dashboard"),
    (dashboard_off, "turns the dashboard off"),
    (no_token_mode, "the worker runs without token authentication"),
    (token_mode_exported_outside_the_container, "the head runs without token authentication"),
    (token_mode_on_the_head_only, "the worker runs without token authentication"),
    (token_not_mounted, "the head gets no token"),
    (token_in_the_file, "the token itself stands in the file"),
    (dashboard_port_open, "opens ports 8265 to 8265 to the outside"),
    (every_port_open, "opens every port to the outside"),
    (other_ray_in_the_image, "docker.worker_image has Ray 2.59.0 but constraints.txt locks 2.60.0"),
    (other_python_in_the_image, "docker.head_image has Python 3.12 but this environment 3.11"),
    (moving_image, "does not say its Ray and Python"),
]


@pytest.mark.parametrize(("spoil", "sentence"), MISTAKES, ids=lambda value: getattr(value, "__name__", ""))
def test_mistake_that_ray_accepts_is_found(shipped: Config, spoil: Callable[[Config], None], sentence: str) -> None:
    config = copy.deepcopy(shipped)
    spoil(config)
    assert schema_mistakes(config) == []
    assert any(sentence in line for line in found(config))


def test_one_mistake_gives_one_sentence(shipped: Config) -> None:
    config = copy.deepcopy(shipped)
    worker_type_above_the_ceiling(config)
    assert len(found(config)) == 1


def test_ssh_and_rules_between_own_machines_are_no_mistake(shipped: Config) -> None:
    config = copy.deepcopy(shipped)
    inside = {"FromPort": -1, "ToPort": -1, "IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": "sg-1"}]}
    config["provider"]["security_group"] = {"IpPermissions": [rule(22, 22), inside]}
    assert found(config) == []


def test_cluster_without_docker_takes_its_token_mode_from_the_start_commands(shipped: Config) -> None:
    config = copy.deepcopy(shipped)
    del config["docker"]
    assert [line for line in found(config) if "token authentication" in line]
    for kind in ("head", "worker"):
        key = f"{kind}_start_ray_commands"
        config[key] = [f"export RAY_AUTH_MODE=token; {line}" for line in config[key]]
    config["file_mounts"]["/home/ubuntu/.ray/auth_token"] = "~/.ray/auth_token"
    assert found(config) == []


def test_typing_error_in_a_key_is_refused_by_the_schema(shipped: Config) -> None:
    config = copy.deepcopy(shipped)
    config["max_worker"] = 3
    assert "max_worker" in schema_mistakes(config)[0]


def test_unknown_head_type_is_refused_by_ray(shipped: Config) -> None:
    config = copy.deepcopy(shipped)
    config["head_node_type"] = "hed"
    assert "head_node_type" in schema_mistakes(config)[0]


def test_command_accepts_the_shipped_file_and_says_what_to_fill_in(capsys: pytest.CaptureFixture[str]) -> None:
    images = yaml.safe_load((ROOT / "cluster.yaml").read_text(encoding="utf-8"))["docker"]
    python = f"-py{sys.version_info.major}{sys.version_info.minor}-"
    if python not in images["head_image"]:
        # The lock file is for one Python; under another the command must say so.
        assert main([str(ROOT / "cluster.yaml")]) == 2
        return
    assert main([str(ROOT / "cluster.yaml")]) == 0
    assert capsys.readouterr().out.count("still says REPLACE_ME") == 3


def test_command_prints_one_sentence_for_each_mistake_and_exits_2(
    shipped: Config, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = copy.deepcopy(shipped)
    min_workers_at_the_top(config)
    dashboard_off(config)
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump(config), encoding="utf-8")
    assert main([str(file), "--constraints", str(ROOT / "constraints.txt")]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert any("min_workers" in line for line in lines) and any("dashboard off" in line for line in lines)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [("", "holds no settings"), ("a: [", "is not YAML"), (None, "cannot read")],
    ids=["empty", "broken", "missing"],
)
def test_command_refuses_what_is_no_cluster_file(
    content: str | None, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.yaml"
    if content is not None:
        file.write_text(content, encoding="utf-8")
    assert main([str(file)]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and sentence in lines[0]


def test_lock_file_without_ray_is_refused(tmp_path: Path) -> None:
    lock = tmp_path / "constraints.txt"
    lock.write_text("numpy==2.4.6\n", encoding="utf-8")
    with pytest.raises(ValueError, match="does not lock Ray"):
        locked_ray_version(lock)
