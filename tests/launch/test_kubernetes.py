"""launch/gke.yaml: what it says in several places agrees, and its command is one that launch.lm takes."""

from pathlib import Path

import pytest
import yaml

from launch.kit.command import parse
from launch.lm.config import Config
from launch.lm.run import check

pytestmark = pytest.mark.slow

MANIFEST = Path(__file__).parents[2] / "launch" / "gke.yaml"


def test_the_processes_of_the_job_find_each_other_and_their_text():
    service, job = yaml.safe_load_all(MANIFEST.read_text())
    spec, pod = job["spec"], job["spec"]["template"]["spec"]
    name, processes = job["metadata"]["name"], spec["completions"]
    assert spec["completionMode"] == "Indexed" and spec["parallelism"] == processes  # all at once, each with an index
    assert service["spec"]["clusterIP"] == "None" and service["spec"]["selector"] == {"job-name": name}
    assert pod["subdomain"] == service["metadata"]["name"]
    (container,) = pod["containers"]
    line = [*container["command"], *container["args"]]
    assert line[:3] == ["python", "-m", "launch.lm"] and line.count("$(JOB_COMPLETION_INDEX)") == 1
    for index in range(processes):
        flags = [flag.replace("$(JOB_COMPLETION_INDEX)", str(index)) for flag in line[3:]]
        config = parse(Config, flags, default=None, prog="lm", description="", presets=())
        check(config)
        assert (config.process_id, config.num_processes) == (index, processes) and config.resume
        assert config.coordinator is not None
        assert config.coordinator.partition(":")[0] == f"{name}-0.{pod['subdomain']}"  # the pod with index 0
    (volume,), (mount,) = pod["volumes"], container["volumeMounts"]
    assert mount["name"] == volume["name"] and "persistentVolumeClaim" in volume
    for flag in ("--out", "--corpus"):  # on the volume that all pods share
        given = line[line.index(flag) + 1]
        assert given.removeprefix("shards:").startswith(mount["mountPath"] + "/")
