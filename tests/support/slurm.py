"""SLURM itself on this machine: a controller, and two nodes at two addresses of the loopback interface."""

import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

NODES = "127.0.0.1", "127.0.0.2"  # names that resolve everywhere
DAEMONS = "munged", "slurmctld", "slurmd"
TICK_S = 0.2
LIMIT_S = 240.0  # for what a test waits for

CONFIG = """\
ClusterName=reprise
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
# A job that is queued again waits as long as a credential is good.
AuthInfo=socket={home}/munge/socket,cred_expire=15
StateSaveLocation={home}/state
SlurmdSpoolDir={home}/%n
SlurmctldPidFile={home}/slurmctld.pid
SlurmdPidFile={home}/%n.pid
SlurmctldLogFile={home}/slurmctld.log
SlurmdLogFile={home}/%n.log
SlurmctldPort={ports[0]}
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SlurmdTimeout=5
KillWait=30
MailProg=/bin/true
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SlurmdParameters=config_overrides
NodeName={nodes[0]} NodeHostname={host} NodeAddr={nodes[0]} Port={ports[1]} CPUs=8
NodeName={nodes[1]} NodeHostname={host} NodeAddr={nodes[1]} Port={ports[2]} CPUs=8
PartitionName=all Nodes={nodes[0]},{nodes[1]} Default=YES State=UP
"""


def missing() -> list[str]:
    """Returns the programs of Debian's slurmctld, slurmd, slurm-client and munge that are not here."""
    return [name for name in (*DAEMONS, "srun", "sbatch") if shutil.which(name, path=path_of_daemons()) is None]


def path_of_daemons() -> str:
    return os.pathsep.join([os.environ["PATH"], "/usr/sbin", "/sbin"])


def free_ports(count: int) -> list[int]:
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [server.getsockname()[1] for server in held]
    for server in held:
        server.close()
    return ports


def wait_until(happened: Callable[[], object], what: str, limit_s: float = LIMIT_S) -> None:
    """Returns once `happened()` is true. Raises TimeoutError."""
    end_s = time.monotonic() + limit_s
    while not happened():
        if time.monotonic() > end_s:
            raise TimeoutError(f"{what}: not within {limit_s:g} s")
        time.sleep(TICK_S)


class Slurm:
    """A cluster that runs between `begin` and `end`.

    Args:
        home: an empty folder for its files, whose path SLURM limits to some hundred characters.
    """

    def __init__(self, home: Path) -> None:
        self.home, self._daemons = home, dict[str, subprocess.Popen[bytes]]()
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "HYDRA", "MASTER"))}
        self.environment |= {"SLURM_CONF": str(home / "slurm.conf"), "PATH": path_of_daemons()}

    def begin(self) -> None:
        self.home.chmod(0o755)  # munge wants a socket that everyone can reach
        for name in ("munge", "state"):
            (self.home / name).mkdir(mode=0o755)
        key = self.home / "munge" / "key"
        key.touch(0o600)
        key.write_bytes(os.urandom(1024))
        ports = free_ports(3)
        user = psutil.Process().username()
        config = CONFIG.format(home=self.home, host=socket.gethostname(), user=user, nodes=NODES, ports=ports)
        (self.home / "slurm.conf").write_text(config)
        of_munge = ("socket", "pid-file", "log-file", "seed-file", "key-file")
        files = [f"--{name}={self.home / 'munge' / name.removesuffix('-file')}" for name in of_munge]
        self._start("munged", "munged", "--foreground", *files)
        self._expect((self.home / "munge" / "socket").exists, "munged's socket")
        self._start("slurmctld", "slurmctld", "-D")
        for node in NODES:
            self.start_node(node)
        self._expect(lambda: self.ask("sinfo", "-h", "-o", "%D %t").split() == ["2", "idle"], "two idle nodes")

    def _expect(self, happened: Callable[[], object], what: str) -> None:
        try:
            wait_until(happened, what, 60)
        except TimeoutError as error:
            error.add_note("\n".join(f"{path.name}:\n{path.read_text()}" for path in self.home.glob("*.out")))
            raise

    def end(self) -> None:
        for node in NODES:
            if node in self._daemons:
                self.kill_node(node)
        for daemon in self._daemons.values():
            daemon.kill()
            daemon.wait()

    def _start(self, name: str, *command: str) -> None:
        with (self.home / f"{name}.out").open("ab") as out:
            self._daemons[name] = subprocess.Popen(
                command, env=self.environment, stdout=out, stderr=out, start_new_session=True
            )

    def start_node(self, node: str) -> None:
        self._start(node, "slurmd", "-N", node, "-D")

    def kill_node(self, node: str) -> None:
        """Kills everything that runs on a node, SLURM's daemon first, as a loss of power does."""
        daemon = self._daemons[node]
        of_node = [daemon, *psutil.Process(daemon.pid).children(recursive=True)] if daemon.poll() is None else []
        of_node += [process for process in psutil.process_iter() if self._is_of(process, node)]
        for process in of_node:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)
        daemon.wait()

    def _is_of(self, process: psutil.Process, node: str) -> bool:
        try:
            environment = process.environ()
        except psutil.Error:
            return False
        here = environment.get("SLURM_CONF") == self.environment["SLURM_CONF"]
        return here and environment.get("SLURMD_NODENAME") == node

    def ask(self, *command: str) -> str:
        """Returns what one of SLURM's commands prints."""
        return subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=60).stdout

    def run(self, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, env=self.environment | environment, capture_output=True, text=True, timeout=LIMIT_S
        )

    def submit(self, script: str, *options: str) -> str:
        """Queues a script of bash; returns the number of its job."""
        out = self.home / "job_%j.txt"
        command = ["sbatch", "--parsable", f"--output={out}", "--open-mode=append", *options]
        done = subprocess.run(
            command, env=self.environment, input=f"#!/bin/bash\n{script}\n", capture_output=True, text=True, timeout=60
        )
        if done.returncode:
            raise RuntimeError(done.stderr)
        return done.stdout.strip()

    def printed(self, job: str) -> str:
        path = self.home / f"job_{job}.txt"
        return path.read_text(errors="replace") if path.exists() else ""

    def state(self, job: str) -> dict[str, str]:
        """Returns what `scontrol show job` says of a job, by name."""
        return dict(re.findall(r"(\w+)=(\S*)", self.ask("scontrol", "show", "job", job)))

    def wait(self, job: str) -> dict[str, str]:
        """Returns the state of a job once it has ended for good."""
        over = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY"}
        try:
            wait_until(lambda: self.state(job).get("JobState") in over, f"the end of job {job}")
        except TimeoutError as error:
            error.add_note(f"{self.state(job)}\n{self.printed(job)}")
            raise
        return self.state(job)
