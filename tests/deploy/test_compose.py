"""The compose files and the Dockerfile are valid, and agree with the server's settings and the Makefile."""

import json
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from headwaiter_server.settings.flags import Settings, variable

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
RESET = object()


def load(name: str) -> Any:
    yaml = YAML(typ="safe", pure=True)
    yaml.constructor.add_constructor("!reset", lambda _loader, _node: RESET)
    return yaml.load(ROOT / name)


def merge(base: dict[str, Any], override: dict[str, Any]) -> dict[str, Any]:
    """Merge like Docker Compose: join mappings, append lists, and remove keys marked with `!reset`."""
    merged = dict(base)
    for key, value in override.items():
        if value is RESET:
            del merged[key]
        elif isinstance(value, dict) and key in base:
            merged[key] = merge(base[key], value)
        elif isinstance(value, list) and key in base:
            merged[key] = base[key] + value
        else:
            merged[key] = value
    return merged


def extend(project: dict[str, Any]) -> dict[str, Any]:
    """Resolve `extends` between the services of one file, as Docker Compose does before it merges files."""
    services = dict(project["services"])
    for name, service in services.items():
        own = {key: value for key, value in service.items() if key != "extends"}
        if "extends" in service:
            services[name] = merge(services[service["extends"]["service"]], own)
    return {**project, "services": services}


GPU = extend(load("docker-compose.yml"))
CPU = merge(GPU, load("docker-compose.cpu.yml"))
# The services that run headwaiter-server.
SERVERS = ("server", "playground")


@pytest.mark.parametrize("project", [GPU, CPU], ids=["gpu", "cpu"])
def test_the_compose_files_follow_the_compose_specification(project: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "compose.json"
    path.write_text(json.dumps(project))
    checked = subprocess.run(
        [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout


@pytest.mark.parametrize("service", SERVERS)
def test_only_the_gpu_server_reserves_a_gpu(service: str) -> None:
    devices = GPU["services"][service]["deploy"]["resources"]["reservations"]["devices"]
    assert [(device["driver"], device["count"], device["capabilities"]) for device in devices] == [
        ("nvidia", 1, ["gpu"])
    ]
    server = CPU["services"][service]
    assert not server["deploy"]["resources"]["reservations"]
    assert server["environment"]["HEADWAITER_PROVIDER"] == "cpu"
    assert "cuda" not in server["build"]["args"]["EXTRAS"].split(",")


def test_the_deployment_sets_only_variables_that_the_server_reads() -> None:
    settings = {variable(field.name) for field in fields(Settings)}
    in_compose = {
        name for project in (GPU, CPU) for service in SERVERS for name in project["services"][service]["environment"]
    }
    in_image = set(re.findall(r"\b(HEADWAITER_\w+)=", DOCKERFILE))
    assert in_image
    assert in_compose | in_image <= settings


def test_the_stop_grace_period_is_longer_than_a_drain() -> None:
    grace_s = int(GPU["services"]["server"]["stop_grace_period"].removesuffix("s"))
    assert grace_s >= Settings.drain_s + 5


def test_the_export_writes_the_bundle_that_the_server_reads() -> None:
    export, server = GPU["services"]["export"], GPU["services"]["server"]
    assert export["command"][-1] == server["environment"]["HEADWAITER_BUNDLE"]
    assert "bundles:/bundles" in export["volumes"]
    assert "bundles:/bundles:ro" in server["volumes"]


def test_the_calibration_cache_is_on_a_volume() -> None:
    (folder,) = re.findall(r"\bHEADWAITER_CACHE_DIR=(\S+)", DOCKERFILE)
    assert f"RUN install --directory --owner headwaiter --group headwaiter {folder}\n" in DOCKERFILE
    assert f"cache:{folder}" in GPU["services"]["server"]["volumes"]
    assert "cache" in GPU["volumes"]


def test_all_deployment_files_use_the_ports_of_the_server() -> None:
    grpc_port = Settings.address.rpartition(":")[2]
    metrics_port = str(Settings.metrics_port)
    assert f"EXPOSE {grpc_port} {metrics_port}\n" in DOCKERFILE
    assert f'"--address", "localhost:{grpc_port}"]' in DOCKERFILE
    assert GPU["services"]["server"]["ports"][0].endswith(f":${{GRPC_PORT:-{grpc_port}}}:{grpc_port}")
    (job,) = load("deploy/prometheus/prometheus.yml")["scrape_configs"]
    assert job["static_configs"] == [{"targets": [f"server:{metrics_port}"]}]


def test_prometheus_finds_its_rules_beside_its_configuration() -> None:
    mounted = GPU["services"]["prometheus"]["volumes"]
    for name in ("prometheus.yml", *load("deploy/prometheus/prometheus.yml")["rule_files"]):
        assert (ROOT / "deploy" / "prometheus" / name).is_file()
        assert f"./deploy/prometheus/{name}:/etc/prometheus/{name}:ro" in mounted


@pytest.mark.parametrize("project", [GPU, CPU], ids=["gpu", "cpu"])
def test_only_the_profile_playground_serves_a_page_and_only_this_host_can_open_it(project: dict[str, Any]) -> None:
    server, playground = (project["services"][service] for service in SERVERS)
    assert playground["profiles"] == ["playground"]
    assert playground["environment"] == {**server["environment"], "HEADWAITER_PLAYGROUND": "on"}
    assert playground["ports"] == [
        *server["ports"],
        f"127.0.0.1:${{PLAYGROUND_PORT:-8080}}:{Settings.metrics_port}",
    ]
    # Besides, the two services run alike, and Prometheus finds either under the same name.
    assert playground["networks"] == {"default": {"aliases": ["server"]}}
    own = ("profiles", "environment", "ports", "networks")
    assert {key: value for key, value in playground.items() if key not in own} == {
        key: value for key, value in server.items() if key not in own
    }


def test_the_export_image_has_the_torch_version_of_the_tests() -> None:
    (pin,) = re.findall(r"^TORCH := (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert f"\nARG TORCH={pin}\n" in DOCKERFILE
