"""The Helm chart: every value changes what it says, wrong values are refused, and manifests agree with the server."""

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from headwaiter_server.settings.flags import Settings, read_settings, variable
from tests.support.deploy.chart import CHART, Chart, Refused
from tests.support.deploy.manifest_schemas import custom_problem, is_custom, problem
from tests.support.documents import KUBERNETES, METRICS, ROOT, blocks

DIGEST, OTHER_DIGEST = f"sha256:{'0' * 64}", f"sha256:{'1' * 64}"
NEEDED = {"image": {"repository": "registry.example.com/server", "digest": DIGEST}, "model": {"claimName": "models"}}
FETCH = {"image": f"registry.example.com/minilm@{OTHER_DIGEST}", "command": ["cp"]}
CONTAINER = "Deployment minilm spec.template.spec.containers.0"
POD = "Deployment minilm spec.template.spec"
SCALED, AUTOSCALER = "ScaledObject minilm spec", "HorizontalPodAutoscaler minilm spec"
POLICY = "NetworkPolicy minilm spec"
PEER = {"podSelector": {"matchLabels": {"app": "search"}}}


def nested(path: str, value: Any) -> dict[str, Any]:
    """Return values with one value at a path such as `stop.drainSeconds`."""
    for name in reversed(path.split(".")):
        value = {name: value}
    assert isinstance(value, dict)
    return value


def merge(*all_values: Mapping[str, Any]) -> dict[str, Any]:
    """Merge values as Helm does: join mappings, and replace everything else."""
    merged: dict[str, Any] = {}
    for values in all_values:
        for name, value in values.items():
            both = isinstance(value, Mapping) and isinstance(merged.get(name), Mapping)
            merged[name] = merge(merged[name], value) if both else value
    return merged


def at(manifests: Mapping[str, Any], path: str) -> Any:
    """Return what is at a path such as `Deployment minilm spec.replicas`; None if it is not there.

    `env.NAME` is the value of a variable. Other lists are searched by `name` if the part of the path is no number.
    """
    kind, name, place = path.split(" ")
    found: Any = manifests.get(f"{kind} {name}")
    for part in place.split(".") if place != "*" else ():
        part = part.replace("|", ".")
        if isinstance(found, list):
            named = {each.get("name"): each for each in found if isinstance(each, dict)}
            found = (found[int(part)] if int(part) < len(found) else None) if part.isdecimal() else named.get(part)
        else:
            found = found.get(part) if isinstance(found, dict) else None
    return found


TLS, TOKENS = {"tls": {"secretName": "secret"}}, {"tokenSecretName": "secret"}
CPU, HTTP, MONITORED = {"provider": "cpu"}, {"http": {"enabled": True}}, {"monitoring": {"enabled": True}}
KEDA, HPA = {"autoscaling": {"kind": "keda"}, **MONITORED}, {"autoscaling": {"kind": "hpa"}}
GRACE = {"stop": {"gracePeriodSeconds": 55}}
FETCHED = {"model": {"claimName": "", "fetch": FETCH}}
# For each value: the value, other values that it needs, and what it sets where.
CASES: dict[str, tuple[Any, Mapping[str, Any], dict[str, Any]]] = {
    "image.repository": ("other/server", {}, {f"{CONTAINER}.image": f"other/server@{DIGEST}"}),
    "image.digest": (OTHER_DIGEST, {}, {f"{CONTAINER}.image": f"registry.example.com/server@{OTHER_DIGEST}"}),
    "image.pullPolicy": ("Always", {}, {f"{CONTAINER}.imagePullPolicy": "Always"}),
    "imagePullSecrets": ([{"name": "pull"}], {}, {f"{POD}.imagePullSecrets": [{"name": "pull"}]}),
    "serviceAccountName": ("minilm", {}, {f"{POD}.serviceAccountName": "minilm"}),
    "runtimeClassName": ("nvidia", {}, {f"{POD}.runtimeClassName": "nvidia"}),
    "provider": (
        "cpu",
        {},
        {
            f"{CONTAINER}.env.HEADWAITER_PROVIDER.value": "cpu",
            f"{CONTAINER}.env.HEADWAITER_DEVICES": None,
            f"{CONTAINER}.resources.limits": {"cpu": "4", "memory": "8Gi"},
            f"{POD}.tolerations": None,
        },
    ),
    "gpus": (
        2,
        KEDA,
        {
            f"{CONTAINER}.resources.limits.nvidia|com/gpu": 2,
            f"{CONTAINER}.env.HEADWAITER_DEVICES.value": "0,1",
            f"{SCALED}.triggers.1.metadata.threshold": "1.4",
        },
    ),
    "gpuResource": (
        "nvidia.com/mig-1g.10gb",
        {"gpus": 2},
        {
            f"{CONTAINER}.resources.limits.nvidia|com/mig-1g|10gb": 2,
            f"{CONTAINER}.resources.limits.nvidia|com/gpu": None,
        },
    ),
    "replicas": (3, {}, {"Deployment minilm spec.replicas": 3}),
    "resources.requests": ({"cpu": "2"}, {}, {f"{CONTAINER}.resources.requests.cpu": "2"}),
    "resources.limits": ({"cpu": "2"}, {}, {f"{CONTAINER}.resources.limits.cpu": "2"}),
    "model.path": ("minilm/3", {}, {f"{CONTAINER}.env.HEADWAITER_BUNDLE.value": "/models/minilm/3"}),
    "model.name": ("minilm", {}, {f"{CONTAINER}.env.HEADWAITER_MODEL_NAME.value": "minilm"}),
    "model.several": (
        True,
        {},
        {
            f"{CONTAINER}.env.HEADWAITER_MODELS.value": "/models",
            f"{CONTAINER}.env.HEADWAITER_BUNDLE.value": "",
            f"{CONTAINER}.env.HEADWAITER_WATCH_S.value": "10",
        },
    ),
    "model.claimName": (
        "other",
        {},
        {f"{POD}.volumes.models.persistentVolumeClaim": {"claimName": "other", "readOnly": True}},
    ),
    "model.fetch.image": (
        FETCH["image"],
        {"model": {"claimName": ""}},
        {
            f"{POD}.initContainers.fetch.image": FETCH["image"],
            f"{POD}.initContainers.fetch.volumeMounts.models.mountPath": "/models",
            f"{POD}.volumes.models.emptyDir": {"sizeLimit": "10Gi"},
        },
    ),
    "model.fetch.command": (["sh"], FETCHED, {f"{POD}.initContainers.fetch.command": ["sh"]}),
    "model.fetch.args": (["copy"], FETCHED, {f"{POD}.initContainers.fetch.args": ["copy"]}),
    "model.fetch.env": (
        [{"name": "A", "value": "b"}],
        FETCHED,
        {f"{POD}.initContainers.fetch.env": [{"name": "A", "value": "b"}]},
    ),
    "model.fetch.envFrom": (
        [{"secretRef": {"name": "bucket"}}],
        FETCHED,
        {f"{POD}.initContainers.fetch.envFrom": [{"secretRef": {"name": "bucket"}}]},
    ),
    "model.fetch.sizeLimit": ("1Gi", FETCHED, {f"{POD}.volumes.models.emptyDir.sizeLimit": "1Gi"}),
    "tmpSizeLimit": ("1Gi", {}, {f"{POD}.volumes.tmp.emptyDir.sizeLimit": "1Gi"}),
    "settings": (
        {"max_queue_s": 2.5, "max_gpu_bytes": 1 << 32, "log_format": "json", "playground": True, "warm_up": False},
        {},
        {
            f"{CONTAINER}.env.HEADWAITER_MAX_QUEUE_S.value": "2.5",
            f"{CONTAINER}.env.HEADWAITER_MAX_GPU_BYTES.value": "4294967296",
            f"{CONTAINER}.env.HEADWAITER_LOG_FORMAT.value": "json",
            f"{CONTAINER}.env.HEADWAITER_PLAYGROUND.value": "on",
            f"{CONTAINER}.env.HEADWAITER_WARM_UP.value": "off",
        },
    ),
    "env": ([{"name": "OTEL_SDK_DISABLED", "value": "true"}], {}, {f"{CONTAINER}.env.OTEL_SDK_DISABLED.value": "true"}),
    "stop.preStopSeconds": (5, GRACE, {f"{CONTAINER}.lifecycle.preStop.sleep.seconds": 5}),
    "stop.drainDelaySeconds": (5, {}, {f"{CONTAINER}.env.HEADWAITER_DRAIN_DELAY_S.value": "5"}),
    "stop.drainSeconds": (20, {}, {f"{CONTAINER}.env.HEADWAITER_DRAIN_S.value": "20"}),
    "stop.gracePeriodSeconds": (90, {}, {f"{POD}.terminationGracePeriodSeconds": 90}),
    "maxConnectionAgeSeconds": (60, {}, {f"{CONTAINER}.env.HEADWAITER_MAX_CONNECTION_AGE_S.value": "60"}),
    "startupSeconds": (
        1201,
        {},
        {f"{CONTAINER}.startupProbe.failureThreshold": 241, "Deployment minilm spec.progressDeadlineSeconds": 1501},
    ),
    "http.enabled": (
        True,
        {},
        {
            f"{CONTAINER}.env.HEADWAITER_HTTP_API.value": "on",
            f"{CONTAINER}.ports.http.containerPort": 8080,
            "Service minilm spec.ports.http.port": 8080,
            "NetworkPolicy minilm spec.ingress.0.ports.1.port": "http",
        },
    ),
    "http.port": (
        8000,
        HTTP,
        {
            f"{CONTAINER}.env.HEADWAITER_HTTP_ADDRESS.value": "0.0.0.0:8000",
            f"{CONTAINER}.ports.http.containerPort": 8000,
            "Service minilm spec.ports.http.port": 8000,
        },
    ),
    "tls.secretName": (
        "secret",
        {},
        {
            f"{CONTAINER}.env.HEADWAITER_TLS_CERT.value": "/run/headwaiter/tls/tls.crt",
            f"{CONTAINER}.env.HEADWAITER_TLS_KEY.value": "/run/headwaiter/tls/tls.key",
            f"{CONTAINER}.volumeMounts.tls.mountPath": "/run/headwaiter/tls",
            f"{POD}.volumes.tls.secret.secretName": "secret",
            f"{CONTAINER}.readinessProbe.grpc": None,
            f"{CONTAINER}.readinessProbe.httpGet": {"path": "/health/ready", "port": "metrics"},
            f"{CONTAINER}.startupProbe.httpGet": {"path": "/health/ready", "port": "metrics"},
            "Service minilm spec.ports.grpc.appProtocol": None,
            "Service minilm-headless spec.ports.grpc.appProtocol": None,
        },
    ),
    "tls.clientCa": (
        True,
        TLS,
        {f"{CONTAINER}.env.HEADWAITER_TLS_CLIENT_CA.value": "/run/headwaiter/tls/ca.crt"},
    ),
    "tokenSecretName": (
        "secret",
        {},
        {
            f"{CONTAINER}.env.HEADWAITER_TOKEN_FILE.value": "/run/headwaiter/tokens/token",
            f"{CONTAINER}.volumeMounts.tokens.mountPath": "/run/headwaiter/tokens",
            f"{POD}.volumes.tokens.secret.secretName": "secret",
        },
    ),
    "autoscaling.kind": (
        "keda",
        MONITORED,
        {"Deployment minilm spec.replicas": None, f"{SCALED}.scaleTargetRef.name": "minilm"},
    ),
    "autoscaling.minReplicas": (
        3,
        KEDA,
        {f"{SCALED}.minReplicaCount": 3},
    ),
    "autoscaling.maxReplicas": (4, KEDA, {f"{SCALED}.maxReplicaCount": 4}),
    "autoscaling.queueSeconds": (2.5, KEDA, {f"{SCALED}.triggers.0.metadata.threshold": "2.5"}),
    "autoscaling.busyShare": (0.5, KEDA, {f"{SCALED}.triggers.1.metadata.threshold": "0.5"}),
    "autoscaling.scaleDownAfterSeconds": (
        60,
        KEDA,
        {f"{SCALED}.advanced.horizontalPodAutoscalerConfig.behavior.scaleDown.stabilizationWindowSeconds": 60},
    ),
    "autoscaling.prometheusAddress": (
        "http://p:9090",
        KEDA,
        {
            f"{SCALED}.triggers.0.metadata.serverAddress": "http://p:9090",
            f"{SCALED}.triggers.1.metadata.serverAddress": "http://p:9090",
        },
    ),
    "monitoring.enabled": (
        True,
        {},
        {
            "ServiceMonitor minilm spec.endpoints.0.port": "metrics",
            "PrometheusRule minilm metadata.name": "minilm",
            "ConfigMap minilm-dashboard metadata.labels.grafana_dashboard": "1",
        },
    ),
    "monitoring.dashboard": (False, MONITORED, {"ConfigMap minilm-dashboard *": None}),
    "monitoring.interval": ("5s", MONITORED, {"ServiceMonitor minilm spec.endpoints.0.interval": "5s"}),
    "monitoring.labels": (
        {"release": "prometheus"},
        MONITORED,
        {
            "ServiceMonitor minilm metadata.labels.release": "prometheus",
            "PrometheusRule minilm metadata.labels.release": "prometheus",
        },
    ),
    "networkPolicy.enabled": (False, {}, {"NetworkPolicy minilm *": None}),
    "networkPolicy.callers": ([PEER], {}, {f"{POLICY}.ingress.0.from": [PEER]}),
    "networkPolicy.monitoring": ([PEER], {}, {f"{POLICY}.ingress.1.from": [PEER]}),
    "networkPolicy.egress": ([{"to": [PEER]}], {}, {f"{POLICY}.egress": [{"to": [PEER]}]}),
    "podDisruptionBudget.maxUnavailable": ("25%", {}, {"PodDisruptionBudget minilm spec.maxUnavailable": "25%"}),
    "podLabels": ({"team": "search"}, {}, {"Deployment minilm spec.template.metadata.labels.team": "search"}),
    "podAnnotations": ({"a": "b"}, {}, {"Deployment minilm spec.template.metadata.annotations.a": "b"}),
    "nodeSelector": ({"gpu": "l4"}, {}, {f"{POD}.nodeSelector": {"gpu": "l4"}}),
    "tolerations": ([{"key": "spot", "operator": "Exists"}], {}, {f"{POD}.tolerations.1.key": "spot"}),
    "affinity": ({"nodeAffinity": {}}, {}, {f"{POD}.affinity": {"nodeAffinity": {}}}),
    "priorityClassName": ("high", {}, {f"{POD}.priorityClassName": "high"}),
}
# Values that together use every template; each is compared with the schemas.
VARIANTS: dict[str, Mapping[str, Any]] = {
    "gpu": {},
    "cpu": CPU,
    "fetched": FETCHED,
    "several models": {"model": {"several": True}},
    "secured": merge(TLS, {"tls": {"clientCa": True}}, TOKENS, HTTP),
    "http": HTTP,
    "keda": merge(KEDA, MONITORED),
    "hpa on a cpu": merge(HPA, CPU),
    "hpa on a gpu": HPA,
    "pre-stop": merge(GRACE, {"stop": {"preStopSeconds": 5}}),
}


def leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield the path of each value of values.yaml that a user can set."""
    for name, value in values.items():
        # The entries of these two are Kubernetes' own.
        if isinstance(value, dict) and value and prefix != "resources.":
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def test_the_cases_cover_every_value_of_the_chart() -> None:
    assert set(leaves(YAML(typ="safe").load(CHART / "values.yaml"))) == CASES.keys()


@pytest.mark.parametrize("path", CASES)
def test_a_value_changes_what_it_says(chart: Chart, path: str) -> None:
    value, others, expected = CASES[path]
    try:
        before = chart.render(merge(NEEDED, others))
    except Refused:  # `model.fetch.image` is what the other values lack.
        before = chart.render(NEEDED)
    after = chart.render(merge(NEEDED, others, nested(path, value)))
    for place, wanted in expected.items():
        assert at(after, place) == wanted, place
        assert at(before, place) != wanted, place


@pytest.mark.parametrize("name", VARIANTS)
def test_every_manifest_follows_the_schema_of_kubernetes(chart: Chart, name: str) -> None:
    manifests = chart.render(merge(NEEDED, VARIANTS[name]))
    assert "Deployment minilm" in manifests
    for key, manifest in manifests.items():
        assert is_custom(manifest) or problem(manifest) == "", key


def test_the_resources_of_operators_follow_their_schemas(chart: Chart, tmp_path: Path) -> None:
    manifests = chart.render(merge(NEEDED, VARIANTS["keda"]))
    custom = {key: each for key, each in manifests.items() if is_custom(each)}
    assert custom.keys() == {"ScaledObject minilm", "ServiceMonitor minilm", "PrometheusRule minilm"}
    assert custom_problem(list(custom.values()), tmp_path) == ""


@pytest.mark.parametrize(
    ("values", "facts"),
    [
        ({"stop": {"gracePeriodSeconds": 49}}, ["gracePeriodSeconds 49", "50", "10", "30"]),
        ({"stop": {"preStopSeconds": 6}}, ["gracePeriodSeconds 50", "56", "preStopSeconds 6"]),
        ({"stop": {"drainSeconds": 60}}, ["gracePeriodSeconds 50", "80", "drainSeconds 60"]),
        ({"image": {"digest": ""}}, ["digest", "sha256"]),
        ({"image": {"digest": "latest"}}, ["digest", "sha256"]),
        ({"image": {"repository": ""}}, ["image.repository"]),
        ({"model": {"claimName": ""}}, ["model.claimName", "model.fetch.image"]),
        ({"model": {"fetch": FETCH}}, ["model.claimName", "model.fetch.image"]),
        ({"model": {"claimName": "", "fetch": {"image": "minilm:latest"}}}, ["fetch", "image", "sha256"]),
        ({"model": {"name": "minilm", "several": True}}, ["model.name"]),
        ({"autoscaling": {"minReplicas": 9}}, ["maxReplicas 8", "minReplicas 9"]),
        ({"autoscaling": {"minReplicas": 3}}, ["minReplicas", "autoscaling.kind is none", "keda or hpa"]),
        ({"autoscaling": {"maxReplicas": 4}}, ["maxReplicas", "autoscaling.kind is none", "keda or hpa"]),
        (merge(KEDA, {"replicas": 9}), ["replicas 9", "maxReplicas 8"]),
        ({"autoscaling": {"kind": "keda", "minReplicas": 0}}, ["minReplicas"]),
        ({"autoscaling": {"kind": "hpa"}, "provider": "cpu", "resources": {"requests": {"cpu": None}}}, ["cpu"]),
        ({"autoscaling": {"kind": "keda"}}, ["keda", "monitoring.enabled"]),
        ({"http": {"enabled": True, "port": 9464}}, ["http.port 9464"]),
        ({"http": {"enabled": True, "port": 50051}}, ["http.port 50051"]),
        ({"tls": {"clientCa": True}}, ["tls.clientCa", "tls.secretName"]),
        ({"settings": {"drain_s": 5}}, ["settings.drain_s"]),
        ({"provider": "auto"}, ["provider"]),
        ({"replica": 3}, ["replica"]),
        ({"model": {"path": "/minilm"}}, ["path"]),
    ],
)
def test_values_that_contradict_each_other_are_refused(
    chart: Chart, values: Mapping[str, Any], facts: list[str]
) -> None:
    with pytest.raises(Refused) as error:
        chart.render(merge(NEEDED, values))
    assert [fact for fact in facts if fact not in str(error.value)] == []


@pytest.mark.parametrize("seconds", [{"gracePeriodSeconds": 50}, {"preStopSeconds": 5, "drainSeconds": 25}])
def test_the_shortest_grace_period_is_accepted(chart: Chart, seconds: Mapping[str, int]) -> None:
    assert chart.render(merge(NEEDED, {"stop": seconds}))


def container(chart: Chart, values: Mapping[str, Any]) -> dict[str, Any]:
    found = at(chart.render(merge(NEEDED, values)), CONTAINER)
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("name", VARIANTS)
def test_the_server_understands_its_environment_and_listens_where_the_pod_says(
    chart: Chart, name: str, tmp_path: Path
) -> None:
    server = container(chart, VARIANTS[name])
    variables = {each["name"]: each["value"] for each in server["env"]}
    assert variables.keys() <= {variable(field.name) for field in fields(Settings)}
    files = tmp_path / "models"
    files.mkdir()
    for mounted in set(re.findall(r"/run/[\w./]+", " ".join(variables.values()))):
        (tmp_path / mounted[1:]).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / mounted[1:]).write_text("token")
    here = {name: re.sub(r"^/(models|run)", rf"{tmp_path}/\1", text) for name, text in variables.items()}
    settings = read_settings([], here)
    ports = {each["name"]: each["containerPort"] for each in server["ports"]}
    assert ports["grpc"] == int(settings.address.rpartition(":")[2])
    metrics = settings.metrics_host_and_port or settings.http_host_and_port
    assert metrics == ("0.0.0.0", ports["metrics"])
    if "http" in ports:
        assert settings.http_host_and_port == ("0.0.0.0", ports["http"])
    assert settings.answers_over_http == ("http" in ports)


def test_pods_are_as_restricted_as_the_containers_of_compose(chart: Chart) -> None:
    compose = YAML(typ="safe").load(ROOT / "docker-compose.yml")["services"]["server"]
    manifests = chart.render(merge(NEEDED, FETCHED))
    pod = at(manifests, POD)
    for each in (*pod["containers"], *pod["initContainers"]):
        security = each["securityContext"]
        assert security["readOnlyRootFilesystem"] is compose["read_only"] is True
        assert security["capabilities"]["drop"] == compose["cap_drop"] == ["ALL"]
        assert security["allowPrivilegeEscalation"] is False
        assert "no-new-privileges:true" in compose["security_opt"]
        assert {mount["mountPath"] for mount in each["volumeMounts"]} >= set(compose["tmpfs"]) | {"/models"}
    (user,) = re.findall(r"^USER (\d+):\1$", (ROOT / "Dockerfile").read_text().split("AS server")[1], re.MULTILINE)
    security = pod["securityContext"]
    assert security["runAsNonRoot"] is True
    assert security["runAsUser"] == security["runAsGroup"] == security["fsGroup"] == int(user)
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is pod["enableServiceLinks"] is False


def test_the_fetching_container_changes_neither_the_quality_of_service_nor_the_gpus(chart: Chart) -> None:
    no_values: dict[str, Any] = {}
    for values in (no_values, YAML(typ="safe").load(CHART / "values-cpu.yaml")):
        pod = at(chart.render(merge(NEEDED, FETCHED, values)), POD)
        (fetch,), (server,) = pod["initContainers"], pod["containers"]
        limits = {name: limit for name, limit in server["resources"]["limits"].items() if name != "nvidia.com/gpu"}
        assert fetch["resources"] == {"requests": server["resources"]["requests"], "limits": limits}


def test_a_new_version_of_the_chart_alone_restarts_no_pod(chart: Chart, tmp_path: Path) -> None:
    newer = tmp_path / "headwaiter"
    shutil.copytree(CHART, newer)
    text = (CHART / "Chart.yaml").read_text()
    (newer / "Chart.yaml").write_text(re.sub(r"(?m)^(version|appVersion): .*", r"\1: 9.9.9", text))
    old, new = (at(each.render(NEEDED), "Deployment minilm *") for each in (chart, chart.of(newer)))
    assert old["metadata"]["labels"] != new["metadata"]["labels"]
    assert old["spec"] == new["spec"]


def test_an_upgrade_stops_no_pod_before_a_new_one_is_ready(chart: Chart) -> None:
    rolling = at(chart.render(NEEDED), "Deployment minilm spec.strategy")
    assert rolling == {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}}


def test_only_readiness_depends_on_whether_the_server_drains(chart: Chart) -> None:
    server = container(chart, {})
    assert server["readinessProbe"]["grpc"] == server["startupProbe"]["grpc"] == {"port": 50051}
    liveness = server["livenessProbe"]
    assert liveness["httpGet"] == {"path": "/health/live", "port": "metrics"}
    assert liveness["periodSeconds"] * liveness["failureThreshold"] >= 60


def test_services_monitors_and_policies_select_the_pods(chart: Chart) -> None:
    manifests = chart.render(merge(NEEDED, MONITORED))
    labels = at(manifests, "Deployment minilm spec.template.metadata.labels")
    selectors = [
        at(manifests, "Deployment minilm spec.selector.matchLabels"),
        at(manifests, "Service minilm spec.selector"),
        at(manifests, "Service minilm-headless spec.selector"),
        at(manifests, "PodDisruptionBudget minilm spec.selector.matchLabels"),
        at(manifests, "NetworkPolicy minilm spec.podSelector.matchLabels"),
        *(each["labelSelector"]["matchLabels"] for each in at(manifests, f"{POD}.topologySpreadConstraints")),
    ]
    assert all(selector.items() <= labels.items() for selector in selectors)
    # Two releases in a namespace must not select each other's pods.
    other = at(chart.render(NEEDED, release="other"), "Deployment other spec.template.metadata.labels")
    assert not any(selector.items() <= other.items() for selector in selectors)
    monitor = at(manifests, "ServiceMonitor minilm spec")
    selected = {
        name: manifest
        for name, manifest in manifests.items()
        if name.startswith("Service ")
        and monitor["selector"]["matchLabels"].items() <= manifest["metadata"]["labels"].items()
    }
    assert list(selected) == ["Service minilm-headless"]
    ports = {each["name"] for each in selected["Service minilm-headless"]["spec"]["ports"]}
    assert {each["port"] for each in monitor["endpoints"]} <= ports
    job = selected["Service minilm-headless"]["metadata"]["labels"][monitor["jobLabel"]]
    # A pod that still pulls its images is not down.
    (endpoint,) = monitor["endpoints"]
    phase = {"sourceLabels": ["__meta_kubernetes_pod_phase"], "regex": "Running", "action": "keep"}
    assert endpoint["relabelings"] == [phase]
    assert f'up{{job="{job}"}}' in (ROOT / "deploy" / "prometheus" / "alerts.yml").read_text()


def test_the_headless_service_has_no_address_and_proxies_learn_that_grpc_is_http_2(chart: Chart) -> None:
    manifests = chart.render(NEEDED)
    assert at(manifests, "Service minilm-headless spec.clusterIP") == "None"
    assert at(manifests, "Service minilm spec.clusterIP") is None
    for name in ("minilm", "minilm-headless"):
        assert at(manifests, f"Service {name} spec.ports.grpc.appProtocol") == "kubernetes.io/h2c"


def test_the_notes_give_the_client_the_headless_name_in_a_list(chart: Chart) -> None:
    # A client with a single address stays with one pod.
    notes = chart.notes(NEEDED)
    assert 'Client(["minilm-headless.search.svc:50051"])' in notes
    assert "dns:" not in notes


def test_alerts_and_dashboard_are_those_of_compose(chart: Chart) -> None:
    manifests = chart.render(merge(NEEDED, MONITORED))
    alerts = YAML(typ="safe").load(ROOT / "deploy" / "prometheus" / "alerts.yml")
    assert at(manifests, "PrometheusRule minilm spec") == alerts
    dashboard = json.loads((ROOT / "deploy" / "grafana" / "dashboards" / "headwaiter.json").read_text())
    assert json.loads(manifests["ConfigMap minilm-dashboard"]["data"]["minilm.json"]) == dashboard
    assert all(file.is_symlink() for file in (CHART / "files").iterdir())


def test_keda_never_reads_a_missing_series_as_an_empty_queue(chart: Chart) -> None:
    manifests = chart.render(merge(NEEDED, KEDA, {"replicas": 3}))
    triggers = at(manifests, f"{SCALED}.triggers")
    assert [each["metadata"]["ignoreNullValues"] for each in triggers] == ["false", "false"]
    assert {each["metricType"] for each in triggers} == {"AverageValue"}
    assert at(manifests, f"{SCALED}.fallback") == {
        "failureThreshold": 3,
        "replicas": 3,
        "behavior": "currentReplicasIfHigher",
    }
    behavior = at(manifests, f"{SCALED}.advanced.horizontalPodAutoscalerConfig.behavior")
    assert behavior["scaleDown"]["stabilizationWindowSeconds"] == 300
    hpa = chart.render(merge(NEEDED, HPA))
    assert at(hpa, f"{AUTOSCALER}.behavior") == behavior


def test_each_autoscaler_follows_what_its_provider_shows(chart: Chart) -> None:
    (cpu,) = at(chart.render(merge(NEEDED, HPA, CPU)), f"{AUTOSCALER}.metrics")
    assert cpu["containerResource"] == {
        "name": "cpu",
        "container": "server",
        "target": {"type": "Utilization", "averageUtilization": 70},
    }
    pods = [each["pods"] for each in at(chart.render(merge(NEEDED, HPA)), f"{AUTOSCALER}.metrics")]
    targets = {each["metric"]["name"]: each["target"] for each in pods}
    assert targets == {
        "headwaiter_estimated_wait_seconds": {"type": "AverageValue", "averageValue": "1"},
        "headwaiter_device_busy": {"type": "AverageValue", "averageValue": "0.7"},
    }


def test_a_replica_may_be_busy_in_each_session_of_each_device(chart: Chart) -> None:
    several = {"gpus": 3, "settings": {"instances": 2}}
    triggers = at(chart.render(merge(NEEDED, KEDA, several)), f"{SCALED}.triggers")
    assert triggers[1]["metadata"]["threshold"] == "4.2"
    (_, busy) = at(chart.render(merge(NEEDED, HPA, several)), f"{AUTOSCALER}.metrics")
    assert busy["pods"]["target"]["averageValue"] == "4.2"
    triggers = at(chart.render(merge(NEEDED, KEDA, CPU, several)), f"{SCALED}.triggers")
    assert triggers[1]["metadata"]["threshold"] == "1.4"


def test_the_queries_read_series_of_the_server_and_of_this_release_only(chart: Chart) -> None:
    triggers = at(chart.render(merge(NEEDED, KEDA)), f"{SCALED}.triggers")
    documented = METRICS.read_text()
    for each in triggers:
        query = each["metadata"]["query"]
        (metric,) = re.findall(r"headwaiter_\w+", query)
        assert f"`{metric}{{" in documented
        assert '{namespace="search",service="minilm-headless"}' in query


def test_the_values_for_a_cpu_and_the_values_on_the_page_render(chart: Chart) -> None:
    yaml = YAML(typ="safe")
    cpu = chart.render(merge(NEEDED, yaml.load(CHART / "values-cpu.yaml")))
    assert at(cpu, f"{CONTAINER}.resources.limits") == {"cpu": "4", "memory": "4Gi"}
    on_page = [yaml.load(block.replace("sha256:…", DIGEST)) for block in blocks(KUBERNETES, "yaml")]
    (pod,) = (each for each in on_page if "containers" in each)
    assert problem({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "minilm"}, "spec": pod}) == ""
    # The first block of values is complete; each of the others adds to it.
    first, *others = (each for each in on_page if each is not pod)
    assert others
    for other in ({}, *others):
        values = merge(first, other)
        if other.get("model", {}).get("claimName"):
            values["model"] = other["model"]
        for key, manifest in chart.render(values).items():
            assert is_custom(manifest) or problem(manifest) == "", key
