"""A Slurm cluster on one machine, on free ports and in a folder: controller, munge and virtual nodes of its own."""

from __future__ import annotations

import getpass
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import psutil

NEEDED = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol")
INSTALL = "apt-get install --no-install-recommends slurm-wlm slurm-client munge"

_CONF = """\
ClusterName=segue
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/filetxt
JobCompLoc={folder}/jobs.txt
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0,bf_interval=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
KillWait=3
MinJobAge=600
CompleteWait=0
ReturnToService=2
SlurmdTimeout=10
SlurmctldTimeout=10
TreeWidth=65533
{nodes}
PartitionName=spot Nodes=n[1-{count}] PriorityTier=1 PreemptMode=CANCEL GraceTime=120 MaxTime=60 Default=YES
PartitionName=strict Nodes=n[1-{count}] PreemptMode=CANCEL DefaultTime=2 AllowGroups=root
PartitionName=ondemand Nodes=n[1-{count}] PriorityTier=10 PreemptMode=OFF MaxTime=60
"""
_NODE = "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=1 RealMemory=1000 State=UNKNOWN"


def missing() -> list[str]:
    """The programs that are not installed."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    return [name for name in NEEDED if shutil.which(name, path=path) is None]


class SlurmCluster:
    """A cluster whose partition `ondemand` takes the nodes of `spot` away."""

    def __init__(self, folder: Path, *, nodes: int) -> None:
        self.folder, self.conf = folder, folder / "slurm.conf"
        self.env = {**os.environ, "SLURM_CONF": str(self.conf), "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"}
        self.nodes = [f"n{number}" for number in range(1, nodes + 1)]
        for part in ("munge", "state", "spool"):
            (folder / part).mkdir(mode=0o700)
        self._write_conf()

    def _write_conf(self) -> None:
        host = socket.gethostname().partition(".")[0]
        controller_port, *ports = _free_ports(len(self.nodes) + 1)
        nodes = [_NODE.format(name=name, host=host, port=port) for name, port in zip(self.nodes, ports, strict=True)]
        facts = {"host": host, "folder": self.folder, "user": getpass.getuser(), "controller_port": controller_port}
        self.conf.write_text(_CONF.format(**facts, nodes="\n".join(nodes), count=len(self.nodes)))

    def start(self) -> None:
        munge = self.folder / "munge"
        (munge / "key").write_bytes(secrets.token_bytes(1024))
        (munge / "key").chmod(0o400)
        places = [f"--{name}={munge / place}" for name, place in MUNGE_FILES.items()]
        self.run("munged", "--force", "--num-threads=2", *places)
        self.start_controller(is_new=True)
        for name in self.nodes:
            self.start_node(name)
        self.until(lambda: set(self.run("sinfo", "--noheader", "--format=%T").split()) == {"idle"})

    def run(self, *command: str, given: str = "", is_checked: bool = True) -> str:
        """What a command printed."""
        done = subprocess.run(
            command, env=self.env, input=given, capture_output=True, text=True, timeout=60, check=False
        )
        assert not is_checked or done.returncode == 0, f"{command}: {done.stdout} {done.stderr}"
        return done.stdout.strip()

    def until(self, holds: Callable[[], Any], *, seconds: float = 90.0) -> Any:
        """Wait for a state of the cluster."""
        give_up_at = time.monotonic() + seconds
        while not (found := holds()):
            assert time.monotonic() < give_up_at, self.run("scontrol", "show", "job", is_checked=False) + self.log()
            time.sleep(0.1)
        return found

    def log(self) -> str:
        return (self.folder / "slurmctld.log").read_text()[-3000:]

    def start_controller(self, *, is_new: bool = False) -> None:
        self.run("slurmctld", "-f", str(self.conf), *(["-c"] if is_new else []))
        self.until(lambda: "is UP" in self.run("scontrol", "ping", is_checked=False))

    def stop_controller(self) -> None:
        self._end("slurmctld.pid", number=signal.SIGTERM)

    def kill_controller(self) -> None:
        """Let the controller die, as it does without a word, once what runs now is in its saved state.

        It writes that a few seconds after each change; a job that it has not written yet, nobody knows afterwards.
        """
        saved, asked_at = self.folder / "state" / "job_state", time.time()
        for job in self.run("squeue", "--noheader", "--states=R", "--format=%i").split():
            self.run("scontrol", "update", f"jobid={job}", f"comment={asked_at}")
        self.until(lambda: saved.exists() and saved.stat().st_mtime > asked_at)
        self._end("slurmctld.pid", number=signal.SIGKILL)

    def start_node(self, name: str) -> None:
        self.run("slurmd", "-f", str(self.conf), "-N", name)

    def kill_node(self, name: str) -> None:
        """Let a node vanish for the controller; the processes of its jobs go on."""
        self._end(f"slurmd-{name}.pid", number=signal.SIGKILL)

    def drain(self) -> None:
        """Let every node take no new jobs."""
        self.run("scontrol", "update", f"nodename={','.join(self.nodes)}", "state=drain", "reason=test")

    def resume(self) -> None:
        """Let every node take jobs again, and wait until they answer."""
        self.run("scontrol", "update", f"nodename={','.join(self.nodes)}", "state=resume")
        self.until(lambda: "*" not in self.run("sinfo", "--noheader", "--format=%T"))

    def hold_all(self, *, seconds: int) -> str:
        """A job in `ondemand` that takes every node; its id."""
        job = ("sbatch", "--parsable", "--partition=ondemand", f"--nodes={len(self.nodes)}", "--exclusive")
        return self.run(*job, "--output=/dev/null", f"--wrap=sleep {seconds}")

    def state_of(self, job_id: str) -> str:
        shown = self.run("scontrol", "show", "job", job_id, is_checked=False)
        return shown.partition("JobState=")[2].partition(" ")[0]

    def clear(self) -> None:
        """End all jobs, and wait until every node is idle."""
        self.run("scancel", f"--user={getpass.getuser()}", is_checked=False)
        self.until(lambda: not self.run("squeue", "--noheader"))

    def close(self) -> None:
        with suppress(AssertionError):
            self.clear()
        # A controller that is asked to end waits for nodes that do not answer any more.
        self._end(*(f"slurmd-{node}.pid" for node in self.nodes), "slurmctld.pid", "munge/pid", number=signal.SIGKILL)

    def _end(self, *pid_files: str, number: signal.Signals) -> None:
        for pid_file in pid_files:
            with suppress(FileNotFoundError, ValueError, psutil.NoSuchProcess):
                process = psutil.Process(int((self.folder / pid_file).read_text()))
                process.send_signal(number)
                give_up_at = time.monotonic() + 60
                while process.status() != psutil.STATUS_ZOMBIE and time.monotonic() < give_up_at:
                    time.sleep(0.05)


MUNGE_FILES = {
    "key-file": "key",
    "socket": "socket",
    "pid-file": "pid",
    "log-file": "log",
    "seed-file": "seed",
}


def _free_ports(count: int) -> list[int]:
    with ExitStack() as opened:
        sockets = [opened.enter_context(closing(socket.socket())) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
