#!/usr/bin/env python3
"""Recovery of PyTorch's elastic launcher, measured as `muster-chaos bench recovery` measures Muster.

Four agents (`python3 -m torch.distributed.run`, c10d rendezvous) on this machine run one worker
each: a model of the size of char_lm's, gradients summed by gloo. One agent and its worker are
killed with SIGKILL; the time counts from kill() to the last survivor's next step. The last line of
output is {"kill_to_step_ms": [...]}.

The same file is the worker (`--worker`): it appends a line of JSON to a record file per step.
"""

import argparse
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

AGENTS = 4
LIMIT_S = 180  # of any single wait
STEPS_BEFORE_KILL = 20
# What makes this launcher react as fast as it can without declaring healthy agents dead.
TUNED = [
    "--monitor_interval", "0.1",
    "--rdzv_conf", "last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=2,timeout=120",
]


def worker(directory: Path) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    torch.manual_seed(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    vocabulary, context, embedding, hidden, batch = 96, 16, 16, 128, 64
    model = torch.nn.Sequential(
        torch.nn.Embedding(vocabulary, embedding), torch.nn.Flatten(),
        torch.nn.Linear(context * embedding, hidden), torch.nn.Tanh(),
        torch.nn.Linear(hidden, hidden), torch.nn.Tanh(),
        torch.nn.Linear(hidden, vocabulary))
    optimizer = torch.optim.Adam(model.parameters())
    share = batch // world
    with open(directory / f"{os.getpid()}.jsonl", "a", encoding="ascii", buffering=1) as records:
        step = 0
        while True:
            step += 1
            windows = torch.randint(vocabulary, (share, context))
            targets = torch.randint(vocabulary, (share,))
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(windows), targets).backward()
            flat = torch.cat([p.grad.flatten() for p in model.parameters()])
            dist.all_reduce(flat)
            flat /= world
            start = 0
            for p in model.parameters():
                p.grad.copy_(flat[start:start + p.numel()].view_as(p))
                start += p.numel()
            optimizer.step()
            records.write(json.dumps({"t_ns": time.time_ns(), "pid": os.getpid(),
                                      "agent": os.getppid(), "rank": rank, "world": world,
                                      "step": step}) + "\n")


class Records:
    """All lines that the workers have written, read as the files grow."""

    def __init__(self, directory: Path):
        self.directory = directory
        self.offsets: dict[Path, int] = {}
        self.all: list[dict] = []

    def poll(self) -> list[dict]:
        fresh = []
        for path in self.directory.glob("*.jsonl"):
            text = path.read_bytes()[self.offsets.get(path, 0):]
            whole = text[:text.rfind(b"\n") + 1]
            self.offsets[path] = self.offsets.get(path, 0) + len(whole)
            fresh += [json.loads(line) for line in whole.splitlines()]
        self.all += fresh
        return fresh


class Agents:
    def __init__(self, mode: str, directory: Path):
        self.mode = mode
        self.directory = directory
        self.record_directory = directory / "records"
        self.record_directory.mkdir()
        self.records = Records(self.record_directory)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.processes: dict[int, subprocess.Popen] = {}
        self.starts = 0

    def start(self, index: int) -> None:
        self.starts += 1
        # On Python 3.11 this torchrun needs the redirects spelt out.
        command = [sys.executable, "-m", "torch.distributed.run",
                   "--nnodes", f"{AGENTS - 1}:{AGENTS}", "--nproc_per_node", "1",
                   "--rdzv_backend", "c10d", "--rdzv_endpoint", f"localhost:{self.port}",
                   "--rdzv_id", "recovery", "--max_restarts", "1000",
                   "--redirects", "1", "--tee", "1",
                   "--log_dir", str(self.directory / f"agent-{index}-{self.starts}")]
        command += TUNED if self.mode == "tuned" else []
        command += [__file__, "--worker", "--directory", str(self.record_directory)]
        environment = dict(os.environ, OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo")
        with open(self.directory / f"agent-{index}-{self.starts}.log", "wb") as log:
            self.processes[index] = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                env=environment)

    def await_port(self) -> None:
        """The first agent holds the rendezvous store: it must be there before the others ask."""
        def listens() -> bool:
            with socket.socket() as client:
                return client.connect_ex(("127.0.0.1", self.port)) == 0
        self.wait("the rendezvous store", listens)

    def wait(self, what: str, done) -> None:
        deadline = time.monotonic() + LIMIT_S
        while True:
            if done():
                return
            if time.monotonic() > deadline:
                raise TimeoutError(f"{what}: not within {LIMIT_S} s (logs in {self.directory})")
            for index, process in self.processes.items():
                if process.poll() is not None:
                    raise RuntimeError(f"agent {index} ended by itself with {process.returncode}")
            select.select([], [], [], 0.005)

    def pids(self) -> set[int]:
        return {process.pid for process in self.processes.values()}

    def await_steps(self, since_ns: int, world: int, steps: int) -> int:
        """Waits until every agent's worker has taken `steps` steps with that world size after
        `since_ns`; returns when the last of them took its first."""
        agents = self.pids()
        counts: dict[int, int] = dict.fromkeys(agents, 0)
        first: dict[int, int] = {}

        def done() -> bool:
            for record in self.records.poll():
                agent = record["agent"]
                if agent in agents and record["world"] == world and record["t_ns"] > since_ns:
                    first.setdefault(agent, record["t_ns"])
                    counts[agent] += 1
            return all(count >= steps for count in counts.values())

        self.wait(f"{world} workers in step", done)
        return max(first.values())

    def worker_of(self, agent: int) -> int:
        return next(r["pid"] for r in reversed(self.records.all) if r["agent"] == agent)

    def kill(self, index: int) -> int:
        agent = self.processes.pop(index)
        victim = self.worker_of(agent.pid)
        os.kill(agent.pid, signal.SIGKILL)
        os.kill(victim, signal.SIGKILL)
        now = time.time_ns()
        agent.wait()
        return now

    def stop(self) -> None:
        # Their workers first: an agent that is killed leaves its worker behind.
        for process in self.processes.values():
            try:
                os.kill(self.worker_of(process.pid), signal.SIGKILL)
            except (StopIteration, ProcessLookupError):
                pass
            process.kill()
            process.wait()


def measure(mode: str, kills: int, directory: Path) -> list[float]:
    agents = Agents(mode, directory)
    results = []
    try:
        agents.start(0)
        agents.await_port()
        for index in range(1, AGENTS):
            agents.start(index)
        since = time.time_ns()
        for kill in range(kills):
            agents.await_steps(since, AGENTS, STEPS_BEFORE_KILL)
            victim = 1 + kill % (AGENTS - 1)  # never the one that holds the store
            killed = agents.kill(victim)
            last = agents.await_steps(killed, AGENTS - 1, 1)
            results.append((last - killed) / 1e6)
            print(f"{mode}: kill {kill + 1}: {results[-1]:.0f} ms", flush=True)
            since = time.time_ns()
            if kill + 1 < kills:
                agents.start(victim)
    finally:
        agents.stop()
    return results


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worker", action="store_true")
    parser.add_argument("--mode", choices=["default", "tuned"], default="default")
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--directory", type=Path, required=True)
    arguments = parser.parse_args()
    if arguments.worker:
        worker(arguments.directory)
        return 0
    results = measure(arguments.mode, arguments.kills, arguments.directory)
    print(json.dumps({"kill_to_step_ms": results}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
