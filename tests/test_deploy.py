"""What is in deploy/ is what its programs take, and what the pages about it say."""

import importlib.util
import json
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path
from types import ModuleType
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from mtpmon.compose import read_config
from mtpmon.discovery import discovered
from tests.programs import output, program

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
UNIT = DEPLOY / "systemd" / "mtpmon.service"
COMPOSE = DEPLOY / "docker" / "compose.yaml"
DOCKERFILE = DEPLOY / "docker" / "Dockerfile"
KUBERNETES = DEPLOY / "kubernetes"
SCHEMAS = ROOT / "tests" / "data" / "schemas"
RULES = sorted((DEPLOY / "prometheus" / "rules").glob("*.yml"))
MAX_EXPOSURE = 1.2
DASHBOARDS = "/var/lib/grafana/mtpmon/dashboards"


def documents(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


# --- systemd ------------------------------------------------------------------------------


def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    """Without a word, on a system with the programs where the page has them put."""
    for name in ("opt/mtpmon/bin/mtpmon", "bin/kill"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    units = tmp_path / "usr" / "lib" / "systemd" / "system"
    units.mkdir(parents=True)
    for kind in ("target", "slice", "mount", "socket"):
        for unit in Path("/usr/lib/systemd/system").glob(f"*.{kind}"):
            shutil.copy(unit, units, follow_symlinks=False)
    shutil.copy(UNIT, units)
    said = output("systemd-analyze", "verify", "--man=no", f"--root={tmp_path}", UNIT.name)
    assert said == ""


def test_the_unit_is_hardened() -> None:
    """As systemd rates it, from 0 (nothing can be reached) to 10."""
    said = output("systemd-analyze", "security", "--offline=true", "--no-pager", UNIT)
    exposure = re.search(r"exposure level for mtpmon.service: ([0-9.]+)", said)
    assert exposure is not None, said
    print(said.splitlines()[-1])
    assert float(exposure[1]) <= MAX_EXPOSURE


@pytest.mark.parametrize(
    "path",
    [
        DEPLOY / "systemd" / "mtpmon.yaml",
        DEPLOY / "docker" / "mtpmon.yaml",
        DEPLOY / "kubernetes" / "mtpmon.yaml",
        DEPLOY / "fleet" / "mtpmon.yaml",
    ],
    ids=lambda path: str(path.relative_to(DEPLOY)),
)
def test_the_configurations_are_good(path: Path) -> None:
    """As `mtpmon check` has it, the files of servers included."""
    assert discovered(read_config(path)).servers


def test_the_example_of_the_page_is_the_one_that_is_shipped() -> None:
    """docs/fleets.md shows `deploy/fleet`."""
    page = (ROOT / "docs" / "fleets.md").read_text(encoding="utf-8")
    blocks = dict(re.findall(r"```yaml\n# (\S+)\n(.*?)```", page, re.DOTALL))
    servers = yaml.safe_load(blocks["servers.yaml"])
    assert servers == documents(DEPLOY / "fleet" / "servers.yaml")
    ours = documents(DEPLOY / "fleet" / "mtpmon.yaml")
    assert yaml.safe_load(blocks["mtpmon.yaml"]).items() <= ours.items()


# --- docker -------------------------------------------------------------------------------


def test_hadolint_finds_nothing() -> None:
    """In the Dockerfile."""
    assert output("hadolint", DOCKERFILE) == ""


def test_the_image_gets_what_the_dockerfile_copies() -> None:
    """The context leaves everything else out, secrets and models above all."""
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert "*" in ignored
    let_in = {line[1:] for line in ignored if line.startswith("!")}
    copied: set[str] = set()
    for line in DOCKERFILE.read_text(encoding="utf-8").splitlines():
        if line.startswith("COPY ") and "--from" not in line:
            copied.update(line.split()[1:-1])
    assert copied == let_in
    for name in copied:
        assert (ROOT / name).exists(), name


@pytest.mark.parametrize("name", ["compose.yaml", "compose.gpu.yaml"])
def test_compose_takes_its_files(name: str) -> None:
    """By the schema of the compose specification."""
    packaged = resources.files("check_jsonschema.builtin_schemas.vendor") / "compose-spec.json"
    schema = json.loads(packaged.read_text(encoding="utf-8"))
    jsonschema.validate(documents(DEPLOY / "docker" / name), schema)


def mounts() -> Iterator[tuple[str, Path, str]]:
    """Service, file of ours, where it is mounted."""
    for name, service in documents(COMPOSE)["services"].items():
        for volume in service["volumes"]:
            source, target, *_ = volume.split(":")
            if source.startswith("."):
                yield name, (COMPOSE.parent / source).resolve(), target


def test_compose_mounts_what_there_is() -> None:
    """Every file of ours exists, and every variable is explained."""
    found = list(mounts())
    assert len(found) >= 7
    for _, source, _ in found:
        assert source.exists(), source
    variables = set(re.findall(r"\$\{([A-Z_]+)", COMPOSE.read_text(encoding="utf-8")))
    example = (COMPOSE.parent / ".env.example").read_text(encoding="utf-8")
    assert variables == set(re.findall(r"^([A-Z_]+)=", example, re.MULTILINE))


def test_compose_publishes_nothing_beyond_this_machine() -> None:
    """A port that others are to reach is opened on purpose."""
    for service in documents(COMPOSE)["services"].values():
        for port in service["ports"]:
            assert port.startswith("127.0.0.1:")


def test_grafana_finds_dashboards_and_prometheus() -> None:
    """The provider's directory is where the dashboards are, the data source the one they know."""
    places = {target: source for name, source, target in mounts() if name == "grafana"}
    assert sorted(path.name for path in places[DASHBOARDS].glob("*.json")) == [
        "fleet.json",
        "overview.json",
        "server.json",
    ]
    (provider,) = documents(next(places["/etc/grafana/provisioning/dashboards"].glob("*.y*ml")))[
        "providers"
    ]
    assert provider["options"]["path"] == DASHBOARDS
    (ours,) = documents(COMPOSE.parent / "datasource.yml")["datasources"]
    (plain,) = documents(next((ROOT / "grafana/provisioning/datasources").glob("*.y*ml")))[
        "datasources"
    ]
    different = {key for key in {*ours, *plain} if ours.get(key) != plain.get(key)}
    assert different <= {"url", "isDefault"}


def test_prometheus_in_compose_is_the_plain_one_with_other_names() -> None:
    """But for addresses, so that what is said of one holds for the other."""

    def without_addresses(tree: Any) -> Any:
        match tree:
            case dict():
                return {
                    key: without_addresses(value)
                    for key, value in tree.items()
                    if key not in ("targets", "external_labels")
                }
            case list():
                return [without_addresses(item) for item in tree]
        return tree

    ours = documents(COMPOSE.parent / "prometheus.yml")
    plain = documents(DEPLOY / "prometheus" / "prometheus.yml")
    assert without_addresses(ours) == without_addresses(plain)
    assert set(ours["global"]["external_labels"]) == set(plain["global"]["external_labels"])


# --- configurations of Prometheus ---------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["docker/prometheus.yml", "fleet/site.yml", "fleet/federation.yml"]
)
def test_prometheus_takes_its_configurations(name: str, tmp_path: Path) -> None:
    """With the rules where the configuration looks for them, and a password beside it."""
    shutil.copytree(DEPLOY, tmp_path, dirs_exist_ok=True)
    shutil.copytree(DEPLOY / "prometheus" / "rules", tmp_path / "docker" / "rules")
    (tmp_path / "fleet" / "remote_write_password").write_text("secret")
    said = output("promtool", "check", "config", tmp_path / name)
    assert "FAILED" not in said


def test_a_sites_prometheus_does_with_alerts_what_the_plain_one_does() -> None:
    """The labels that links are made of are the same, and are taken off again."""
    site = documents(DEPLOY / "fleet" / "site.yml")
    plain = documents(DEPLOY / "prometheus" / "prometheus.yml")
    labels = plain["global"]["external_labels"]
    assert set(site["global"]["external_labels"]) == {"site", *labels}
    assert site["alerting"] == plain["alerting"]
    (dropped,) = plain["alerting"]["alert_relabel_configs"]
    sent = site["remote_write"][0]["write_relabel_configs"]
    (federated,) = documents(DEPLOY / "fleet" / "federation.yml")["scrape_configs"]
    assert dropped in sent
    assert federated["metric_relabel_configs"] == [dropped]


# --- kubernetes ---------------------------------------------------------------------------


def generator() -> ModuleType:
    """``deploy/kubernetes/generate.py``, which is no part of the package."""
    spec = importlib.util.spec_from_file_location("generate_rule", KUBERNETES / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_prometheus_rule_is_up_to_date() -> None:
    """On failure: ``make docs``."""
    rule = (KUBERNETES / "prometheusrule.yaml").read_text(encoding="utf-8")
    assert rule == generator().rendered()
    names = [group["name"] for group in yaml.safe_load(rule)["spec"]["groups"]]
    assert len(names) == len(set(names)), "two files have groups of one name"
    assert names == [group["name"] for path in RULES for group in documents(path)["groups"]]


@pytest.fixture(scope="module")
def built() -> list[dict[str, Any]]:
    """What `kubectl apply` would send."""
    done = subprocess.run(
        [program("kubectl"), "kustomize", KUBERNETES], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return list(yaml.safe_load_all(done.stdout))


def of_kind(built: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [each for each in built if each["kind"] == kind]


def validate(manifest: Mapping[str, Any]) -> None:
    """Hold a manifest to the schema of its kind, unknown keys refused."""
    ours = SCHEMAS / f"{manifest['kind']}.json"
    if ours.exists():
        jsonschema.validate(manifest, json.loads(ours.read_text(encoding="utf-8")))
    else:
        kubernetes_validate.validate(manifest, "1.37", strict=True)


def test_kubernetes_takes_the_manifests(built: list[dict[str, Any]]) -> None:
    """Strictly, by the schemas of Kubernetes and of the Prometheus operator."""
    for each in built:
        validate(each)
    assert {each["kind"] for each in built} == {
        "Namespace",
        "ConfigMap",
        "Deployment",
        "Service",
        "PodMonitor",
        "PrometheusRule",
    }


@pytest.mark.parametrize(
    ("kind", "where", "key"),
    [
        ("Deployment", ("spec", "template", "spec", "containers", 1), "livenesProbe"),
        ("PodMonitor", ("spec", "podMetricsEndpoints", 0), "intervall"),
        ("PrometheusRule", ("spec", "groups", 0, "rules", 0), "exprr"),
    ],
)
def test_a_mistyped_key_is_refused(
    built: list[dict[str, Any]], kind: str, where: tuple[str | int, ...], key: str
) -> None:
    """So that the checks above mean something."""
    (whole,) = json.loads(json.dumps(of_kind(built, kind)))
    part = whole
    for step in where:
        part = part[step]
    part[key] = "5s"
    with pytest.raises((jsonschema.ValidationError, kubernetes_validate.ValidationError)):
        validate(whole)


def test_every_pod_is_a_target(built: list[dict[str, Any]]) -> None:
    """The monitor finds the pods and the port of mtpmon, and names the job as the rules do."""
    (deployment,) = of_kind(built, "Deployment")
    (monitor,) = of_kind(built, "PodMonitor")
    (service,) = of_kind(built, "Service")
    labels: Mapping[str, str] = deployment["spec"]["template"]["metadata"]["labels"]
    for selector in (
        monitor["spec"]["selector"]["matchLabels"],
        service["spec"]["selector"],
        deployment["spec"]["selector"]["matchLabels"],
    ):
        assert selector.items() <= labels.items()
    containers = {
        each["name"]: each for each in deployment["spec"]["template"]["spec"]["containers"]
    }
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    (port,) = containers["mtpmon"]["ports"]
    assert endpoint["port"] == port["name"]
    jobs = [each["replacement"] for each in endpoint["relabelings"] if each["targetLabel"] == "job"]
    used = {name for path in RULES for name in re.findall(r'job="([^"]+)"', path.read_text())}
    assert set(jobs) == used


def test_the_sidecar_does_not_stand_in_the_way(built: list[dict[str, Any]]) -> None:
    """It does not decide whether the pod gets requests, and holds no rights or much memory."""
    (deployment,) = of_kind(built, "Deployment")
    spec = deployment["spec"]["template"]["spec"]
    mtpmon = spec["containers"][1]
    assert mtpmon["name"] == "mtpmon"
    assert "readinessProbe" not in mtpmon
    assert mtpmon["securityContext"]["runAsNonRoot"] is True
    assert mtpmon["securityContext"]["readOnlyRootFilesystem"] is True
    assert mtpmon["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert f"USER {mtpmon['securityContext']['runAsUser']}:" in DOCKERFILE.read_text()
    mounted = {each["mountPath"] for each in mtpmon["volumeMounts"]}
    assert {"/etc/mtpmon", "/var/lib/mtpmon", "/tmp"} == mounted  # noqa: S108 - in the pod


def test_a_changed_configuration_is_a_rollout(built: list[dict[str, Any]]) -> None:
    """Its ConfigMap has a name of its own, and the pod refers to that."""
    (deployment,) = of_kind(built, "Deployment")
    volumes = deployment["spec"]["template"]["spec"]["volumes"]
    (name,) = [each["configMap"]["name"] for each in volumes if "configMap" in each]
    maps = {each["metadata"]["name"]: each for each in of_kind(built, "ConfigMap")}
    assert name.startswith("mtpmon-")
    assert maps[name]["data"]["mtpmon.yaml"] == (KUBERNETES / "mtpmon.yaml").read_text()


def test_grafanas_sidecar_finds_every_dashboard(built: list[dict[str, Any]]) -> None:
    """One ConfigMap for each, as it is, below the size that Kubernetes takes."""
    found: dict[str, str] = {}
    for each in of_kind(built, "ConfigMap"):
        if each["metadata"].get("labels", {}).get("grafana_dashboard") == "1":
            found |= each["data"]
            assert sum(len(text.encode()) for text in each["data"].values()) < 1024**2
    dashboards = (ROOT / "grafana" / "dashboards").glob("*.json")
    assert found == {path.name: path.read_text(encoding="utf-8") for path in dashboards}
