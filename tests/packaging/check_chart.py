"""The Helm chart, as helm renders it and as Kubernetes describes its objects.

`make check-packaging` runs it; $STRANDLINE_PACKAGING is the folder of helm, kubeconform and
Kubernetes' description (swagger.json).
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from strandline.broker.config.listener_keys import tls_listeners, tls_of
from strandline.broker.config.loading import load_config

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy" / "helm" / "strandline"
TOOLS = Path(os.environ["STRANDLINE_PACKAGING"]).resolve()

# Something for each value of the chart.
EVERYTHING = {
    "image": {"repository": "registry.example.org/strandline", "tag": "1", "pullPolicy": "Always"},
    "imagePullSecrets": [{"name": "registry"}],
    "properties": {
        "remote.log.storage.system.enable": "true",
        "strandline.remote.url": "s3://bucket/events",
        "log.segment.bytes": 1073741824,
        "auto.create.topics.enable": False,
        "log.cleaner.min.cleanable.ratio": 0.25,
        "sasl.enabled.mechanisms": "SCRAM-SHA-512",
    },
    "credentialsSecret": "archive-credentials",
    "serviceAccount": {"annotations": {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/x"}},
    "protocol": "SASL_SSL",
    "tls": {
        "secret": "broker-tls",
        "keystore": "both.pem",
        "truststore": "ca.crt",
        "clientAuth": "requested",
        "metrics": True,
    },
    "networkPolicy": {
        "enabled": True,
        "clients": [{"podSelector": {"matchLabels": {"kafka-client": "true"}}}],
        "metrics": [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}],
    },
    "advertisedHost": "kafka.example.org",
    "service": {
        "type": "LoadBalancer",
        "annotations": {"a": "b"},
        "port": 19092,
        "metricsPort": 80,
    },
    "storage": {"size": "200Gi", "className": "fast"},
    "terminationGracePeriodSeconds": 300,
    "podDisruptionBudget": {"enabled": True},
    "resources": {"limits": {"memory": "4Gi"}},
    "podAnnotations": {"prometheus.io/scrape": "true"},
    "nodeSelector": {"disk": "local"},
    "tolerations": [{"key": "disk", "operator": "Exists", "effect": "NoSchedule"}],
    "affinity": {"nodeAffinity": {}},
}
VALUES: Sequence[Mapping[str, object]] = ({}, EVERYTHING)

Objects = Mapping[str, list[dict[str, Any]]]


def helm(
    *words: str, values: Mapping[str, object], folder: Path
) -> subprocess.CompletedProcess[str]:
    given = folder / "values.json"
    given.write_text(json.dumps(values))
    command = [str(TOOLS / "helm"), *words, str(CHART), "--values", str(given)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def rendered(values: Mapping[str, object], folder: Path) -> str:
    done = helm("template", "events", "--namespace", "data", values=values, folder=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


def objects(values: Mapping[str, object], folder: Path) -> Objects:
    """The chart's objects by kind."""
    found: dict[str, list[dict[str, Any]]] = {}
    for one in yaml.safe_load_all(rendered(values, folder)):
        found.setdefault(one["kind"], []).append(one)
    return found


@pytest.fixture(scope="module")
def schemas(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A schema for each kind, which knows no other fields, from Kubernetes' own description."""
    folder = tmp_path_factory.mktemp("schemas")
    definitions = json.loads((TOOLS / "swagger.json").read_text())["definitions"]
    for one in definitions.values():
        if "properties" in one:
            one.setdefault("additionalProperties", False)
    # Kubernetes takes a number where it says so in no other way.
    for name in ("api.resource.Quantity", "util.intstr.IntOrString"):
        path = f"io.k8s.apimachinery.pkg.{name}"
        definitions[path] = {"type": ["string", "integer", "number"]}
    (folder / "definitions.json").write_text(json.dumps({"definitions": definitions}))
    for name, one in definitions.items():
        for kind in one.get("x-kubernetes-group-version-kind", ()):
            target = f"file://{folder}/definitions.json#/definitions/{name}"
            group = kind["group"].partition(".")[0]
            suffix = "-".join(filter(None, (kind["kind"].lower(), group, kind["version"])))
            (folder / f"{suffix}.json").write_text(json.dumps({"$ref": target}))
    return folder


def conform(text: str, schemas: Path) -> subprocess.CompletedProcess[str]:
    location = f"{schemas}/{{{{.ResourceKind}}}}{{{{.KindSuffix}}}}.json"
    command = [TOOLS / "kubeconform", "-strict", "-summary", "-schema-location", location]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("values", VALUES, ids=["defaults", "everything"])
def test_helm_has_no_remark_and_kubernetes_takes_every_object(
    values: Mapping[str, object], schemas: Path, tmp_path: Path
) -> None:
    linted = helm("lint", "--strict", values=values, folder=tmp_path)
    assert linted.returncode == 0, linted.stdout + linted.stderr
    done = conform(rendered(values, tmp_path), schemas)
    assert done.returncode == 0, done.stdout + done.stderr
    count = 7 if values else 5
    assert f"{count} resources found" in done.stdout
    assert f"Valid: {count}" in done.stdout


def test_the_check_of_objects_finds_a_field_that_kubernetes_does_not_know(
    schemas: Path, tmp_path: Path
) -> None:
    wrong = rendered({}, tmp_path).replace("readOnlyRootFilesystem", "readOnlyRoot")
    done = conform(wrong, schemas)
    assert done.returncode != 0
    assert "readOnlyRoot" in done.stdout


@pytest.mark.parametrize("values", VALUES, ids=["defaults", "everything"])
def test_there_is_one_broker_without_rights_that_stops_cleanly(
    values: Mapping[str, object], tmp_path: Path
) -> None:
    (one,) = objects(values, tmp_path)["StatefulSet"]
    assert one["spec"]["replicas"] == 1
    pod = one["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["automountServiceAccountToken"] is False
    assert pod["terminationGracePeriodSeconds"] >= 120
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    writable = {mount["name"] for mount in container["volumeMounts"] if not mount.get("readOnly")}
    assert writable == {"data", "tmp"}


@pytest.mark.parametrize("values", VALUES, ids=["defaults", "everything"])
def test_the_broker_takes_the_properties(values: Mapping[str, object], tmp_path: Path) -> None:
    (one,) = objects(values, tmp_path)["Secret"]
    file = tmp_path / "server.properties"
    file.write_text(one["stringData"]["server.properties"])
    config = load_config(file, [])
    assert [str(folder) for folder in config.logs.dirs] == ["/var/lib/strandline/data"]
    assert "log.segment.bytes=1073741824" in file.read_text() or not values
    host = values.get("advertisedHost", "events-strandline.data.svc")
    protocol = values.get("protocol", "PLAINTEXT")
    assert f"advertised.listeners={protocol}://{host}:" in file.read_text()
    assert tls_listeners(config) == (["SASL_SSL", "HTTPS"] if values else [])


def test_a_secret_of_tls_encrypts_the_listener_and_is_renewed_in_its_folder(
    tmp_path: Path,
) -> None:
    found = objects({"tls": {"secret": "broker-tls"}}, tmp_path)
    pod = found["StatefulSet"][0]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    (mount,) = [one for one in container["volumeMounts"] if one["name"] == "tls"]
    # Without a subPath: Kubernetes swaps the link to the folder.
    assert mount == {"name": "tls", "mountPath": "/etc/strandline-tls", "readOnly": True}
    (volume,) = [one for one in pod["volumes"] if one["name"] == "tls"]
    assert volume["secret"] == {"secretName": "broker-tls", "defaultMode": 0o440}
    file = tmp_path / "server.properties"
    file.write_text(found["Secret"][0]["stringData"]["server.properties"])
    settings = tls_of(load_config(file, []), "SSL")
    assert settings.keystore_location == "/etc/strandline-tls/tls-combined.pem"
    assert settings.client_auth == "none"
    assert container["readinessProbe"]["httpGet"]["scheme"] == "HTTP"
    everything = objects(EVERYTHING, tmp_path)["StatefulSet"][0]["spec"]["template"]["spec"]
    assert everything["containers"][0]["readinessProbe"]["httpGet"]["scheme"] == "HTTPS"


def test_a_network_policy_admits_whom_it_names_to_ports_of_the_pod(tmp_path: Path) -> None:
    assert "NetworkPolicy" not in objects({}, tmp_path)
    found = objects(EVERYTHING, tmp_path)
    (one,) = found["NetworkPolicy"]
    pod = found["StatefulSet"][0]["spec"]["template"]
    assert one["spec"]["podSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    named = {port["name"] for port in pod["spec"]["containers"][0]["ports"]}
    admitted = {rule["ports"][0]["port"]: rule["from"] for rule in one["spec"]["ingress"]}
    assert admitted.keys() == named
    assert admitted["kafka"] == [{"podSelector": {"matchLabels": {"kafka-client": "true"}}}]
    (default,) = objects({"networkPolicy": {"enabled": True}}, tmp_path)["NetworkPolicy"]
    assert all(rule["from"] == [{"podSelector": {}}] for rule in default["spec"]["ingress"])


def test_services_and_probes_lead_to_ports_of_the_container(tmp_path: Path) -> None:
    found = objects({}, tmp_path)
    pod = found["StatefulSet"][0]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"kafka": 9092, "metrics": 9404}
    targets = {port["targetPort"] for one in found["Service"] for port in one["spec"]["ports"]}
    assert targets == set(ports)
    probes = [container[name]["httpGet"] for name in ("livenessProbe", "readinessProbe")]
    assert [(one["path"], one["port"]) for one in probes] == [
        ("/healthz", "metrics"),
        ("/readyz", "metrics"),
    ]


def test_a_drain_waits_for_a_person_where_that_is_wanted(tmp_path: Path) -> None:
    assert "PodDisruptionBudget" not in objects({}, tmp_path)
    found = objects(EVERYTHING, tmp_path)
    (one,) = found["PodDisruptionBudget"]
    assert one["spec"]["maxUnavailable"] == 0
    labels = found["StatefulSet"][0]["spec"]["template"]["metadata"]["labels"]
    assert one["spec"]["selector"]["matchLabels"].items() <= labels.items()


def test_changed_properties_restart_the_broker(tmp_path: Path) -> None:
    def checksum(values: Mapping[str, object]) -> str:
        (one,) = objects(values, tmp_path)["StatefulSet"]
        return str(one["spec"]["template"]["metadata"]["annotations"]["checksum/properties"])

    assert checksum({}) == checksum({"resources": {}})
    assert checksum({}) != checksum({"properties": {"log.retention.ms": "-1"}})


def test_the_pod_of_the_page_on_restores_is_the_brokers_but_for_its_command(
    schemas: Path, tmp_path: Path
) -> None:
    page = (ROOT / "docs" / "how-to" / "restore.md").read_text()
    (text,) = re.findall(r"^```yaml\n# restore.yaml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    done = conform(text, schemas)
    assert done.returncode == 0, done.stdout + done.stderr
    claim, restore = yaml.safe_load_all(text)
    values = {
        "image": {"repository": "registry.example.org/strandline"},
        "credentialsSecret": "archive-credentials",
        "storage": {"size": "200Gi"},
    }
    (one,) = objects(values, tmp_path)["StatefulSet"]
    (wanted,) = one["spec"]["volumeClaimTemplates"]
    assert claim["metadata"]["name"] == f"{wanted['metadata']['name']}-{one['metadata']['name']}-0"
    assert claim["spec"] == wanted["spec"]
    pod, ours = restore["spec"], one["spec"]["template"]["spec"]
    (container,), (broker,) = pod["containers"], ours["containers"]
    assert container["args"] == ["restore", *broker["args"][1:]]
    for key in ("image", "envFrom", "securityContext", "volumeMounts"):
        assert container[key] == broker[key], key
    assert pod["serviceAccountName"] == ours["serviceAccountName"]
    rights = {**pod["securityContext"], "fsGroupChangePolicy": "OnRootMismatch"}
    assert rights == ours["securityContext"]
    data = {"name": "data", "persistentVolumeClaim": {"claimName": claim["metadata"]["name"]}}
    assert pod["volumes"] == [data, *ours["volumes"]]


@pytest.mark.parametrize(
    "wrong",
    [
        {"replicas": 2},
        {"properties": {"log.dirs": "/elsewhere"}},
        {"storage": {"size": ""}},
        {"service": {"type": "ExternalName"}},
        {"terminationGracePeriodSeconds": 1},
        {"protocol": "SSL"},
        {"protocol": "PLAINTEXT", "tls": {"secret": "broker-tls"}},
        {"tls": {"metrics": True}},
        {"networkPolicy": {"enabled": True, "clients": []}},
    ],
    ids=str,
)
def test_the_chart_refuses_values_that_mean_nothing(
    wrong: Mapping[str, object], tmp_path: Path
) -> None:
    assert helm("template", "events", values=wrong, folder=tmp_path).returncode != 0
