"""Kill `fedcal federate`, `run` and `server` at random moments; then look for what is left, go on, and compare bytes.

    python benchmarks/kills.py FOLDER [TIMES [SEED [server | run | federate]]]

Each line is one kill: which command, how, after how many seconds. Signals are SIGKILL, SIGTERM, SIGHUP, and SIGINT twice
(Ctrl-C, and again a second later). After each there must be no process that knows the folder, no port held, no key and no
temporary folder; the same command then goes on, is killed again a few times, and ends with the bytes of a run that nobody
killed. The outcome is in docs/deploy.md; tests/federate/test_kills.py does a few of them.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from fedcal.base.codec import pack
from fedcal.base.store import read_tensors
from fedcal.transport.files import read_request, reply

WAYS = {"KILL": [signal.SIGKILL], "TERM": [signal.SIGTERM], "HUP": [signal.SIGHUP], "INT twice": [signal.SIGINT] * 2}
TIDY = 20.0  # seconds until nothing may be left
SCRIPT = "import sys; from fedcal.cli.entry import main; main(sys.argv[1:])"
FEDERATE = "--data digits --clients 2 --model logistic --rounds 1 --method fedcal:rounds=2 --timeout 300 --quiet"
RUN = "--data digits --limit 500 --clients 4 --rounds 6 --model mlp --method uncal --method fedcal-plus --quiet"
OUTCOME = ("model.safetensors", "results.json", "report.html", "scaler.safetensors", "scalers/fedcal-plus.safetensors")


def command(*words: str | Path) -> list[str]:
    return [sys.executable, "-c", SCRIPT, *map(str, words)]


def related(folder: Path) -> list[int]:
    """All processes that have the folder in their command line or environment: a search of its own, not the keeper's."""
    found, text = [], str(folder).encode()
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if int(entry.name) == os.getpid() or (entry / "stat").read_text().rpartition(")")[2].split()[0] == "Z":
                continue
            if text in (entry / "cmdline").read_bytes() or text in (entry / "environ").read_bytes():
                found.append(int(entry.name))
    return found


def ports_of(processes: list[int]) -> set[int]:
    """The ports in these processes' command lines."""
    found = set[int]()
    for process in processes:
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{process}/cmdline").read_bytes().decode(errors="replace").replace("\0", " ")
            found |= {int(port) for port in re.findall(r"(?:--port |127\.0\.0\.1:)(\d+)", words)}
    return found


def is_free(port: int) -> bool:
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections that were closed may linger
        try:
            one.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def left_over(folder: Path, ports: set[int]) -> list[str]:
    """What must not be there any more, in words."""
    found = [f"process {one}" for one in related(folder)]
    found += [f"port {port}" for port in ports if not is_free(port)]
    return found + keys_and_temporary(folder)


def keys_and_temporary(folder: Path) -> list[str]:
    """Private keys and temporary folders in a folder that may still be emptied."""
    found: list[str] = []
    for parent, folders, files in os.walk(folder):  # unlike rglob, it passes over folders that vanish while it looks
        found += [f"{parent}/tmp"] * ("tmp" in folders)
        for path in (Path(parent, name) for name in files):
            with contextlib.suppress(OSError):
                if b"PRIVATE KEY" in path.read_bytes():
                    found.append(str(path))
    return found


def kill(words: list[str], folder: Path, how: str, after: float) -> bool:
    """Start a command and kill it; True if it was alive then.

    Raises:
        AssertionError: where anything is left of it.
    """
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a shell's background jobs, and in all that they start
        signal.signal(signal.SIGINT, signal.default_int_handler)
    process = subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    ports, until = set[int](), time.monotonic() + after
    while time.monotonic() < until and process.poll() is None:
        ports |= ports_of(related(folder))
        time.sleep(0.2)
    alive = process.poll() is None
    for number, one in enumerate(WAYS[how]):
        time.sleep(1.0 if number else 0.0)
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(one)
    _, said = process.communicate(timeout=60)
    assert b"Traceback" not in said, said.decode()
    assert alive or process.returncode == 0, said.decode()
    until = time.monotonic() + TIDY
    while (left := left_over(folder, ports)) and time.monotonic() < until:
        time.sleep(0.2)
    assert not left, f"{how} after {after:.1f} s left {', '.join(left)}"
    return alive


def finish(words: list[str]) -> float:
    """Run a command to its end; returns the seconds that it took."""
    began = time.monotonic()
    done = subprocess.run(words, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, timeout=1800)
    assert done.returncode == 0, done.stderr.decode()
    return time.monotonic() - began


def outcome(path: Path) -> bytes:
    """A file's bytes; a scaler's without the name of its federation, which is drawn at random."""
    if path.name != "scaler.safetensors":
        return path.read_bytes()
    tensors, about = read_tensors(path)
    return pack(tensors, {key: value for key, value in about.items() if key != "federation"})


def same_bytes(folder: Path, whole: Path) -> None:
    names = [name for name in OUTCOME if (whole / name).exists()]
    assert names
    for name in names:
        assert outcome(folder / name) == outcome(whole / name), f"{folder / name} has other bytes"


Say = Callable[[str], None]


def of_command(kind: str, options: str, folder: Path, times: int, rng: random.Random, say: Say) -> None:
    """Kill one run so many times, going on with --resume; then let it end, and compare with one that nobody killed."""
    whole, out = folder / f"{kind}-whole", folder / f"{kind}-killed"
    seconds = finish(command(kind, *options.split(), "--out", whole))
    say(f"{kind}: {seconds:.0f} s if nobody kills it")
    for number in range(times):
        how, after = rng.choice(list(WAYS)), rng.uniform(0.2, seconds)
        resume = ["--resume"] if out.exists() else []
        alive = kill(command(kind, *options.split(), "--out", out, *resume), out, how, after)
        say(f"{kind} {number + 1}: {how} after {after:.1f} s{'' if alive else ' (it had ended)'}: nothing is left")
    finish(command(kind, *options.split(), "--out", out, *(["--resume"] if out.exists() else [])))
    same_bytes(out, whole)
    say(f"{kind}: after {times} kills, the same bytes")


def of_server(folder: Path, times: int, rng: random.Random, say: Say, method: str = "fed-bias") -> None:
    """A federation by files: every `server receive` is killed, and run again if its round is still open."""
    draw = torch.Generator().manual_seed(0)
    sites = {
        name: (3 * torch.randn(60, 3, generator=draw).double(), torch.randint(3, (60,), generator=draw))
        for name in ("north", "south")
    }
    start = ["server", "start", "--classes", "3", "--sites", "north,south", "--method", method]

    def federate(server: Path, receive: Callable[[list[str]], None]) -> None:
        finish(command(*start, server))
        while not (server / "scaler.safetensors").exists():
            newest = max(server.glob("request-*.safetensors"))
            states = {name: server.parent / f"{server.name}-{name}.state.safetensors" for name in sites}
            files = [server.parent / f"{server.name}-{name}-{read_request(newest)[1].round}.reply" for name in sites]
            for (name, samples), file in zip(sites.items(), files, strict=True):
                reply(newest, samples, name, states[name], file)
            receive(command("server", "receive", server, *files))

    whole, out = folder / "server-whole", folder / "server-killed"
    took: list[float] = []
    federate(whole, lambda words: took.append(finish(words)))
    kills = 0

    def receive(words: list[str]) -> None:
        nonlocal kills
        if kills < times:
            how, after = rng.choice(list(WAYS)), rng.uniform(0.2, 1.2 * max(took))
            alive = kill(words, out, how, after)
            kills += 1
            say(f"server {kills}: {how} after {after:.1f} s{'' if alive else ' (it had ended)'}: nothing is left")
        else:
            finish(words)
        finish(command("server", "status", out))  # writes the next request, if that was lost

    federate(out, receive)
    same_bytes(out, whole)
    say(f"server: after {kills} kills, the same bytes")


def main() -> None:
    given = dict(enumerate(sys.argv))
    folder, times, seed, only = Path(given[1]).absolute(), int(given.get(2, 20)), int(given.get(3, 0)), given.get(4)
    folder.mkdir(parents=True)
    rng = random.Random(seed)

    def say(words: str) -> None:
        print(words, flush=True)

    say(f"seed {seed}")
    shares = {"server": times // 4, "run": times // 4, "federate": times - 2 * (times // 4)}
    shares = {only: times} if only else shares
    for kind, share in shares.items():
        if kind == "server":
            of_server(folder, share, rng, say)
        else:
            of_command(kind, {"run": RUN, "federate": FEDERATE}[kind], folder, share, rng, say)


if __name__ == "__main__":
    main()
