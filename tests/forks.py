"""Commands and ranks as forks of one process that has loaded what takes seconds to load."""

import atexit
import gc
import importlib
import multiprocessing
import os
import shlex
import signal
import socket
import sys
import tempfile
import traceback
from pathlib import Path

from ds_minimodel.launch.hosts import CPU

COMMAND = "ds_minimodel.cli.main:main"
LOADED = "deepspeed.runtime.zero.muon.original_muon torch.utils.tensorboard".split()
LOADED += (
    "deepspeed.module_inject.auto_ep_layer deepspeed.ops.op_builder.all_ops ruamel.yaml".split()
)
LOADED += ["matplotlib.backends.backend_agg", "transformers.models.llama.modeling_llama"]
OWN = (
    "cli.main training.loop report.page pipeline.run pipeline.steps.evaluate "
    "pipeline.steps.prepare pipeline.steps.report pipeline.plan extend.run"
)
LOADED += [f"ds_minimodel.{name}" for name in OWN.split()]
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(LOADED)


def free_port():
    """A port of this host that nobody listens at now."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]


class Fork:
    """A process that calls a function, "module:name", as if it were a program, with the methods of
    Popen.
    """

    def __init__(self, function, *arguments, cwd=None, **environment):
        self._said = tempfile.TemporaryDirectory()
        environment = {**os.environ, **CPU, "OMP_NUM_THREADS": "1", **environment}
        given = (function, arguments, self._said.name, str(cwd or os.getcwd()), environment)
        self._process = CONTEXT.Process(target=_work, args=given, daemon=True)
        self._process.start()
        self.pid = self._process.pid

    @property
    def returncode(self):
        return self._process.exitcode

    def poll(self):
        return self._process.exitcode

    def wait(self, timeout=280):
        self._process.join(timeout)
        assert self.returncode is not None, f"no end within {timeout} s"
        return self.returncode

    def communicate(self, timeout=280):
        """(standard output, standard error) of all its life."""
        self.wait(timeout)
        with self._said as folder:
            return tuple((Path(folder) / name).read_text() for name in ("out", "err"))

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)


def _work(function, arguments, said, cwd, environment):
    gc.freeze()  # DeepSpeed collects whenever an engine is built; what is loaded stays
    multiprocessing.current_process().daemon = (
        False  # for its parent it is one; it may have workers all the same
    )
    for descriptor, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(f"{said}/{name}", os.O_WRONLY | os.O_CREAT | os.O_APPEND), descriptor)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    if "HF_ENDPOINT" in environment:  # which has been read before
        importlib.reload(importlib.import_module("huggingface_hub.constants"))
    module, _, name = function.partition(":")
    code = 0
    try:
        getattr(importlib.import_module(module), name)(*arguments)
    except SystemExit as end:
        code = end.code or 0
    except BaseException:
        traceback.print_exc()
        code = 1
    atexit._run_exitfuncs()  # multiprocessing ends without them
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def words(command, *more):
    """Arguments of a command line: the first is split as a shell does, others stand as they are."""
    return [*shlex.split(command), *map(str, more)]


def start(*command, **options):
    """`ds-minimodel COMMAND` in the background."""
    return Fork(COMMAND, words(*command), **options)


def run(*command, **options):
    """The same to its end: (exit code, standard output, standard error)."""
    process = start(*command, **options)
    out, err = process.communicate()
    return process.returncode, out, err


def done(*command, **options):
    """The same where it must succeed: its standard error."""
    code, _, err = run(*command, **options)
    assert code == 0, err
    return err


def run_ranks(number, function, *arguments, timeout=280):
    """Call a function on that many ranks, without a launcher, to their end: (exit codes, standard
    errors).
    """
    ranks = start_ranks(number, function, *arguments)
    errors = [rank.communicate(timeout)[1] for rank in ranks]
    return [rank.returncode for rank in ranks], errors


def start_ranks(number, function, *arguments):
    size = str(number)
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    meeting |= {"WORLD_SIZE": size, "LOCAL_SIZE": size}
    return [
        Fork(function, *arguments, **meeting, RANK=rank, LOCAL_RANK=rank)
        for rank in map(str, range(number))
    ]


def kill_after(name, *command):
    """`ds-minimodel COMMAND`, killed once it has given a file or folder its `name`."""
    process = Fork(f"{__name__}:killed_after", name, words(*command))
    _, err = process.communicate()
    assert process.returncode == -signal.SIGKILL, (name, err)


def killed_after(name, arguments):
    """What a Fork calls for kill_after."""

    def then_end(rename):
        def rename_and_end(old, new):
            rename(old, new)
            if os.path.basename(new) == name:
                os.kill(os.getpid(), signal.SIGKILL)

        return rename_and_end

    os.rename = then_end(os.rename)
    os.replace = then_end(os.replace)
    from ds_minimodel.cli.main import main

    main(arguments)
