"""Simulates hosts on one machine. Each has its own network, process, mount and UTS namespaces, address, /dev/shm and host name.

    hosts = SimulatedHosts(3)                   # raises NotPermitted if the machine does not allow namespaces
    process = test.start_line(hosts.mpirun(2) + [octavo, ...])      # starts 2 ranks on each host
    hosts.cut_power("host1")                    # ends its processes and discards its memory
    hosts.close()

mpirun runs outside the hosts, in a namespace with the bridge that connects them. It starts its daemons with a launch agent that
enters the namespaces of a host instead of calling ssh.
"""

import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

SUBNET = "10.77.0"

AGENT = """#!/bin/bash
# Open MPI calls this launch agent with the arguments HOST COMMAND...
host="$1"
shift
dir="{dir}/$host"
[[ -e "$dir/lost" ]] && exit 255
echo $$ >>"$dir/agents"
exec nsenter --net="/run/netns/{prefix}$host" unshare --mount --uts --ipc --pid --fork --kill-child --mount-proc /bin/bash -c '
  hostname "$0"
  mount --bind "{dir}/hosts" /etc/hosts
  mount --bind "$1" /dev/shm
  shift
  exec /bin/bash -c "$*"' "$host" "{memory}/$host" "$@"
"""


class NotPermitted(Exception):
    pass


def run(line):
    result = subprocess.run(line, shell=True, capture_output=True, text=True)
    if result.returncode:
        raise NotPermitted(f"{line}: {result.stderr.strip()}")


class SimulatedHosts:
    def __init__(self, count, link=None):
        """`link` is the queueing discipline of tc for the link of each host, such as "tbf rate 100mbit burst 256kb latency 50ms"."""
        self.names = [f"host{i}" for i in range(count)]
        # Ranks that wait for slow links yield their cores to ranks of other hosts.
        self.more_options = ["--mca", "mpi_yield_when_idle", "1"] if link else []
        self.prefix = f"octavo{os.getpid()}"
        self.dir = Path(tempfile.mkdtemp(prefix="octavo_hosts_"))
        self.memory = Path(tempfile.mkdtemp(prefix="octavo_hosts_", dir="/dev/shm"))
        self.namespaces = []
        try:
            self.make(link)
        except NotPermitted:
            self.close()
            raise

    def make(self, link):
        lines = [f"{SUBNET}.{i + 1} {name}" for i, name in enumerate(self.names)]
        (self.dir / "hosts").write_text("127.0.0.1 localhost\n" + "\n".join(lines) + "\n")
        head = self.add_namespace("head")
        run(f"ip -n {head} link add bridge type bridge && ip -n {head} addr add {SUBNET}.254/24 dev bridge && "
            f"ip -n {head} link set bridge up")
        for i, name in enumerate(self.names):
            (self.dir / name).mkdir()
            self.shm(name).mkdir()
            space = self.add_namespace(name)
            run(f"ip -n {head} link add {name} type veth peer name eth0 netns {space} && "
                f"ip -n {head} link set {name} master bridge up && "
                f"ip -n {space} addr add {SUBNET}.{i + 1}/24 dev eth0 && ip -n {space} link set eth0 up")
            if link:
                run(f"ip netns exec {space} tc qdisc add dev eth0 root {link}")
        agent = self.dir / "agent"
        agent.write_text(AGENT.format(dir=self.dir, memory=self.memory, prefix=self.prefix))
        agent.chmod(0o755)
        # This fails if the machine does not permit a namespace.
        for name in self.names:
            run(f"{agent} {name} true")
        run(" ".join(f"'{word}'" for word in self.enter()) + " true")

    def add_namespace(self, name):
        space = self.prefix + name
        run(f"ip netns add {space}")
        self.namespaces.append(space)
        run(f"ip -n {space} link set lo up")
        return space

    def enter(self):
        """Returns the beginning of a command that runs outside the hosts, on their network."""
        return ["nsenter", f"--net=/run/netns/{self.prefix}head", "unshare", "--mount", "/bin/bash", "-c",
                f'mount --bind {self.dir}/hosts /etc/hosts; exec "$@"', "bash"]

    def mpirun_options(self):
        return ["--mca", "plm_rsh_agent", str(self.dir / "agent"), "--mca", "oob_tcp_if_include", f"{SUBNET}.0/24",
                "--mca", "btl_tcp_if_include", f"{SUBNET}.0/24", *self.more_options]

    def mpirun(self, ranks, names=None):
        """Returns the beginning of a command that starts `ranks` ranks on each host. If `ranks` is a list, it has a number for each host."""
        names = names or self.names
        counts = ranks if isinstance(ranks, list) else [ranks] * len(names)
        hosts = ",".join(f"{name}:{count}" for name, count in zip(names, counts))
        return [*self.enter(), "mpirun", "-n", str(sum(counts)), "--host", hosts, "--bind-to", "none", *self.mpirun_options()]

    def shm(self, name):
        """Returns the directory that is /dev/shm on the host."""
        return self.memory / name

    def cut_power(self, name):
        """Ends all processes of the host at once, without closing its connections. Its memory is empty when it comes back."""
        head = self.prefix + "head"
        run(f"ip -n {head} link set {name} down")
        (self.dir / name / "lost").touch()
        self.kill_agents(name)
        for path in self.shm(name).iterdir():
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink()

    def bring_back(self, name):
        (self.dir / name / "lost").unlink()
        run(f"ip -n {self.prefix}head link set {name} up")
        # The other hosts must forget that the host was unreachable.
        for space in self.namespaces:
            run(f"ip -n {space} neigh flush all")

    def kill_agents(self, name):
        agents = self.dir / name / "agents"
        for pid in agents.read_text().split() if agents.exists() else []:
            # The process id may belong to another process by now.
            if f"unshare\0--mount" in self.command_line(pid):
                os.kill(int(pid), signal.SIGKILL)
        agents.unlink(missing_ok=True)

    @staticmethod
    def command_line(pid):
        try:
            return Path(f"/proc/{pid}/cmdline").read_text()
        except OSError:
            return ""

    def close(self):
        for name in self.names:
            self.kill_agents(name)
        for space in self.namespaces:
            subprocess.run(["ip", "netns", "del", space], capture_output=True)
        for directory in (self.dir, self.memory):
            shutil.rmtree(directory, ignore_errors=True)
