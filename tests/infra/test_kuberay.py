"""The manifests against Kubernetes' schemas and KubeRay's, and against our own rules."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from tests.infra.documents import INFRA, KUBERAY, kubernetes, pod_specs

KUBERNETES = "1.34"
MANIFESTS = [(path.name, document) for path in KUBERAY for document in yaml.safe_load_all(path.read_text())]
[CLUSTER] = kubernetes("RayCluster")
PODS = pod_specs()


def containers(spec: Any) -> list[Any]:
    return [*spec.get("initContainers", []), *spec["containers"]]


@pytest.mark.parametrize(("file", "manifest"), MANIFESTS, ids=[f"{file}-{each['kind']}" for file, each in MANIFESTS])
def test_kubernetes_accepts_it(file: str, manifest: Any) -> None:
    if manifest["kind"] == "RayCluster":
        schema = json.loads((Path(__file__).parent / "raycluster.schema.json").read_text())
        jsonschema.validate(manifest, schema)
    else:
        kubernetes_validate.validate(manifest, KUBERNETES, strict=True)


@pytest.mark.parametrize("name", PODS)
def test_kubernetes_accepts_the_pods_that_come_of_it(name: str) -> None:
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": PODS[name]}
    kubernetes_validate.validate(pod, KUBERNETES, strict=True)


@pytest.mark.parametrize("name", PODS)
def test_no_pod_has_rights_that_it_does_not_need(name: str) -> None:
    """The restricted profile of Kubernetes' pod security standards, and a root file system that is read-only."""
    spec = PODS[name]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)
    assert all(set(volume) in ({"name", "emptyDir"}, {"name", "secret"}) for volume in spec["volumes"])
    for container in containers(spec):
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        }


@pytest.mark.parametrize("name", PODS)
def test_every_container_has_limits(name: str) -> None:
    for container in containers(PODS[name]):
        resources = container["resources"]
        assert {"cpu", "memory"} <= set(resources["limits"]) & set(resources["requests"])
    assert all(volume["emptyDir"]["sizeLimit"] for volume in PODS[name]["volumes"] if "emptyDir" in volume)


@pytest.mark.parametrize("name", PODS)
def test_every_volume_is_declared(name: str) -> None:
    declared = {volume["name"] for volume in PODS[name]["volumes"]}
    for container in containers(PODS[name]):
        assert {mount["name"] for mount in container["volumeMounts"]} <= declared


def test_only_the_head_may_speak_to_kubernetes() -> None:
    assert [name for name, spec in PODS.items() if spec.get("automountServiceAccountToken") is not False] == ["head"]


def test_only_the_readiness_of_a_coordinator_depends_on_the_database() -> None:
    [coordinator] = PODS["farm-coordinator"]["containers"]
    probes = {kind: coordinator[f"{kind}Probe"]["httpGet"]["path"] for kind in ("liveness", "readiness")}
    assert probes == {"liveness": "/livez", "readiness": "/readyz"}


def test_ray_asks_for_its_token_and_the_coordinator_has_it() -> None:
    assert CLUSTER["spec"]["authOptions"] == {"mode": "token"}
    [coordinator] = PODS["farm-coordinator"]["containers"]
    variables = {each["name"]: each for each in coordinator["env"]}
    assert variables["RAY_AUTH_MODE"]["value"] == "token"
    token = variables["RAY_AUTH_TOKEN"]["valueFrom"]["secretKeyRef"]
    assert token == {"name": CLUSTER["metadata"]["name"], "key": "auth_token"}  # what KubeRay makes


def test_pods_that_use_the_store_have_its_signing_keys_and_no_other_pod() -> None:
    [configuration] = kubernetes("ConfigMap")
    folder, _, file = configuration["data"]["FARM_SIGNING_KEYS"].rpartition("/")
    assert f"secret generic farm-signing-keys --from-file={file}" in (INFRA / "README.md").read_text()
    for spec in PODS.values():
        secrets = {each["secret"]["secretName"] for each in spec["volumes"] if "secret" in each}
        for container in containers(spec):
            reads = {"configMapRef": {"name": "farm"}} in container.get("envFrom", [])
            mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
            assert reads == (folder in mounts) == (secrets == {"farm-signing-keys"})
            assert not reads or mounts[folder]["readOnly"]


def test_secrets_are_references() -> None:
    assert not kubernetes("Secret")
    for spec in PODS.values():
        for container in containers(spec):
            for each in container.get("env", []):
                assert "value" not in each or not any(word in each["name"] for word in ("TOKEN", "PASSWORD", "SECRET"))


def test_both_kinds_of_workers_grow_and_shrink() -> None:
    assert CLUSTER["spec"]["enableInTreeAutoscaling"] is True
    groups = {each["groupName"]: each for each in CLUSTER["spec"]["workerGroupSpecs"]}
    assert set(groups) == {"cpu", "gpu"}
    assert all(0 <= each["minReplicas"] <= each["replicas"] <= each["maxReplicas"] for each in groups.values())
    [worker] = PODS["gpu"]["containers"]
    assert worker["resources"]["limits"]["nvidia.com/gpu"] == "1"


def test_strangers_reach_the_metrics_only() -> None:
    [policy] = kubernetes("NetworkPolicy")
    ours = policy["spec"]["podSelector"]["matchLabels"]
    among_us, from_outside = policy["spec"]["ingress"]
    assert among_us == {"from": [{"podSelector": {"matchLabels": ours}}]}
    assert [port["port"] for port in from_outside["ports"]] == [9400]
    templates = [CLUSTER["spec"]["headGroupSpec"], *CLUSTER["spec"]["workerGroupSpecs"], *_deployments()]
    assert all(ours.items() <= each["template"]["metadata"]["labels"].items() for each in templates)


def _deployments() -> list[Any]:
    return [each["spec"] for each in kubernetes("Deployment")]
