"""Checks a Ray cluster file before `ray up`: Ray's own schema check, and the mistakes that it lets through.

    python -m sweeps.cluster_check cluster.yaml

Exit code 0 and what is left to fill in, or 2 and one sentence for each mistake. It starts nothing and asks no cloud.
"""

import argparse
import copy
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

DRIVER_RESOURCE = "sweep_driver"
"""The resource of `workers.trainable`, said again because that module imports torch. Only the head has it."""
PLACEHOLDER = "REPLACE_ME"
OPEN_DASHBOARD_PROVIDERS = ("aws", "gcp", "azure", "vsphere")
"""Providers for which Ray's default start command binds the dashboard to every interface."""
_IMAGE = re.compile(r":(?P<ray>\d+\.\d+\.\d+)(?:-py(?P<major>\d)(?P<minor>\d+))?")
_GPU_INSTANCE = re.compile(r"^(p\d|g\d|gr\d)")
_SSH_PORT = 22


def mistakes(config: Mapping[str, Any], *, ray_version: str, python: str) -> list[str]:
    """What is wrong with a cluster file though Ray's schema accepts it.

    Args:
        config: the content of the file, as read, without Ray's defaults.
        ray_version: the Ray version that constraints.txt locks, such as "2.60.0".
        python: the Python that the machines must have, such as "3.11".

    Returns:
        One sentence for each mistake, which says where it is and what to write instead; empty when there is none.
    """
    checks = (_worker_counts, _head, _dashboard, _token, _open_ports)
    found = [sentence for check in checks for sentence in check(config)]
    return found + list(_images(config, ray_version, python))


def schema_mistakes(config: Mapping[str, Any]) -> list[str]:
    """What Ray itself refuses in the file: at most one sentence, because Ray stops at the first mistake."""
    # Imported here because the import takes seconds and the checks above do without. Private, the only way that
    # needs no cloud; pyproject.toml holds Ray below the next minor version.
    from jsonschema import ValidationError
    from ray.autoscaler._private.util import prepare_config, validate_config

    try:
        validate_config(prepare_config(copy.deepcopy(dict(config))))
    except ValidationError as error:
        return [f"{'.'.join(map(str, error.absolute_path)) or 'the file'}: {error.message}"]
    except (AssertionError, KeyError, ValueError, RuntimeError, NotImplementedError) as error:
        return [f"Ray refuses the file: {error}"]
    return []


def placeholders(config: Any, place: str = "") -> list[str]:
    """The places, such as `provider.region`, where the file still says REPLACE_ME."""
    if isinstance(config, str):
        return [place] if PLACEHOLDER in config else []
    if isinstance(config, Mapping):
        items: Iterator[tuple[Any, Any]] = iter(config.items())
    elif isinstance(config, list):
        items = iter(enumerate(config))
    else:
        return []
    return [found for key, value in items for found in placeholders(value, f"{place}.{key}".lstrip("."))]


def locked_ray_version(constraints: Path) -> str:
    """The version in the line `ray==X.Y.Z` of a constraints file; ValueError when it cannot be had."""
    match = re.search(r"^ray==(\S+)", _text(constraints), re.MULTILINE)
    if match is None:
        raise ValueError(f"{constraints} does not lock Ray; add a line such as ray==2.60.0")
    return match.group(1)


def _worker_counts(config: Mapping[str, Any]) -> Iterator[str]:
    if "min_workers" in config:
        yield "min_workers at the top level is dropped by Ray in silence; write it under a type in available_node_types"
    ceiling = config.get("max_workers")
    if ceiling is None:
        yield "max_workers is missing, so Ray starts at most 2 workers; write how many machines the cluster may have"
        return
    for name, node in _node_types(config).items():
        if node.get("max_workers", 0) > ceiling:
            yield (
                f"available_node_types.{name}.max_workers is {node['max_workers']}, above max_workers = {ceiling} "
                "of the cluster, and is never reached; raise the cluster's or lower this one"
            )


def _head(config: Mapping[str, Any]) -> Iterator[str]:
    name = config.get("head_node_type", "")
    node = _node_types(config).get(name, {})
    resources = node.get("resources", {})
    place = f"available_node_types.{name}"
    instance = str(node.get("node_config", {}).get("InstanceType", ""))
    if resources.get("GPU", 0) > 0 or _GPU_INSTANCE.match(instance):
        yield f"the head ({place}) has a GPU, so training would run beside the drivers; use a CPU machine with GPU: 0"
    elif "GPU" not in resources:
        yield f"{place}.resources says nothing of GPUs; write GPU: 0, so that no training runs on the head"
    if resources.get(DRIVER_RESOURCE, 0) < 1:
        yield (
            f"the head ({place}) has no {DRIVER_RESOURCE}, so no trial with several workers starts; "
            f"write {DRIVER_RESOURCE}: 64"
        )
    others = [other for other, kind in _node_types(config).items() if other != name]
    for other in others:
        if _node_types(config)[other].get("resources", {}).get(DRIVER_RESOURCE, 0):
            yield f"available_node_types.{other}.resources has {DRIVER_RESOURCE}; only the head may have it"


def _dashboard(config: Mapping[str, Any]) -> Iterator[str]:
    provider = config.get("provider", {}).get("type")
    commands = config.get("head_start_ray_commands")
    if not commands:
        if provider in OPEN_DASHBOARD_PROVIDERS:
            yield (
                f"head_start_ray_commands is missing, and Ray's default for {provider} opens the dashboard to every "
                "interface; write the commands with --dashboard-host=127.0.0.1"
            )
        return
    start = " ".join(line for line in commands if "ray start" in line)
    hosts = re.findall(r"--dashboard-host[= ](\S+)", start)
    if hosts != ["127.0.0.1"]:
        said = f"binds the dashboard to {', '.join(hosts)}" if hosts else "does not say where the dashboard listens"
        yield f"head_start_ray_commands {said}; write --dashboard-host=127.0.0.1 and reach it by `ray dashboard`"
    if re.search(r"--include-dashboard[= ](false|0)", start, re.IGNORECASE):
        yield (
            "head_start_ray_commands turns the dashboard off, through which Ray frees the resources of stopped trials; "
            "leave it on, bound to 127.0.0.1"
        )


def _token(config: Mapping[str, Any]) -> Iterator[str]:
    mounted = {str(remote).rstrip("/") for remote in config.get("file_mounts", {})}
    for kind in ("head", "worker"):
        said = _environment(config, kind)
        if not re.search(r"\bRAY_AUTH_MODE=[\"']?token\b", said):
            yield (
                f"the {kind} runs without token authentication, so whoever reaches it runs code on it; "
                f"write --env RAY_AUTH_MODE=token in docker.run_options, or export it in {kind}_start_ray_commands"
            )
        if re.search(r"\bRAY_AUTH_TOKEN=", said):
            yield f"the token itself stands in the file for the {kind}; mount it and write RAY_AUTH_TOKEN_PATH instead"
            continue
        path = re.search(r"\bRAY_AUTH_TOKEN_PATH=[\"']?([^\s\"']+)", said)
        places = {str(folder) for folder in (Path(path.group(1)), *Path(path.group(1)).parents)} if path else set()
        if not places & mounted and not any(mount.endswith(".ray/auth_token") for mount in mounted):
            yield f"the {kind} gets no token; mount its folder by file_mounts and name it by RAY_AUTH_TOKEN_PATH"


def _environment(config: Mapping[str, Any], kind: str) -> str:
    """All the text that gives Ray on a head or a worker its environment."""
    docker = config.get("docker") or {}
    # Without initialization_commands: with Docker they run outside the container and do not reach Ray.
    options = [*docker.get("run_options", []), *docker.get(f"{kind}_run_options", [])]
    return "\n".join(map(str, [*options, *config.get(f"{kind}_start_ray_commands", [])]))


def _open_ports(config: Mapping[str, Any]) -> Iterator[str]:
    group = config.get("provider", {}).get("security_group") or {}
    for rule in group.get("IpPermissions", []):
        sources = [*rule.get("IpRanges", []), *rule.get("Ipv6Ranges", []), *rule.get("PrefixListIds", [])]
        ports = (rule.get("FromPort", -1), rule.get("ToPort", -1))
        if sources and ports != (_SSH_PORT, _SSH_PORT):
            span = "every port" if -1 in ports else f"ports {ports[0]} to {ports[1]}"
            yield (
                f"provider.security_group opens {span} to the outside; open SSH alone and use tunnels "
                "(`ray dashboard`, `ray exec --port-forward`)"
            )


def _images(config: Mapping[str, Any], ray_version: str, python: str) -> Iterator[str]:
    docker = config.get("docker") or {}
    images = {key: str(docker[key]) for key in ("image", "head_image", "worker_image") if docker.get(key)}
    wanted = f":{ray_version}-py{python.replace('.', '')}"
    for key, image in images.items():
        tag = _IMAGE.search(image)
        if tag is None or tag["minor"] is None:
            yield f"docker.{key} {image!r} does not say its Ray and Python; write a tag that begins with {wanted!r}"
            continue
        if tag["ray"] != ray_version:
            yield f"docker.{key} has Ray {tag['ray']} but constraints.txt locks {ray_version}; write {wanted!r}"
        has = f"{tag['major']}.{tag['minor']}"
        if has != python:
            yield f"docker.{key} has Python {has} but this environment {python}; write {wanted!r}"


def _node_types(config: Mapping[str, Any]) -> Mapping[str, Any]:
    return config.get("available_node_types") or {}


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from error


def _read(path: Path) -> Mapping[str, Any]:
    """The file as a mapping; ValueError with one sentence when it is none."""
    try:
        config = yaml.safe_load(_text(path))
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(config, Mapping):
        raise ValueError(f"{path} holds no settings; start from the cluster.yaml of this repository")
    return config


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit code."""
    about = "Checks a Ray cluster file before `ray up`."
    parser = argparse.ArgumentParser(prog="python -m sweeps.cluster_check", description=about)
    parser.add_argument("file", type=Path, help="the cluster file, for example cluster.yaml")
    parser.add_argument("--constraints", type=Path, help="the lock file (default: constraints.txt beside the file)")
    options = parser.parse_args(arguments)
    try:
        config = _read(options.file)
        ray_version = locked_ray_version(options.constraints or options.file.parent / "constraints.txt")
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    found = schema_mistakes(config) or mistakes(config, ray_version=ray_version, python=python)
    for sentence in found:
        print(sentence, file=sys.stderr)
    if found:
        return 2
    print(f"{options.file}: no mistake found")
    for place in placeholders(config):
        print(f"to fill in before `ray up`: {place} still says {PLACEHOLDER}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
