"""The manifest for Kubernetes: what it asks for, and how its pods run, as two processes that are ended as pods are."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest
import yaml
from helpers import ODD_WORDS
from hypothesis import example, given, settings
from hypothesis import strategies as st
from leftovers import remaining, signed_in

from playbook.cli import main
from playbook.launch import LaunchError, warm
from playbook.launch.kubernetes import PORT, KubernetesJob, job_set, manifest
from playbook.launch.processes import free_port

JOB = KubernetesJob("me/playbook:1", nodes=2, gpus_per_node=4, cpus_per_gpu=6, claim="data", namespace="lab")
ODD = [*ODD_WORDS, "$$(id)", "no", "1e3", "- a", "# b", "\x85\u2028\ufeff"]


def pod(text: str) -> dict:
    """The one template of pods in a manifest, as Kubernetes would read it."""
    (jobs,) = yaml.safe_load(text)["spec"]["replicatedJobs"]
    return jobs["template"]["spec"]["template"]["spec"]


def expanded(word: str, variables: dict[str, str]) -> str:
    """What Kubernetes makes of $$ and $(NAME) in the arguments of a container."""
    return re.sub(
        r"\$(?:(\$)|\((.*?)\))", lambda found: found[1] or variables.get(found[2], found[0]), word, flags=re.S
    )


def arguments(text: str, variables: dict[str, str]) -> list[str]:
    """The command line of a pod."""
    (container,) = pod(text)["containers"]
    return [expanded(word, variables) for word in container["command"] + container["args"]]


def test_fields_are_those_of_a_job_set():
    found = yaml.safe_load(manifest(["train"], JOB))
    assert found == job_set(["train"], JOB)
    assert (found["apiVersion"], found["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")
    assert found["metadata"] == {"name": "playbook", "namespace": "lab"}
    spec = found["spec"]
    assert set(spec) == {"network", "failurePolicy", "replicatedJobs"}
    (rule,) = spec["failurePolicy"]["rules"]
    # A job that failed for its pod's failure policy was disrupted: it starts again, and is not counted.
    assert (rule["action"], rule["onJobFailureReasons"]) == (
        "RestartJobSetAndIgnoreMaxRestarts",
        ["PodFailurePolicy"],
    )
    assert re.fullmatch("[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?", rule["name"])
    (jobs,) = spec["replicatedJobs"]
    job = jobs["template"]["spec"]
    assert (jobs["replicas"], job["completions"], job["parallelism"]) == (1, 2, 2)
    assert (job["completionMode"], job["backoffLimit"]) == ("Indexed", 0)
    assert job["podFailurePolicy"]["rules"] == [
        {"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    ]


def test_it_is_valid_by_the_published_schemas_of_job_set_and_core():
    """Which know each of its fields, and say of what type it is; the schema's comment says whose they are."""
    schema = json.loads(Path(__file__).with_name("jobset.schema.json").read_text())
    for job in (JOB, KubernetesJob("i"), replace(JOB, claim=None)):
        for command in (["train", *ODD], ["work.py"]):
            jsonschema.validate(yaml.safe_load(manifest(command, job)), schema)
    text = manifest(["train"], JOB)
    for right, wrong in (
        ("completions: 2", 'completions: "2"'),
        ("mountPath:", "mountpath:"),
        ("claimName", "claim"),
    ):
        assert right in text
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(yaml.safe_load(text.replace(right, wrong)), schema)


def test_what_a_pod_has():
    found = pod(manifest(["train"], JOB))
    assert (found["restartPolicy"], found["terminationGracePeriodSeconds"]) == ("Never", 120)
    (container,) = found["containers"]
    assert container["resources"] == {
        "requests": {"nvidia.com/gpu": 4, "cpu": 24},
        "limits": {"nvidia.com/gpu": 4},
    }
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounts == {"shm": "/dev/shm", "shared": "/shared"}
    assert {volume["name"] for volume in found["volumes"]} == set(mounts)
    env = {variable["name"]: variable.get("value") for variable in container["env"]}
    assert all(value is None or isinstance(value, str) for value in env.values())
    assert env["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] == "1"
    assert int(env["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"]) < found["terminationGracePeriodSeconds"]
    assert f"--rdzv-endpoint=playbook-node-0-0.playbook:{PORT}" in container["command"]
    alone = pod(manifest(["train"], replace(JOB, claim=None)))
    assert [volume["name"] for volume in alone["volumes"]] == ["shm"]
    assert "workingDir" not in alone["containers"][0]


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0")), max_size=5))
@settings(max_examples=25)
@example(ODD)
def test_every_argument_arrives_as_it_was_given(found):
    for command in (["train", *found], ["work.py", *found]):
        told = arguments(manifest(command, JOB), {"POD_IP": "10.0.0.1", "id": "wrong", "HOME": "wrong"})
        before = ["--"] if command[0] == "work.py" else ["-m", "--", "playbook"]
        assert told[-len(command) - len(before) :] == [*before, *command]
        assert "--local-addr=10.0.0.1" in told


WORK = """
import os, signal, time
from pathlib import Path
from leftovers import sign_in

sign_in(".")
asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
rank = os.environ["RANK"]
Path(f"listens-{rank}").touch()
while not asked and not Path("left").exists():
    time.sleep(0.01)
time.sleep(1)  # saves
Path("left").touch()
Path(f"saved-{rank}").touch()
"""


@pytest.mark.slow
def test_a_pod_that_must_leave_has_its_ranks_save_before_it_does(tmp_path):
    (tmp_path / "work.py").write_text(WORK)
    job = KubernetesJob("image", nodes=2, gpus_per_node=1, cpus_per_gpu=1)
    text, port = manifest(["work.py"], job), free_port()
    variables = {v["name"]: v["value"] for v in pod(text)["containers"][0]["env"] if "value" in v}
    python_path = os.pathsep.join([warm.python_path(), str(Path(__file__).parents[1])])
    env = {
        **os.environ,
        **variables,
        "PYTHONPATH": python_path,
        "CUDA_VISIBLE_DEVICES": "",
        "TMPDIR": str(tmp_path),
    }
    env["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    pods = []
    for node in (0, 1):
        command = arguments(text, {"POD_IP": f"127.0.0.{node + 1}"})
        # Without the name server of a cluster: the first pod has an address, and is told that it is the first.
        command = [re.sub("(?<=endpoint=).*", f"127.0.0.1:{port}", word) for word in command]
        command = [re.sub("(?<=conf=)", f"is_host={1 - node},", word) for word in command]
        pods.append(subprocess.Popen(command, cwd=tmp_path, env=env, start_new_session=True))
    try:
        while not all((tmp_path / f"listens-{rank}").exists() for rank in (0, 1)):
            assert all(each.poll() is None for each in pods)
        pods[1].send_signal(signal.SIGTERM)  # to the first process of the container alone
        assert pods[1].wait(120) == 1
        assert (tmp_path / "saved-1").exists()
        while not (tmp_path / "saved-0").exists():
            assert pods[0].poll() is None
        # As Kubernetes does with what is there after the grace: it waits for the other torchrun.
        pods[0].kill()
        assert len(signed_in(tmp_path)) == 2
        assert remaining(signed_in(tmp_path), 60) == []  # a rank that has saved has still to end
    finally:
        for each in pods:
            each.kill()
            each.wait()


def test_the_command_prints_the_manifest_and_json_holds_it(capsys):
    flags = (
        "--image i --nodes 2 --gpus-per-node 4 --cpus-per-gpu 2 --name n --namespace s --claim c --mount /m "
    )
    flags += "--shm 1Gi --gpu-resource amd.com/gpu --max-restarts 0 --restarts 5 --grace 60"
    job = KubernetesJob("i", 2, 4, 2, "n", "s", "c", "/m", "1Gi", "amd.com/gpu", 0, 5, 60)
    command = ["train", "--layout", "dp=8", "--checkpoint", "c", "--resume"]
    assert main(["kubernetes", *shlex.split(flags), "--", *command]) == 0
    assert capsys.readouterr().out == manifest(command, job)
    assert main(["kubernetes", "--image", "i", "--json", "--", "bench", "kernels"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["manifest"] == job_set(["bench", "kernels"], KubernetesJob("i"))
    assert printed["ranks"] == 8


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("-- train", "the following arguments are required: --image"),
        ("--image i", "command is missing: name a playbook command"),
        ("--image 'a b' -- train", "image is 'a b', but must name a container image"),
        ("--image i -- tarin", "unknown command 'tarin'; did you mean train?"),
        ("--image i -- slurm -- train", "unknown command 'slurm'"),
        (
            "--image i -- train --layout dp=2",
            "layout is 'dp=2', which needs 2 ranks, but the nodes have 8 GPUs",
        ),
        ("--image i --claim c -- train", "claim is 'c', but training would begin at step 0 again"),
        ("--image i --name A -- train", "name is 'A', but must be lower-case letters"),
        ("--image i --shm much -- train", "shm is 'much', but must be an amount of memory"),
        ("--image i --mount data -- train", "mount is 'data', but must be an absolute path"),
        ("--image i --grace 0 -- train", "grace must be at least 1, got 0"),
        ("--image i --gpu-resource gpu -- train", "gpu_resource is 'gpu', but must be DOMAIN/NAME"),
    ],
)
def test_bad_input_is_answered_in_one_sentence(capsys, arguments, sentence):
    try:
        status = main(["kubernetes", *shlex.split(arguments)])
    except SystemExit as end:  # argparse
        status = end.code
    printed = capsys.readouterr()
    assert (status, printed.out, printed.err.count("\n")) == (2, "", 1)
    assert sentence in printed.err


def test_an_argument_that_no_command_can_have():
    with pytest.raises(LaunchError, match="NUL"):
        manifest(["train", "a\0b"], JOB)
