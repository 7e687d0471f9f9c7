"""Simulates hosts on one machine, as root. Each has its own network, process, mount, IPC and UTS namespaces, address, host name, sshd,
/tmp and /dev/shm.

    hosts = SimulatedHosts(3)                   # raises NotPermitted if the machine does not allow namespaces or has no sshd
    process = test.start_line(hosts.mpirun(2) + [octavo, ...])      # starts 2 ranks on each host
    hosts.cut_power("host1")                    # ends its processes and discards its memory
    hosts.close()

mpirun runs outside the hosts, in a namespace with the bridge that connects them, or on a host (`enter`). It reaches the hosts by ssh.
To try things by hand, run this file with the number of hosts and the directories in /tmp that they share. It prints the commands that
enter the hosts, and ends them on Ctrl-C.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SUBNET = "10.77.0"

# Makes the file systems of the host $1. Directories that the hosts share stay visible below its own /tmp.
MOUNTS = """
dir="{dir}" host="$1"
mount --bind "$dir/hosts" /etc/hosts
mount --bind "{memory}/$host" /dev/shm
for path in {shared}; do
  mkdir -p "$dir/$host/$path"
  mount --bind "$path" "$dir/$host/$path"
done
mount --rbind "$dir/$host/tmp" /tmp
"""
SSHD = """
hostname "$1"
source "{dir}/mounts"
mount -t proc proc /proc
mkdir -p /run/sshd
exec /usr/sbin/sshd -D -e -f /dev/null -h {dir}/key -o AuthorizedKeysFile={dir}/key.pub -o StrictModes=no -o PermitRootLogin=yes \\
  -o UsePAM=no -o PidFile=none -o MaxStartups=100
"""
# Here, a host that does not answer is noticed after about 6 seconds.
SSH = """#!/bin/bash
exec /usr/bin/ssh -F /dev/null -i {dir}/key -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR \\
  -o ConnectTimeout=3 -o ServerAliveInterval="${{OCTAVO_TEST_ALIVE:-2}}" -o ServerAliveCountMax=3 "$@"
"""


class NotPermitted(Exception):
    pass


def run(line):
    result = subprocess.run(line, shell=True, capture_output=True, text=True)
    if result.returncode:
        raise NotPermitted(f"{line}: {result.stderr.strip()}")


class SimulatedHosts:
    def __init__(self, count, link=None, shared=()):
        """`link` is the queueing discipline of tc for the link of each host, such as "tbf rate 100mbit burst 256kb latency 50ms". The
        hosts share directories outside /tmp, and those of `shared` in /tmp."""
        self.names = [f"host{i}" for i in range(count)]
        # Ranks that wait for slow links yield their cores to ranks of other hosts.
        self.more_options = ["--mca", "mpi_yield_when_idle", "1"] if link else []
        self.prefix = f"octavo{os.getpid()}"
        self.dir = Path(tempfile.mkdtemp(prefix="octavo_hosts_"))
        self.memory = Path(tempfile.mkdtemp(prefix="octavo_hosts_", dir="/dev/shm"))
        self.namespaces, self.running = [], {}
        try:
            self.make(link, shared)
        except NotPermitted:
            self.close()
            raise

    def make(self, link, shared):
        if not Path("/usr/sbin/sshd").exists():
            raise NotPermitted("there is no /usr/sbin/sshd: install openssh-server")
        lines = [f"{SUBNET}.{i + 1} {name}" for i, name in enumerate(self.names)]
        (self.dir / "hosts").write_text("127.0.0.1 localhost\n" + "\n".join(lines) + "\n")
        run(f"ssh-keygen -q -t ed25519 -N '' -f {self.dir}/key")
        (self.dir / "bin").mkdir()
        shared = " ".join(str(path) for path in (self.dir, *shared) if Path(path).is_relative_to("/tmp"))
        for name, text in (("mounts", MOUNTS), ("sshd", SSHD), ("bin/ssh", SSH)):
            (self.dir / name).write_text(text.format(dir=self.dir, memory=self.memory, shared=shared))
        (self.dir / "bin/ssh").chmod(0o755)
        head = self.add_namespace("head")
        run(f"ip -n {head} link add bridge type bridge && ip -n {head} addr add {SUBNET}.254/24 dev bridge && "
            f"ip -n {head} link set bridge up")
        for i, name in enumerate(self.names):
            (self.dir / name / "tmp").mkdir(parents=True)
            self.shm(name).mkdir()
            space = self.add_namespace(name)
            run(f"ip -n {head} link add {name} type veth peer name eth0 netns {space} && "
                f"ip -n {head} link set {name} master bridge up && "
                f"ip -n {space} addr add {SUBNET}.{i + 1}/24 dev eth0 && ip -n {space} link set eth0 up")
            if link:
                run(f"ip netns exec {space} tc qdisc add dev eth0 root {link}")
            self.power_on(name)
        # This fails if the machine does not permit a namespace.
        for name in self.names:
            run(self.shell(name, "true"))

    def add_namespace(self, name):
        space = self.prefix + name
        run(f"ip netns add {space}")
        self.namespaces.append(space)
        run(f"ip -n {space} link set lo up")
        return space

    def power_on(self, name):
        line = ["nsenter", f"--net=/run/netns/{self.prefix}{name}", "unshare", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child",
                "/bin/bash", str(self.dir / "sshd"), name]
        with open(self.dir / name / "sshd.log", "a") as log:
            self.running[name] = subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        deadline = time.monotonic() + 20
        while "listening on 0.0.0.0" not in (self.dir / name / "sshd.log").read_text():
            if self.running[name].poll() is not None or time.monotonic() > deadline:
                raise NotPermitted(f"sshd on {name}: {(self.dir / name / 'sshd.log').read_text()}")
            time.sleep(0.01)

    def enter(self, name="head"):
        """Returns the beginning of a command that runs on the host, or outside the hosts on their network. It is a process of the host
        except for its process namespace, so that a test can signal it."""
        space = [f"--net=/run/netns/{self.prefix}{name}"]
        mounts = f'mount --bind {self.dir}/hosts /etc/hosts'
        if name != "head":
            child = Path(f"/proc/{self.running[name].pid}/task/{self.running[name].pid}/children").read_text().split()[0]
            space += ["--target", child, "--uts", "--ipc"]
            mounts = f"source {self.dir}/mounts"
        return ["nsenter", *space, "unshare", "--mount", "/bin/bash", "-c",
                f'set -- "$@"; PATH="{self.dir}/bin:$PATH"; line=("$@"); set -- {name}; {mounts}; exec "${{line[@]}}"', "bash"]

    def shell(self, name, command):
        """Returns a line for a shell that runs the command on the host through ssh."""
        return f"ip netns exec {self.prefix}head {self.dir}/bin/ssh {SUBNET}.{self.names.index(name) + 1} '{command}'"

    def mpirun_options(self):
        return ["--mca", "oob_tcp_if_include", f"{SUBNET}.0/24", "--mca", "btl_tcp_if_include", f"{SUBNET}.0/24", *self.more_options]

    def mpirun(self, ranks, names=None):
        """Returns the beginning of a command that starts `ranks` ranks on each host. If `ranks` is a list, it has a number for each host."""
        names = names or self.names
        counts = ranks if isinstance(ranks, list) else [ranks] * len(names)
        hosts = ",".join(f"{name}:{count}" for name, count in zip(names, counts))
        return [*self.enter(), "mpirun", "-n", str(sum(counts)), "--host", hosts, "--bind-to", "none", *self.mpirun_options()]

    def shm(self, name):
        """Returns the directory that is /dev/shm on the host."""
        return self.memory / name

    def processes(self, name):
        """Returns the processes of the host."""
        found, below = [], [self.running[name].pid]
        while below:
            pid = below.pop()
            for path in Path(f"/proc/{pid}/task").glob("*/children"):
                below += map(int, path.read_text().split())
            found.append(pid)
        return found[1:]

    def set_link(self, name, state):
        """Sets the link of a host to "up" or "down"."""
        run(f"ip -n {self.prefix}head link set {name} {state}")

    def cut_power(self, name):
        """Ends all processes of the host at once, without closing its connections. Its memory is empty when it comes back."""
        self.set_link(name, "down")
        self.end(name)
        for path in self.shm(name).iterdir():
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink()

    def bring_back(self, name):
        self.set_link(name, "up")
        (self.dir / name / "sshd.log").unlink()
        self.power_on(name)
        # The other hosts must forget that the host was unreachable.
        for space in self.namespaces:
            run(f"ip -n {space} neigh flush all")

    def end(self, name):
        if name in self.running:
            process = self.running.pop(name)
            process.kill()
            process.wait()

    def close(self):
        for name in self.names:
            self.end(name)
        for space in self.namespaces:
            subprocess.run(["ip", "netns", "del", space], capture_output=True)
        for directory in (self.dir, self.memory):
            shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    machines = SimulatedHosts(int(sys.argv[1]), shared=sys.argv[2:])
    try:
        print(machines.prefix, machines.dir)
        for host in ("head", *machines.names):
            print(*(f"'{word}'" for word in machines.enter(host)), "bash", flush=True)
        signal.pause()
    except KeyboardInterrupt:
        machines.close()
