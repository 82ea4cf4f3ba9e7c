"""A manifest for Kubernetes: any ``playbook`` command, or a script of one's own, as the ranks of many nodes.

A JobSet (jobset.x-k8s.io, v1alpha2), for all pods must start, and start again, together: one indexed Job whose pods
are the nodes, a torchrun in each. They meet at the first pod, whose name the JobSet's network knows.

Who must leave a node is asked with SIGTERM, which reaches the first process of each container alone: torchrun, which
passes it to its ranks. They save and leave, on all nodes after the same step. A pod that was made to leave fails its Job
at once, and the JobSet starts all pods again without counting it; failures of the program count, up to ``restarts``. The
other torchruns, whose ranks have left as well, wait for the one that is gone, until ``grace`` is over.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePath, PurePosixPath
from typing import Any

from playbook._checks import check_fields, told
from playbook.errors import LaunchError

PORT = 29400
_LABEL = re.compile(
    r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?"
)  # pods add their numbers, and a label has 63 letters at most
_CLAIM = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_MEMORY = re.compile(r"\d+(Ki|Mi|Gi|Ti|k|M|G|T)?")
_PLAIN = re.compile(r"[A-Za-z_/][\w./-]*")
#: What YAML readers, of 1.1 as well, do not take for text.
_WORDS = {"true", "false", "null", "yes", "no", "on", "off", "y", "n"}


@dataclass(frozen=True)
class KubernetesJob:
    """What a JobSet asks Kubernetes for. Raises ``LaunchError`` for a field that Kubernetes would not understand."""

    image: str  # has playbook installed
    nodes: int = told(1, "nodes, a pod on each")
    gpus_per_node: int = told(8, "GPUs, and ranks, of each node")
    cpus_per_gpu: int = told(8, "CPU cores of each rank")
    name: str = told("playbook", "of the JobSet", metavar="NAME")
    namespace: str | None = told(None, "of the cluster (default: yours)", metavar="NAME")
    claim: str | None = told(
        None, "PersistentVolumeClaim for checkpoints and logs, which all nodes can write", metavar="NAME"
    )
    mount: str = told("/shared", "where it is mounted, and where the command runs", metavar="PATH")
    shm: str = told(
        "16Gi", "shared memory of a pod, through which NCCL's ranks of a node talk", metavar="SIZE"
    )
    gpu_resource: str = told("nvidia.com/gpu", "what the cluster calls its GPUs", metavar="NAME")
    max_restarts: int = told(
        3, "how often torchrun starts the ranks of its node again before the pod fails", least=0
    )
    restarts: int = told(10, "how often all pods start again after one has failed", least=0)
    grace: int = told(120, "seconds that ranks have to save and leave, from SIGTERM to SIGKILL", metavar="S")

    def __post_init__(self) -> None:
        check_fields(self, LaunchError)
        if not self.image.strip() or re.search(r"\s", self.image):
            raise LaunchError(f"image is {self.image!r}, but must name a container image, without spaces")
        for name in ("name", "namespace"):
            self._must(_LABEL, name, "lower-case letters, digits and -, at most 40, and begin with a letter")
        self._must(
            _CLAIM, "claim", "the name of a PersistentVolumeClaim: lower-case letters, digits, - and ."
        )
        self._must(_MEMORY, "shm", "an amount of memory, such as 16Gi")
        self._must(re.compile(r"[a-z0-9.-]+/[\w.-]+"), "gpu_resource", "DOMAIN/NAME, such as nvidia.com/gpu")
        if not PurePosixPath(self.mount).is_absolute() or ":" in self.mount:
            raise LaunchError(f"mount is {self.mount!r}, but must be an absolute path, without :")

    @property
    def ranks(self) -> int:
        """Ranks of the job: one for each GPU."""
        return self.nodes * self.gpus_per_node

    def _must(self, pattern: re.Pattern[str], name: str, valid: str) -> None:
        value = getattr(self, name)
        if value is not None and not pattern.fullmatch(value):
            raise LaunchError(f"{name} is {value!r}, but must be {valid}")


def manifest(command: Sequence[str], job: KubernetesJob) -> str:
    """The text of a manifest for ``kubectl create -f -`` that runs ``command`` as one rank for each GPU.

    ``command`` is what follows ``playbook`` on the command line, or a script of Python and its arguments. Each argument
    arrives as it is given here, whatever it contains.
    """
    if not command or not command[0]:
        raise LaunchError("command is missing: name a playbook command, such as train, or a script.py")
    if any("\0" in argument for argument in command):
        raise LaunchError("command holds a NUL character, which no argument of a command can")
    return "\n".join(["---", *_yaml(job_set(command, job)), ""])


def job_set(command: Sequence[str], job: KubernetesJob) -> dict[str, Any]:
    """The same as an object."""
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": job.name, **({"namespace": job.namespace} if job.namespace else {})},
        "spec": {
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            "failurePolicy": {
                "maxRestarts": job.restarts,
                "rules": [
                    {
                        "name": "disrupted",
                        "action": "RestartJobSetAndIgnoreMaxRestarts",
                        "onJobFailureReasons": ["PodFailurePolicy"],
                    }
                ],
            },
            "replicatedJobs": [{"name": "node", "replicas": 1, "template": {"spec": _job(command, job)}}],
        },
    }


def _job(command: Sequence[str], job: KubernetesJob) -> dict[str, Any]:
    """The pods of all nodes, of which none is started again alone."""
    volumes: list[dict[str, Any]] = [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": job.shm}}]
    if job.claim:
        volumes.append({"name": "shared", "persistentVolumeClaim": {"claimName": job.claim}})
    return {
        "completionMode": "Indexed",
        "completions": job.nodes,
        "parallelism": job.nodes,
        "backoffLimit": 0,
        "podFailurePolicy": {
            "rules": [
                {"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
            ]
        },
        "template": {
            "spec": {
                "restartPolicy": "Never",
                "terminationGracePeriodSeconds": job.grace,
                "containers": [_container(command, job)],
                "volumes": volumes,
            }
        },
    }


def _container(command: Sequence[str], job: KubernetesJob) -> dict[str, Any]:
    cores = job.gpus_per_node * job.cpus_per_gpu
    amounts = {job.gpu_resource: job.gpus_per_node, "cpu": cores}
    mounts = [{"name": "shm", "mountPath": "/dev/shm"}]
    if job.claim:
        mounts.append({"name": "shared", "mountPath": job.mount})
    # $$ is Kubernetes' way to say $: it would put the value of a variable in the place of $(NAME).
    program = [word.replace("$", "$$") for word in _program(command)]
    return {
        "name": "torchrun",
        "image": job.image,
        **({"workingDir": job.mount} if job.claim else {}),
        "command": _torchrun(job),
        "args": program,
        "env": list(_environment(job)),
        "ports": [{"containerPort": PORT}],
        "resources": {"requests": amounts, "limits": {job.gpu_resource: job.gpus_per_node}},
        "volumeMounts": mounts,
    }


def _program(command: Sequence[str]) -> list[str]:
    # After `--`: torchrun would take a flag of the program, such as --log, for one of its own that is cut short.
    script = PurePath(command[0]).suffix == ".py"
    return ["--", *command] if script else ["-m", "--", "playbook", *command]


def _torchrun(job: KubernetesJob) -> list[str]:
    """torchrun itself, and no shell around it that SIGTERM would reach in its place."""
    first = f"{job.name}-node-0-0.{job.name}"
    return [
        "torchrun",
        f"--nnodes={job.nodes}",
        f"--nproc-per-node={job.gpus_per_node}",
        f"--max-restarts={job.max_restarts}",
        "--rdzv-backend=c10d",
        f"--rdzv-id={job.name}",
        f"--rdzv-endpoint={first}:{PORT}",
        "--rdzv-conf=read_timeout=900",  # seconds for the first pod to come: images may take long to load
        "--local-addr=$(POD_IP)",
    ]


def _environment(job: KubernetesJob) -> Iterator[dict[str, Any]]:
    variables = {
        "OMP_NUM_THREADS": job.cpus_per_gpu,
        # Ranks that torchrun restarts meet at a store of their own: in torchrun's the addresses of the attempt before
        # still stand, and they would find "Connection refused".
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": 1,
        # The agent waits for its ranks as long as Kubernetes waits for it, less what it needs itself.
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": max(1, job.grace - 10),
        "TORCH_NCCL_DUMP_ON_TIMEOUT": 1,
        "PYTHONUNBUFFERED": 1,
    }
    yield {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    for name, value in variables.items():
        yield {"name": name, "value": str(value)}


def _yaml(value: Any, indent: str = "") -> Iterator[str]:
    """YAML that people can read: a line for each field, in the order in which they were given."""
    for key, item in value.items():
        if isinstance(item, dict):
            yield f"{indent}{_scalar(key)}:"
            yield from _yaml(item, indent + "  ")
        elif isinstance(item, list):
            yield f"{indent}{_scalar(key)}:"
            for entry in item:
                if isinstance(entry, dict):
                    first, *rest = _yaml(entry, indent + "    ")
                    yield f"{indent}  - {first.lstrip()}"
                    yield from rest
                else:
                    yield f"{indent}  - {_scalar(entry)}"
        else:
            yield f"{indent}{_scalar(key)}: {_scalar(item)}"


def _scalar(value: Any) -> str:
    """Plain where that is text for every reader of YAML, else as in JSON, which YAML reads as well."""
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return value
    text = json.dumps(value, ensure_ascii=False)
    return "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in text)
