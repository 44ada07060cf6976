"""Start of ranks with the deepspeed launcher, and the environment that training processes need."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from ds_minimodel.errors import UserError

# What a process reads at its start. glibc gives large blocks back to the kernel and faults them in again at every
# step unless told otherwise: a fifth to a half of the time of a training step on a CPU. OpenMP's threads spin
# while they wait unless told otherwise, which beside other work is five times slower.
CPU = {"MALLOC_MMAP_THRESHOLD_": str(8 << 30), "MALLOC_TRIM_THRESHOLD_": str(16 << 30),
       "MALLOC_TOP_PAD_": str(64 << 20), "OMP_WAIT_POLICY": "PASSIVE", "DS_ACCELERATOR": "cpu"}


def launched():
    """Whether a launcher started this process as one of several ranks."""
    return any(name in os.environ for name in ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK"))


def has_gpu():
    """Whether this machine has an NVIDIA GPU, told without loading torch."""
    return Path("/dev/nvidiactl").exists() or Path("/proc/driver/nvidia/version").exists()


def restart_with_cpu_settings():
    """Where there is no GPU, replace this process by one with the settings of CPU, unless it has them."""
    if not has_gpu() and not CPU.keys() <= os.environ.keys():
        os.execve(sys.executable, [sys.executable, "-m", "ds_minimodel", *sys.argv[1:]], {**CPU, **os.environ})


def launch(arguments, ranks, hostfile=None):
    """Run `python -m ds_minimodel ARGUMENTS` on ranks under the deepspeed launcher; return the exit code.

    ranks: number of ranks a host (all slots of the hostfile where None). SIGINT and SIGTERM go on to the
    ranks, which save and end; this process waits for them and exits.
    """
    command = [sys.executable, "-m", "deepspeed.launcher.runner", "--master_port", str(_free_port())]
    if hostfile:
        if not Path(hostfile).is_file():
            raise UserError(f"--hostfile {hostfile}: no such file; a line of it reads `HOST slots=N`")
        command += ["--hostfile", hostfile]
    if ranks:
        command += ["--num_gpus", str(ranks)]
    environment = dict(os.environ)
    if not has_gpu():
        environment = CPU | environment
        environment.setdefault("OMP_NUM_THREADS", str(max(1, os.cpu_count() // (ranks or 1))))
    # A session of its own: the launcher would else die of Ctrl-C before its ranks have saved.
    process = subprocess.Popen([*command, "--module", "ds_minimodel", *arguments], env=environment,
                               start_new_session=True)
    passed_on = []

    def pass_on(number, _frame):
        passed_on.append(number)
        # SIGTERM first, always: of SIGINT DeepSpeed's launcher dies with a traceback. To the ranks, SIGINT
        # after SIGTERM means to end at once.
        os.killpg(process.pid, number if len(passed_on) > 1 else signal.SIGTERM)

    old = {number: signal.signal(number, pass_on) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        code = process.wait()
        while passed_on and _alive(process.pid):
            time.sleep(0.2)
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
    if passed_on:
        sys.exit(0 if passed_on[0] == signal.SIGTERM else 1)
    return code


def _alive(group):
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def _free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
