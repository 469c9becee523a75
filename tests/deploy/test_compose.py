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

from headwaiter_server.settings.environment import REVISION_VARIABLE
from headwaiter_server.settings.flags import Settings, read_settings, variable

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


GPU = load("docker-compose.yml")
CPU = merge(GPU, load("docker-compose.cpu.yml"))
PAGE, MODELS = load("docker-compose.playground.yml"), load("docker-compose.models.yml")
# Each file with the files that it is added to.
PROJECTS = {
    "gpu": GPU,
    "cpu": CPU,
    "page": merge(GPU, PAGE),
    "models": merge(GPU, MODELS),
    "all": merge(merge(CPU, MODELS), PAGE),
}
each_project = pytest.mark.parametrize("project", PROJECTS.values(), ids=PROJECTS.keys())


def server_settings(project: dict[str, Any], volume: Path, **changes: str) -> Settings:
    """Return the settings of the server in the container, whose volume of bundles is a folder of this host."""
    in_image = dict(re.findall(r"\b(HEADWAITER_\w+)=(\S+)", DOCKERFILE))
    in_compose = project["services"]["server"]["environment"]
    environment = {**in_image, **in_compose, **changes}
    return read_settings([], {name: text.replace("/bundles", str(volume)) for name, text in environment.items()})


@each_project
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


def test_only_the_gpu_server_reserves_a_gpu() -> None:
    devices = GPU["services"]["server"]["deploy"]["resources"]["reservations"]["devices"]
    assert [(device["driver"], device["count"], device["capabilities"]) for device in devices] == [
        ("nvidia", 1, ["gpu"])
    ]
    server = CPU["services"]["server"]
    assert not server["deploy"]["resources"]["reservations"]
    assert server["environment"]["HEADWAITER_PROVIDER"] == "cpu"
    assert server["build"]["args"]["PROVIDER"] == "cpu"
    assert "\nARG PROVIDER=cuda\n" in DOCKERFILE
    assert "\nCOPY requirements/server-${PROVIDER}.txt /requirements.txt\n" in DOCKERFILE


def test_the_deployment_sets_only_variables_that_the_server_reads() -> None:
    settings = {variable(field.name) for field in fields(Settings)}
    in_compose = {name for project in PROJECTS.values() for name in project["services"]["server"]["environment"]}
    in_image = set(re.findall(r"\b(HEADWAITER_\w+)=", DOCKERFILE))
    assert in_image
    assert in_compose | in_image <= {*settings, REVISION_VARIABLE}


def test_the_stop_grace_period_is_longer_than_a_drain() -> None:
    grace_s = int(GPU["services"]["server"]["stop_grace_period"].removesuffix("s"))
    assert grace_s >= Settings.drain_delay_s + Settings.drain_s + 10


def test_the_export_writes_the_bundle_that_the_server_reads() -> None:
    export, server = GPU["services"]["export"], GPU["services"]["server"]
    assert export["command"][-1] == server["environment"]["HEADWAITER_BUNDLE"]
    assert "bundles:/bundles" in export["volumes"]
    assert "bundles:/bundles:ro" in server["volumes"]


def test_the_export_reaches_a_hub_and_keeps_its_files_in_a_volume_of_its_user() -> None:
    export = GPU["services"]["export"]
    assert export["command"][:2] == ["checkpoint", "${HUB_NAME:-/checkpoint}"]
    assert "network_mode" not in export
    (cache,) = (path.partition(":")[2] for path in export["volumes"] if str(path).startswith("model-cache:"))
    assert re.search(rf"^ENV .*XDG_CACHE_HOME={cache}$", DOCKERFILE, re.MULTILINE)
    assert "model-cache" in GPU["volumes"]
    assert f"install --directory --owner headwaiter --group headwaiter /bundles {cache}\n" in DOCKERFILE


def test_one_command_exports_and_serves_on_the_cpu_with_the_cache_and_the_port_of_the_others(tmp_path: Path) -> None:
    serve, export, server = (GPU["services"][name] for name in ("serve", "export", "server"))
    assert serve["entrypoint"] == ["headwaiter", "serve"]
    assert (serve["image"], serve["build"]) == (export["image"], export["build"])
    assert serve["environment"] == {**export["environment"], "HEADWAITER_PROVIDER": "cpu"}
    assert set(serve["volumes"]) <= {str(path) for path in export["volumes"]}
    for name in ("ports", "stop_grace_period", "init"):
        assert serve[name] == server[name], name


def test_all_deployment_files_use_the_ports_of_the_server() -> None:
    grpc_port = Settings.address.rpartition(":")[2]
    metrics_port = str(Settings.metrics_port)
    assert f"EXPOSE {grpc_port} {metrics_port}\n" in DOCKERFILE
    assert f'"--address", "localhost:{grpc_port}"]' in DOCKERFILE
    assert GPU["services"]["server"]["ports"][0].endswith(f":${{GRPC_PORT:-{grpc_port}}}:{grpc_port}")
    (job,) = load("deploy/prometheus/prometheus.yml")["scrape_configs"]
    assert job["static_configs"] == [{"targets": [f"server:{metrics_port}"]}]


@each_project
def test_prometheus_reads_the_metrics_of_every_recipe_without_tls(project: dict[str, Any], tmp_path: Path) -> None:
    (job,) = load("deploy/prometheus/prometheus.yml")["scrape_configs"]
    assert job.get("scheme", "http") == "http"
    (tmp_path / "file").touch()
    tls = {f"HEADWAITER_TLS_{name}": str(tmp_path / "file") for name in ("CERT", "KEY")}
    for changes in ({}, tls):
        settings = server_settings(project, tmp_path, **changes)
        host, port = settings.metrics_host_and_port or settings.http_host_and_port
        assert host == "0.0.0.0"
        assert job["static_configs"] == [{"targets": [f"server:{port}"]}]


def test_the_recipe_of_several_models_serves_what_the_export_writes(tmp_path: Path) -> None:
    settings = server_settings(PROJECTS["models"], tmp_path)
    assert (settings.bundle, settings.models) == (None, tmp_path)
    # A bundle that `export` adds is served without a restart.
    assert 0 < settings.watch_s <= 60
    # With BUNDLE=minilm/1, the export writes version 1 of the model minilm.
    assert Path(GPU["services"]["export"]["command"][-1]) == Path("/bundles/${BUNDLE:-default}")
    assert server_settings(GPU, tmp_path).bundle == tmp_path / "${BUNDLE:-default}"


@each_project
def test_only_the_recipe_of_the_page_serves_a_page_and_only_this_host_can_open_it(
    project: dict[str, Any], tmp_path: Path
) -> None:
    settings, ports = server_settings(project, tmp_path), project["services"]["server"]["ports"]
    grpc = GPU["services"]["server"]["ports"]
    if project in (PROJECTS["page"], PROJECTS["all"]):
        assert settings.playground == "on"
        assert ports == [*grpc, f"127.0.0.1:${{PLAYGROUND_PORT:-8080}}:{settings.http_host_and_port[1]}"]
    else:
        assert (settings.playground, ports) == ("off", grpc)


@each_project
def test_the_images_have_a_tag_and_labels_of_version_and_commit(project: dict[str, Any]) -> None:
    images = {name: project["services"][name]["image"] for name in ("server", "export")}
    assert all(image.endswith(":${TAG:-latest}") for image in images.values())
    assert len(set(images.values())) == 2
    for name in images:
        arguments = project["services"][name]["build"]["args"]
        assert (arguments["VERSION"], arguments["REVISION"]) == ("${TAG:-unknown}", "${REVISION:-unknown}")
    for stage in re.split(r"^FROM ", DOCKERFILE, flags=re.MULTILINE)[1:]:
        if "ENTRYPOINT" in stage:
            assert "image.version=$VERSION" in stage
            assert "image.revision=$REVISION" in stage
    *_, server = DOCKERFILE.split("FROM base AS server")
    assert f"\nENV {REVISION_VARIABLE}=$REVISION\n" in server


def test_going_back_never_builds_the_current_code_under_an_old_tag() -> None:
    # Compose builds a missing image of a service with `build`, from the files that are checked out.
    page = (ROOT / "docs" / "how-to" / "upgrade.md").read_text()
    commands = re.findall(r"^TAG=\S+ docker compose up .*$", page, re.MULTILINE)
    assert commands
    assert all("--no-build" in command for command in commands)


def test_every_image_has_a_fixed_version() -> None:
    assert re.search(r"^ARG PYTHON_IMAGE=\S+@sha256:[0-9a-f]{64}$", DOCKERFILE, re.MULTILINE)
    others = [GPU["services"][name]["image"] for name in ("prometheus", "grafana")]
    assert all(re.search(r":v?\d+\.\d+\.\d+", image) for image in others)


def test_prometheus_finds_its_rules_beside_its_configuration() -> None:
    mounted = GPU["services"]["prometheus"]["volumes"]
    for name in ("prometheus.yml", *load("deploy/prometheus/prometheus.yml")["rule_files"]):
        assert (ROOT / "deploy" / "prometheus" / name).is_file()
        assert f"./deploy/prometheus/{name}:/etc/prometheus/{name}:ro" in mounted


def test_the_export_image_has_the_torch_version_of_the_tests() -> None:
    (pin,) = re.findall(r"^TORCH := (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert f"\nARG TORCH={pin}\n" in DOCKERFILE
