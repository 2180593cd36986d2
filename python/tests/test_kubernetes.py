"""Manifests for Kubernetes: they are valid, and agree with the topology in them."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT

kubernetes_validate = pytest.importorskip("kubernetes_validate")
yaml = pytest.importorskip("yaml")

FOLDER = ROOT / "packaging/kubernetes"
MANIFESTS: list[dict[str, Any]] = [
    manifest for file in sorted(FOLDER.glob("*.yaml")) for manifest in yaml.safe_load_all(file.read_text())
]


def name_of(manifest: dict[str, Any]) -> str:
    """Returns kind and name of an object."""
    return f"{manifest['kind']}-{manifest['metadata']['name']}"


@pytest.mark.parametrize("manifest", MANIFESTS, ids=name_of)
def test_a_manifest_is_valid(manifest: dict[str, Any]) -> None:
    for version in ("1.30", kubernetes_validate.latest_version()):
        kubernetes_validate.validate(manifest, version, strict=True)


def test_the_nodes_are_those_of_the_topology_and_find_the_service(program: Path, tmp_path: Path) -> None:
    objects = {name_of(manifest): manifest for manifest in MANIFESTS}
    topology = objects["ConfigMap-thalweg-topology"]["data"]["topology.toml"]
    (tmp_path / "topology.toml").write_text(topology)
    checked = subprocess.run(
        [program, "check", "--file-only", tmp_path / "topology.toml"], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stderr
    port = objects["Service-thalweg-control"]["spec"]["ports"][0]["port"]
    assert f'listen = "0.0.0.0:{port}"' in topology
    nodes = {}
    for manifest in objects.values():
        if manifest["kind"] != "StatefulSet":
            continue
        pod = manifest["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        if container["name"] == "node":
            word, node, *rest = container["args"]
            assert (word, rest) == ("node", ["--control", f"http://thalweg-control:{port}"])
            assert pod["hostNetwork"]
            assert "hugepages-2Mi" in container["resources"]["limits"]
            nodes[node] = pod["nodeSelector"]["kubernetes.io/hostname"]
            assert f'{node} = {{ manager = "none" }}' in topology
    assert set(nodes) == {line.split('"')[1] for line in topology.splitlines() if line.startswith("name = ")}
    assert f"tcp:{nodes['builder']}:" in topology, "sources look for the builder on its host"
