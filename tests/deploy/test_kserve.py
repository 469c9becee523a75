"""KServe's runtimes and the configuration of endpoint pickers agree with the server, and with KServe's own packages."""

import re
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from ruamel.yaml import YAML

from headwaiter_client import Client
from headwaiter_proto import encoder_pb2 as pb
from headwaiter_server.settings.flags import Settings, flag, read_settings, variable
from testbed.server_process import RunningServer, running_server
from tests.deploy.test_chart import NEEDED, at
from tests.support.deploy.chart import Chart
from tests.support.deploy.manifest_schemas import problem
from tests.support.documents import ROOT
from tests.support.open_inference.separate_environment import package_python
from tests.support.open_inference.separate_environment import variables as variables_of_tests

FOLDER = ROOT / "deploy" / "kubernetes"
RUNTIMES: list[dict[str, Any]] = list(YAML(typ="safe").load_all(FOLDER / "kserve" / "serving-runtimes.yaml"))
SERVICE, BUDGET = YAML(typ="safe").load_all(FOLDER / "kserve" / "inference-service.yaml")
MONITOR: dict[str, Any] = YAML(typ="safe").load(FOLDER / "kserve" / "pod-monitor.yaml")
KEDA_PATCH: dict[str, Any] = YAML(typ="safe").load(FOLDER / "kserve" / "keda-patch.yaml")
ROUTE: dict[str, Any] = YAML(typ="safe").load(FOLDER / "endpoint-picker" / "route.yaml")
PICKER: dict[str, Any] = YAML(typ="safe").load(FOLDER / "endpoint-picker" / "endpoint-picker-config.yaml")
PICKER_VALUES: dict[str, Any] = YAML(typ="safe").load(FOLDER / "endpoint-picker" / "picker-values.yaml")
POOL: dict[str, Any] = YAML(typ="safe").load(FOLDER / "endpoint-picker" / "inference-pool.yaml")
each_runtime = pytest.mark.parametrize("runtime", RUNTIMES, ids=lambda runtime: runtime["metadata"]["name"])


def variables(runtime: dict[str, Any], name: str) -> dict[str, str]:
    """Return the variables of the server for an InferenceService of this name."""
    (container,) = runtime["spec"]["containers"]
    return {each["name"]: each["value"].replace("{{.Name}}", name) for each in container["env"]}


@each_runtime
def test_the_pod_of_a_runtime_follows_the_schema_of_kubernetes(runtime: dict[str, Any]) -> None:
    spec = {name: runtime["spec"][name] for name in ("containers", "volumes", "tolerations") if name in runtime["spec"]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "minilm"}, "spec": spec}
    assert problem(pod) == ""


def test_the_runtime_for_a_gpu_runs_on_the_nodes_that_the_chart_runs_on(chart: Chart) -> None:
    gpu, cpu = (each["spec"] for each in RUNTIMES)
    assert gpu["tolerations"] == at(chart.render(NEEDED), "Deployment minilm spec.template.spec.tolerations")
    assert "tolerations" not in cpu


@each_runtime
def test_a_runtime_serves_the_folder_and_the_ports_of_kserve(runtime: dict[str, Any]) -> None:
    environment = variables(runtime, "minilm")
    assert environment.keys() <= {variable(field.name) for field in fields(Settings)}
    settings = read_settings([], environment)
    assert (settings.bundle, settings.model_name) == (Path("/mnt/models"), "minilm")
    (container,) = runtime["spec"]["containers"]
    # KServe gives a port of this name the application protocol kubernetes.io/h2c.
    assert container["ports"] == [{"name": "h2c", "containerPort": 9000, "protocol": "TCP"}]
    assert settings.address == "0.0.0.0:9000"
    assert container["livenessProbe"]["httpGet"] == {"path": "/health/live", "port": settings.metrics_port}
    assert container["readinessProbe"]["grpc"] == container["startupProbe"]["grpc"] == {"port": 9000}
    grace_s = SERVICE["spec"]["predictor"]["terminationGracePeriodSeconds"]
    assert grace_s >= settings.drain_delay_s + settings.drain_s + 10


def test_the_budget_and_the_monitor_name_the_pods_of_the_inference_service() -> None:
    assert problem(BUDGET) == ""
    pods = {"matchLabels": {"app": f"isvc.{SERVICE['metadata']['name']}-predictor"}}
    (spread,) = SERVICE["spec"]["predictor"]["topologySpreadConstraints"]
    assert BUDGET["spec"]["selector"] == MONITOR["spec"]["selector"] == spread["labelSelector"] == pods
    (endpoint,) = MONITOR["spec"]["podMetricsEndpoints"]
    settings = read_settings([], variables(RUNTIMES[0], "minilm"))
    # A monitor finds declared ports only.
    (port,) = RUNTIMES[0]["spec"]["containers"][0]["ports"]
    assert endpoint["portNumber"] == port["containerPort"]
    address, running, job = endpoint["relabelings"]
    assert (address["sourceLabels"], address["targetLabel"]) == (["__address__"], "__address__")
    scraped = re.sub(f"^{address['regex']}$", address["replacement"].replace("$", "\\"), "10.0.0.7:9000")
    assert scraped == f"10.0.0.7:{settings.metrics_port}"
    assert settings.metrics_port == settings.http_host_and_port[1]
    assert running == {"sourceLabels": ["__meta_kubernetes_pod_phase"], "regex": "Running", "action": "keep"}
    assert job == {"targetLabel": "job", "replacement": "headwaiter"}


def test_nothing_of_kserve_has_the_name_of_a_manifest_of_the_chart(chart: Chart) -> None:
    kserve = {f"{each['kind']} {each['metadata']['name']}" for each in (SERVICE, BUDGET, MONITOR)}
    assert not kserve & chart.render({**NEEDED, "monitoring": {"enabled": True}}).keys()


def test_keda_has_the_queries_of_the_chart_for_the_pods_of_the_inference_service(chart: Chart) -> None:
    monitored = {"monitoring": {"enabled": True}, "autoscaling": {"kind": "keda"}}
    triggers = at(chart.render({**NEEDED, **monitored}), "ScaledObject minilm spec.triggers")
    series = re.compile(r'(?<=\{namespace="search",)[^}]*')
    expected = [
        (series.sub('pod=~"minilm-predictor-.*"', each["query"]), each["serverAddress"], float(each["threshold"]))
        for each in (trigger["metadata"] for trigger in triggers)
    ]
    metrics = [each["external"] for each in KEDA_PATCH["spec"]["predictor"]["autoScaling"]["metrics"]]
    assert expected == [
        (each["metric"]["query"], each["metric"]["serverAddress"], float(each["target"]["value"])) for each in metrics
    ]
    assert KEDA_PATCH["metadata"]["name"] == SERVICE["metadata"]["name"]


def test_the_route_leads_to_the_pool() -> None:
    (rule,) = ROUTE["spec"]["rules"]
    group, _, _ = POOL["apiVersion"].partition("/")
    assert rule["backendRefs"] == [{"group": group, "kind": POOL["kind"], "name": POOL["metadata"]["name"]}]
    (match,) = rule["matches"]
    assert match["path"]["value"] == f"/{pb.DESCRIPTOR.services_by_name['Encoder'].full_name}"


def test_one_runtime_is_chosen_by_itself_and_for_both_forms_of_the_protocol() -> None:
    formats = [(each["metadata"]["name"], *each["spec"]["supportedModelFormats"]) for each in RUNTIMES]
    assert [(name, known["autoSelect"]) for name, known in formats] == [("headwaiter", True), ("headwaiter-cpu", False)]
    model = SERVICE["spec"]["predictor"]["model"]
    assert model["runtime"] == "headwaiter"
    for runtime, (_, known) in zip(RUNTIMES, formats, strict=True):
        assert {name: known[name] for name in ("name", "version")} == model["modelFormat"]
        assert runtime["spec"]["protocolVersions"] == ["v2", "grpc-v2"]
        assert variables(runtime, "minilm")["HEADWAITER_HTTP_API"] == "on"
    assert model["protocolVersion"] == "grpc-v2"


def test_the_two_runtimes_differ_only_in_the_device() -> None:
    gpu, cpu = (variables(runtime, "minilm") for runtime in RUNTIMES)
    assert gpu | {"HEADWAITER_PROVIDER": "cpu"} == cpu
    first, second = (runtime["spec"]["containers"][0] for runtime in RUNTIMES)
    for name in set(first) - {"image", "env", "resources"}:
        assert first[name] == second[name], name
    assert first["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert "nvidia.com/gpu" not in second["resources"]["limits"]


def test_pods_of_kserve_are_as_restricted_as_those_of_the_chart(chart: Chart) -> None:
    manifests = chart.render(NEEDED)
    pod = at(manifests, "Deployment minilm spec.template.spec")
    server = pod["containers"][0]
    for runtime in RUNTIMES:
        (container,) = runtime["spec"]["containers"]
        security = container["securityContext"]
        assert server["securityContext"].items() <= security.items()
        for name in ("runAsNonRoot", "runAsUser", "runAsGroup", "seccompProfile"):
            assert security[name] == pod["securityContext"][name]


@pytest.fixture(scope="module")
def left_by_kserve(text_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server of a folder of links to the files of a bundle, as KServe's storage initializer leaves it."""
    models = tmp_path_factory.mktemp("mnt") / "models"
    models.mkdir()
    for file in text_bundle.iterdir():
        (models / file.name).symlink_to(file)
    settings = {
        name: text
        for name, text in variables(RUNTIMES[1], "minilm").items()
        if not name.endswith(("BUNDLE", "ADDRESS", "PORT"))
    }
    flags = [part for name, text in settings.items() for part in (flag(name.removeprefix("HEADWAITER_").lower()), text)]
    with running_server(models, [*flags, "--drain-delay-s", "0"]) as server:
        yield server


def test_the_server_answers_under_the_name_of_the_inference_service(left_by_kserve: RunningServer) -> None:
    with Client(left_by_kserve.address, model="minilm") as client:
        encoding = client.encode(["the bread is fresh"])
        assert encoding.model.name == "minilm"
        assert [model.name for model in client.models()] == ["minilm"]


@pytest.fixture(scope="module")
def kserve_program(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """Run `kserve_program.py` with KServe's packages, and return what it prints."""
    python = package_python(tmp_path_factory.mktemp("kserve"), "kserve==0.21.0", "kserve-storage==0.21.0")

    def run(*arguments: object) -> str:
        command = [str(python), str(ROOT / "tests" / "support" / "deploy" / "kserve_program.py"), *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, check=True, env=variables_of_tests()).stdout

    return run


@pytest.mark.exhaustive
def test_kserve_knows_every_field_of_the_manifests(kserve_program: Callable[..., str], tmp_path: Path) -> None:
    assert kserve_program("unknown", *(FOLDER / "kserve").glob("*.yaml")) == ""
    wrong = (FOLDER / "kserve" / "inference-service.yaml").read_text().replace("storageUri", "storageUrl")
    (tmp_path / "wrong.yaml").write_text(wrong)
    found = kserve_program("unknown", tmp_path / "wrong.yaml")
    assert found == "InferenceService.spec.predictor.model.storageUrl"


@pytest.mark.exhaustive
def test_kserves_client_calls_a_bundle_that_its_storage_initializer_left(
    kserve_program: Callable[..., str], text_bundle: Path, tmp_path: Path
) -> None:
    kserve_program("download", text_bundle.as_uri(), tmp_path / "models")
    flags = ["--provider", "cpu", "--model-name", "minilm", "--http-api", "on"]
    with running_server(tmp_path / "models", flags) as server:
        expected = ["minilm", "pooled", "(2, 32)\n"]
        assert kserve_program("infer", server.address, "minilm").split(maxsplit=2) == expected
        url = server.metrics_url.removesuffix("/metrics")
        assert kserve_program("rest", url, "minilm").split(maxsplit=2) == expected


def test_the_picker_reads_gauges_that_the_server_has_from_its_start(left_by_kserve: RunningServer) -> None:
    with urllib.request.urlopen(left_by_kserve.metrics_url) as response:
        families = {each.name: each for each in text_string_to_metric_families(response.read().decode())}
    plugins = {each["type"]: each.get("parameters", {}) for each in PICKER["plugins"]}
    (engine,) = plugins["core-metrics-extractor"]["engineConfigs"]
    for name in ("queuedRequestsSpec", "runningRequestsSpec"):
        family = families[engine[name]]
        assert family.type == "gauge"
        assert [sample.value for sample in family.samples] == [0.0], name
    assert (engine["kvUsageSpec"], engine["loraSpec"], engine["cacheInfoSpec"]) == ("", "", "")


def test_the_pool_and_the_picker_name_the_pods_of_the_chart(chart: Chart) -> None:
    manifests = chart.render(NEEDED)
    labels = at(manifests, "Deployment minilm spec.template.metadata.labels")
    assert POOL["spec"]["selector"]["matchLabels"].items() <= labels.items()
    ports = {
        each["name"]: each["containerPort"]
        for each in at(manifests, "Deployment minilm spec.template.spec.containers.0.ports")
    }
    assert POOL["spec"]["targetPorts"] == [{"number": ports["grpc"]}]
    assert POOL["spec"]["appProtocol"] == "kubernetes.io/h2c"
    servers = PICKER_VALUES["router"]["modelServers"]
    assert servers == {**POOL["spec"]["selector"], "targetPorts": POOL["spec"]["targetPorts"]}
    plugins = {each["type"]: each.get("parameters", {}) for each in PICKER["plugins"]}
    assert plugins["metrics-data-source"] == {"scheme": "http", "path": "/metrics", "port": ports["metrics"]}
    (engine,) = plugins["core-metrics-extractor"]["engineConfigs"]
    assert labels["llm-d.ai/engine-type"] == labels["inference.networking.k8s.io/engine-type"] == engine["name"]
    named = {reference["pluginRef"] for profile in PICKER["schedulingProfiles"] for reference in profile["plugins"]}
    assert named <= plugins.keys()
