"""The peak of a command's memory: what all of its processes together hold that is no file's.

    python -m benchmarks.peak ds-minimodel extend MODEL TEXT --language de --tokens 11k

Sampled is the sum over the command and its children of RssAnon and RssShmem of /proc/PID/status;
what a process takes that has only imported torch and DeepSpeed is measured once and taken off.
"""

import argparse
import subprocess
import sys
import time

import psutil

_KINDS = "RssAnon:", "RssShmem:"


def held(pid: int) -> int:
    """Bytes of a process and its children; 0 where it has ended."""
    total = 0
    try:
        processes = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0
    for process in processes:
        try:
            with open(f"/proc/{process.pid}/status", encoding="utf-8") as file:
                total += 1024 * sum(
                    int(line.split()[1]) for line in file if line.startswith(_KINDS)
                )
        except OSError:  # it has ended
            continue
    return total


def peak(command: list[str], every: float = 0.05) -> tuple[int, float, int]:
    """(bytes, seconds, exit code) of a command."""
    start = time.monotonic()
    most = 0
    process = subprocess.Popen(command)
    while process.poll() is None:
        most = max(most, held(process.pid))
        time.sleep(every)
    return most, time.monotonic() - start, process.returncode


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", nargs=argparse.REMAINDER)
    command = parser.parse_args().command
    empty, _, _ = peak([sys.executable, "-c", "import torch, deepspeed, time; time.sleep(0.5)"])
    most, seconds, code = peak(command)
    print(
        f"peak {(most - empty) / 1e9:.2f} GB over the {empty / 1e9:.2f} of an empty process, "
        f"{seconds:.0f} s"
    )
    sys.exit(code)


if __name__ == "__main__":
    main()
