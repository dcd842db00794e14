"""What the files of deploy/ promise: they can be read, name commands that exist, and grant a
worker the time that it needs to stop."""

import configparser
import json
import re
import shlex
import shutil
import subprocess
import sys

import click
import pytest
import yaml
from click.testing import CliRunner

from pyworker import cli
from pyworker._runner import parent
from pyworker._runner.config import RunConfig
from tests.support import ROOT

DEPLOY = ROOT / "deploy"


def unit(name):
    found = configparser.RawConfigParser(strict=False)
    found.optionxform = str
    found.read_string((DEPLOY / name).read_text("utf-8"))
    return found


UNIT, TEMPLATE = unit("pyworker.service"), unit("pyworker@.service")
MANIFESTS = list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text("utf-8")))
KEDA = {each["kind"]: each for each in yaml.safe_load_all((DEPLOY / "keda.yaml").read_text("utf-8"))}
HPA = {each["kind"]: each for each in yaml.safe_load_all((DEPLOY / "hpa.yaml").read_text("utf-8"))}
DOCKERFILE = (DEPLOY / "Dockerfile").read_text("utf-8").replace("\\\n", " ")
PODS = {
    each["metadata"]["name"]: each["spec"]["template"]["spec"]
    for each in MANIFESTS
    if "template" in each["spec"]
}
COMMANDS = [
    shlex.split(UNIT["Service"]["ExecStart"])[1:],
    shlex.split(TEMPLATE["Service"]["ExecStart"])[1:],
    json.loads(re.search("(?m)^HEALTHCHECK .* CMD (.*)$", DOCKERFILE)[1])[1:],
]
CONTAINERS = [each for pod in PODS.values() for each in (*pod.get("initContainers", ()), *pod["containers"])]
COMMANDS += [container["args"] for container in CONTAINERS]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_each_command_is_one_that_there_is(command):
    name, *rest = command
    with click.Context(cli.main, **cli.main.context_settings) as ctx:
        cli.main.commands[name].make_context(name, list(rest), parent=ctx)


@pytest.mark.parametrize(
    ("granted", "command"),
    [
        (int(UNIT["Service"]["TimeoutStopSec"]), COMMANDS[0]),
        (int(TEMPLATE["Service"]["TimeoutStopSec"]), COMMANDS[1]),
        (PODS["pyworker"]["terminationGracePeriodSeconds"], PODS["pyworker"]["containers"][0]["args"]),
        (int(re.search("docker stop -t ([0-9]+)", DOCKERFILE)[1]), []),
    ],
    ids=["systemd", "systemd's template", "kubernetes", "docker"],
)
def test_a_worker_is_granted_more_time_than_it_takes_to_stop(granted, command):
    timeout = RunConfig("").shutdown_timeout
    if "--shutdown-timeout" in command:
        timeout = float(command[command.index("--shutdown-timeout") + 1])
    assert granted > timeout + parent.GRACE + 5


@pytest.mark.parametrize("instance", ["pyworker.service", "pyworker@shop.service"])
def test_systemd_takes_the_unit(instance, tmp_path):
    """systemd-analyze wants the program to be there."""
    if not (analyze := shutil.which("systemd-analyze")):
        pytest.skip("no systemd-analyze here")
    source = (DEPLOY / instance.replace("shop", "")).read_text("utf-8")
    (tmp_path / instance).write_text(source.replace("/srv/myapp/.venv/bin/pyworker", sys.executable))
    done = subprocess.run([analyze, "verify", tmp_path / instance], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_template_differs_from_the_unit_in_what_an_instance_has_for_itself():
    own = {
        (section, key) for section in UNIT.sections() for key in UNIT[section]
        if UNIT[section][key] != TEMPLATE[section][key]
    }  # fmt: skip
    assert own == {("Unit", "Description"), ("Service", "EnvironmentFile"), ("Service", "ExecStart")}
    assert all("%i" in TEMPLATE[section][key] for section, key in own)


def test_probes_ask_the_worker_itself_at_a_port_that_it_serves():
    (worker,) = PODS["pyworker"]["containers"]
    (port,) = worker["ports"]
    assert worker["args"][worker["args"].index("--metrics-port") + 1] == str(port["containerPort"])
    probes = {name: worker[f"{name}Probe"]["httpGet"] for name in ("liveness", "readiness", "startup")}
    assert {name: probe["path"] for name, probe in probes.items()} == {
        "liveness": "/live", "readiness": "/ready", "startup": "/live",
    }  # fmt: skip
    assert {probe["port"] for probe in probes.values()} == {port["name"]}


@pytest.mark.parametrize("manifest", [*MANIFESTS, *HPA.values()], ids=lambda manifest: manifest["kind"])
def test_a_manifest_fits_the_schema_of_kubernetes(manifest):
    validate = pytest.importorskip("kubernetes_validate").validate
    validate(manifest, "1.29", strict=True)  # strict: an unknown member is an error


@pytest.mark.parametrize("kind", KEDA)
def test_a_manifest_fits_the_schema_of_keda(kind):
    models = pytest.importorskip("cloudcoil.models.keda.v1alpha1")
    read = getattr(models, kind).model_validate(KEDA[kind])
    kept = json.loads(read.model_dump_json(by_alias=True, exclude_unset=True))
    assert kept == KEDA[kind], "an unknown member was dropped"


def test_each_autoscaler_scales_the_workers_as_their_concurrency_says_and_keeps_one():
    scaled, autoscaler = KEDA["ScaledObject"]["spec"], HPA["HorizontalPodAutoscaler"]["spec"]
    (worker,) = PODS["pyworker"]["containers"]
    concurrency = worker["args"][worker["args"].index("--concurrency") + 1]
    (trigger,), (metric,) = scaled["triggers"], autoscaler["metrics"]
    assert trigger["metadata"]["targetQueryValue"] == concurrency
    assert metric["external"]["target"] == {"type": "AverageValue", "averageValue": concurrency}
    assert scaled["scaleTargetRef"]["name"] == autoscaler["scaleTargetRef"]["name"] == "pyworker"
    assert (scaled["minReplicaCount"], autoscaler["minReplicas"]) == (1, 1)
    assert trigger["authenticationRef"]["name"] == KEDA["TriggerAuthentication"]["metadata"]["name"]
    (rule,) = yaml.safe_load(HPA["ConfigMap"]["data"]["config.yaml"])["externalRules"]
    assert rule["name"]["as"] == metric["external"]["metric"]["name"]


def test_keda_asks_for_the_jobs_that_wait_or_run_as_a_role_that_may_only_read(db, dsn):
    (trigger,) = KEDA["ScaledObject"]["spec"]["triggers"]
    query = trigger["metadata"]["query"]

    def answer():
        db.execute("set role pyworker_reader")
        try:
            return db.execute(query).fetchall()
        finally:
            db.execute("reset role")

    assert answer() == [(0.0,)]
    db.execute("select pyworker.add_job('t') from generate_series(1, 3)")
    db.execute("select pyworker.add_job('t', run_at := '2100-01-01')")
    db.execute("select from pyworker.claim_jobs(pyworker.register_worker(), 1)")
    assert answer() == [(3.0,)]  # two wait, one runs, one is not due
    metrics = CliRunner().invoke(cli.main, ["metrics", "--dsn", dsn]).output
    rule = yaml.safe_load(HPA["ConfigMap"]["data"]["config.yaml"])["externalRules"][0]
    (states,) = re.findall(r'state=~"([a-z|]+)"', rule["metricsQuery"])
    series = re.findall(rf'(?m)^pyworker_jobs{{[^}}]*state="(?:{states})"[^}}]*}} (\d+)', metrics)
    assert sum(map(int, series)) == 3  # what the rule of hpa.yaml sums up


def test_kubernetes_takes_the_manifest_again_with_another_image():
    """The pods of a Job cannot be changed, so a second apply would be refused."""
    assert "Job" not in {manifest["kind"] for manifest in MANIFESTS}


def test_each_container_connects_as_a_role_of_its_own():
    secrets = {
        container["name"]: [source["secretRef"]["name"] for source in container["envFrom"]]
        for container in CONTAINERS
    }
    assert secrets == {
        "migrate": ["pyworker-owner"], "worker": ["pyworker-worker"], "metrics": ["pyworker-reader"],
    }  # fmt: skip


def test_nothing_runs_as_root():
    assert re.search(r"(?m)^USER [1-9]\d*$", DOCKERFILE)
    assert UNIT["Service"]["DynamicUser"] == "yes"
    assert {pod["securityContext"]["runAsNonRoot"] for pod in PODS.values()} == {True}


def test_the_unit_does_not_start_again_what_a_restart_would_not_help():
    assert UNIT["Service"]["RestartPreventExitStatus"].split() == ["2", "56", "57"]


def test_alerts_and_dashboard_can_be_read():
    rules = [
        rule
        for group in yaml.safe_load((DEPLOY / "alerts.yml").read_text("utf-8"))["groups"]
        for rule in group["rules"]
    ]
    assert all({"alert", "expr", "labels", "annotations"} <= rule.keys() for rule in rules)
    assert len({rule["alert"] for rule in rules}) == len(rules)
    panels = json.loads((DEPLOY / "grafana-dashboard.json").read_text("utf-8"))["panels"]
    assert all(panel["targets"] for panel in panels)
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels]
    assert len(set(places)) == len(places)
