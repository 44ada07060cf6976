"""Atomic writes, content hashes and the manifests that bind artifacts together."""

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from ds_minimodel.common.errors import UserError

MANIFEST = "manifest.json"
_DAY = 86400  # seconds; no file takes so long to be written
_CANNOT_WRITE = {
    errno.ENOSPC: "no space left",
    errno.EDQUOT: "disk quota exceeded",
    errno.EFBIG: "file too large for this disk or user",
    errno.EIO: "the disk failed",
    errno.EROFS: "read-only file system",
    errno.EACCES: "permission denied",
    errno.EPERM: "not permitted",
    errno.ENOTDIR: "a file is in the place of a folder",
    errno.EEXIST: "a file is in the place of a folder",
    errno.ENAMETOOLONG: "the name is too long",
}
# How torch.save and safetensors, which raise errors of their own, say that a write failed.
_WRITE_FAILED = ("No space left on device", "PytorchStreamWriter failed", "unexpected pos")


@contextlib.contextmanager
def clear_write_errors(path: str | Path) -> Iterator[None]:
    """Turn a full, read-only or forbidden disk under `path`, or a file in its way, into a UserError."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        reason = _CANNOT_WRITE.get(getattr(error, "errno", None) or 0)
        if reason is None and any(text in str(error) for text in _WRITE_FAILED):
            reason = _CANNOT_WRITE[errno.ENOSPC]
        if isinstance(error, FileNotFoundError) and Path(error.filename or "-") in (Path(path), *Path(path).parents):
            reason = "no folder can be made here"  # as in /proc; what else is missing was to be read
        if reason is None:
            raise
        raise UserError(
            f"{path}: cannot write: {reason}; nothing that was complete is changed; mend this and run again"
        ) from error


@contextlib.contextmanager
def lock(path: str | Path) -> Iterator[None]:
    """Hold the lock file `path` for this process; UserError where another process holds it.

    A block that ends with an error leaves neither a lock file that was not there before nor empty folders.
    """
    path = Path(path)
    with clear_write_errors(path):
        made = [folder for folder in path.parents if not folder.exists()]
        path.parent.mkdir(parents=True, exist_ok=True)
        is_new = not path.exists()
        file = open(path, "a+", encoding="utf-8")  # noqa: SIM115  (held for the whole block below)
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise UserError(
                f"{path}: another run is at work here ({file.read().strip()}); wait for it, or use another workdir"
            ) from None
        with clear_write_errors(path):
            if not path.exists() or not os.path.samestat(os.fstat(file.fileno()), path.stat()):
                raise UserError(
                    f"{path}: another run was refused here at this moment; run again"
                )  # it unlinked the file
            file.truncate(0)  # and unbuffered, so that closing a file on a full disk has nothing left to fail at
            os.write(file.fileno(), f"process {os.getpid()} on {os.uname().nodename}\n".encode())
        try:
            yield
        except Exception:
            if is_new:
                path.unlink(missing_ok=True)
                with contextlib.suppress(OSError):  # the first that is not empty ends it
                    for folder in made:
                        folder.rmdir()
            raise


def sync_folder(folder: str | Path) -> None:
    """Make the renames done in `folder` survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_file(path: str | Path) -> None:
    """Make what was written to a file survive a power cut."""
    with open(path, "rb+") as file:
        os.fsync(file.fileno())


@contextlib.contextmanager
def atomic_write(path: str | Path, mode: str = "wb") -> Iterator[IO[Any]]:
    """Open a temporary file that becomes `path` when the block ends without an error.

    The data is fsynced before the rename, so `path` is either the old file or the whole new one.
    Raises UserError when the disk is full or not writable.
    """
    path = Path(path)
    temporary = path.with_name(f"{path.name}.tmp{os.getpid()}")
    with clear_write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(temporary, mode, encoding=None if "b" in mode else "utf-8") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
            sync_folder(path.parent)
        finally:
            temporary.unlink(missing_ok=True)


def sweep(paths: Iterable[Path], patience: float = 0) -> None:
    """Remove those of the files `paths` that a killed process was writing by `atomic_write`.

    Told by its number, which no process here has any more. patience: seconds for which a file that a process on
    another host may be writing must not have changed.
    """
    for path in paths:
        writer = re.search(r"\.tmp(\d{1,9})$", path.name)
        with contextlib.suppress(OSError):
            idle = time.time() - path.lstat().st_mtime
            if writer and path.is_file() and (idle > _DAY or (idle >= patience and not _is_alive(int(writer[1])))):
                path.unlink()


def _is_alive(process: int) -> bool:
    """Whether another process with this number runs here."""
    return process != os.getpid() and Path(f"/proc/{process}").exists()


def write_json(path: str | Path, value: object) -> None:
    """Write a JSON value atomically, with sorted keys."""
    with atomic_write(path, "w") as file:
        json.dump(value, file, indent=1, sort_keys=True, ensure_ascii=False)
        file.write("\n")


def read_json(path: str | Path) -> Any:
    """Parse one of the project's own JSON files; UserError where it is missing or damaged."""
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: not a readable JSON file ({error})") from None


def read_json_lines(path: str | Path) -> list[Any]:
    """Read a file of one JSON value a line, up to a line cut short by a kill; [] where there is no file."""
    records = []
    with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
        for line in file:
            try:
                records.append(json.loads(line))
            except ValueError:
                break
    return records


@contextlib.contextmanager
def atomic_folder(path: str | Path) -> Iterator[Path]:
    """Yield a temporary folder that becomes `path` when the block ends without an error, and else is removed.

    `path` must not exist as a complete artifact; a left-over of a killed process is replaced.
    """
    path = Path(path)
    temporary = path.with_name(f"{path.name}.tmp")
    with clear_write_errors(path):
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        try:
            yield temporary
            for file in temporary.rglob("*"):
                if file.is_file():
                    sync_file(file)
                else:
                    sync_folder(file)
            sync_folder(temporary)
            former = path.with_name(f"{path.name}.former")
            shutil.rmtree(former, ignore_errors=True)
            if path.exists():
                path.rename(former)
            temporary.rename(path)
            shutil.rmtree(former, ignore_errors=True)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        sync_folder(path.parent)


def sha256_of_file(path: str | Path) -> str:
    """SHA-256 of a file's bytes, in hex."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_of_json(value: object) -> str:
    """SHA-256 of a JSON value that does not depend on the order of its keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


def write_manifest(folder: str | Path, **facts: object) -> None:
    """Write manifest.json: `facts` plus size and SHA-256 of every other file below `folder`."""
    folder = Path(folder)
    files = {
        str(file.relative_to(folder)): {"bytes": file.stat().st_size, "sha256": sha256_of_file(file)}
        for file in sorted(folder.rglob("*"))
        if file.is_file() and file.name != MANIFEST
    }
    write_json(folder / MANIFEST, {**facts, "files": files})


def read_manifest(folder: str | Path, verify: bool = False) -> dict[str, Any]:
    """Read an artifact's manifest; UserError where it or a file that it names is missing or damaged.

    Sizes are always compared, hashes only with `verify` (it reads every byte).
    """
    folder = Path(folder)
    manifest = read_json(folder / MANIFEST)
    for name, facts in manifest["files"].items():
        file = folder / name
        if not file.is_file() or file.stat().st_size != facts["bytes"]:
            raise UserError(
                f"{file}: missing or of another size than {folder / MANIFEST} says; "
                "delete the folder and run the step again"
            )
        if verify and sha256_of_file(file) != facts["sha256"]:
            raise UserError(
                f"{file}: damaged (its SHA-256 is not the one in {folder / MANIFEST}); "
                "delete the folder and run the step again"
            )
    return manifest
