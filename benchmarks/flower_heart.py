"""`fedcal federate` on the four heart hospitals: plain, secure, secure and private; whole, and with a hospital killed.

    python benchmarks/flower_heart.py FOLDER [--only secure]

Each run is the command that a user types, with Flower unmodified, TLS and node keys, on loopback. In the second run of each
form, one SuperNode gets SIGKILL after calibration round 4. Records are in FLOWER.md.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from fedcal.base.store import read_json
from fedcal.federate.launch import progress

FORMS = {
    "plain": [],
    "secure": ["--secure"],
    "secure, ε = 4": ["--secure", "--epsilon", "4", "--delta", "1e-5"],
}
COMMAND = ["federate", "--data", "heart", "--rounds", "3", "--method", "fedcal-plus"]
VICTIM, AFTER = "va", 4  # whose SuperNode is killed, and after which calibration round
LIMIT = 900.0


def supernode(folder: Path, name: str) -> int:
    """The process of that hospital's SuperNode: the one of this federation with its name in the command line."""
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes()
            if b"flower-supernode" in words and f'name="{name}"'.encode() in words and bytes(folder) in words:
                return int(entry.name)
        except OSError:
            continue
    raise SystemExit(f"there is no SuperNode of {name}")


def kill_after_round(folder: Path, number: int, running: subprocess.Popen[bytes]) -> None:
    """Wait until that calibration round is done, then kill the victim's SuperNode and its children."""
    while running.poll() is None:
        phase, done = progress(folder)
        if phase == "calibration" and done >= number:
            os.killpg(os.getpgid(supernode(folder, VICTIM)), signal.SIGKILL)
            return
        time.sleep(0.2)


def run(form: str, folder: Path, killed: bool) -> str:
    """One federation; returns its row of the table."""
    shutil.rmtree(folder, ignore_errors=True)
    fedcal = Path(sys.executable).with_name("fedcal")
    began, load = time.perf_counter(), os.getloadavg()[0]
    with subprocess.Popen([fedcal, *COMMAND, *FORMS[form], "--out", folder], stdout=subprocess.DEVNULL) as running:
        watch = threading.Thread(target=kill_after_round, args=(folder, AFTER, running))
        if killed:
            watch.start()
        status = running.wait(LIMIT)
    seconds = time.perf_counter() - began
    if killed:
        watch.join()
    if status:
        return f"| {form} | {killed} | {seconds:.0f} | failed with status {status} | | | |"
    found = read_json(folder / "federation.json")
    fallback = (found["privacy"] or {}).get("fallback")  # noise is then all that the metrics show
    ece = (
        "falls back" if fallback else " → ".join(f"{100 * found['metrics'][m]['ece']:.1f}" for m in ("uncal", "global"))
    )
    return (
        f"| {form} | {f'{VICTIM} after round {AFTER}' if killed else '–'} | {seconds:.0f} | {load:.1f}"
        f" | 3 + {found['calibration_rounds']} | {len(found['measured_by'])} of 4 | {ece} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", choices=FORMS)
    args = parser.parse_args()
    print(
        "| form | killed | s | load before | rounds | to the end | global ECE, % |\n|---|---|---:|---:|---:|---:|---:|"
    )
    for form in [args.only] if args.only else FORMS:
        for killed in (False, True):
            name = f"{form.replace(', ε = ', '-')}{'-killed' if killed else ''}"
            print(run(form, (args.folder / name).resolve(), killed), flush=True)


if __name__ == "__main__":
    main()
