"""Atomic writes, locks, content hashes, typed JSON files, and the manifests of artifacts."""

import contextlib
import fcntl
import functools
import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Annotated, Any, ClassVar, Self, TypeVar, cast

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from ds_minimodel.common.errors import UserError, reason_of

MANIFEST = "manifest.json"
# Of a file's name, on the file systems that are met.
MAX_NAME_BYTES = 255
_FOREIGN = "a model of Hugging Face's is taken by `base:` of a recipe, or by `extend`"
_MAKE_AGAIN = "put it back from a copy, or delete the folder and run the step again"
# What torch.save says of a failed write. Its error is raised after the system's, whose errno is in
# the context.
_TORCH_FAILURES = ("PytorchStreamWriter failed", "unexpected pos")
# How errno is quoted in messages: by Python and shutil, and by the Rust of safetensors and
# tokenizers.
_ERRNO = re.compile(r"(?:\(os error |\[Errno )(\d+)")


@contextlib.contextmanager
def clear_write_errors(path: str | Path, temporary: str | Path | None = None) -> Iterator[None]:
    """Turn errors of writing that name no file, as of a full disk, into a UserError of `path`.

    Args:
        path: the file or folder that is written.
        temporary: what becomes `path` at the end; messages name `path` in its place.
    """
    try:
        yield
    except UserError as error:
        if temporary is None or str(temporary) not in str(error):
            raise
        raise UserError(str(error).replace(str(temporary), str(path))) from error
    except Exception as error:
        is_of_torch = any(text in str(error) for text in _TORCH_FAILURES)
        errno = _ERRNO.search(str(error.__context__ if is_of_torch else error))
        if errno is None or getattr(error, "filename", None) is not None:
            raise
        raise UserError(
            f"{path}: cannot write: {os.strerror(int(errno[1]))}; nothing that was complete is "
            "changed; fix this and run again"
        ) from error


@contextlib.contextmanager
def lock(path: str | Path) -> Iterator[None]:
    """Hold the lock file `path`, in which this process writes who it is.

    A block that ends with an error leaves neither a lock file that was not there before nor the
    folders that were made for it.

    Raises:
        UserError: another process holds the lock.
        OSError: `path` is a link.
    """
    path = Path(path)
    with clear_write_errors(path):
        made = [folder for folder in path.parents if not folder.exists()]
        path.parent.mkdir(parents=True, exist_ok=True)
        is_new = not path.exists()
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    with open(descriptor, encoding="utf-8") as file:
        if not _locked(file):
            who, work = holder(path) or ("a process that is ending", "")
            who_does_what = f"{who}, at {work}" if work else who
            raise UserError(
                f"{path}: another run is at work here ({who_does_what}); wait for it, or use "
                "another folder"
            )
        # The former holder unlinks the file where it was refused: then nobody else sees this lock.
        if not path.exists() or not os.path.samestat(os.fstat(file.fileno()), path.stat()):
            raise UserError(f"{path}: another run was refused here at this moment; run again")
        try:
            note_holder(path)
            yield
        except Exception:
            if is_new:
                path.unlink(missing_ok=True)
                # From the innermost outwards; the first that is not empty ends it.
                with contextlib.suppress(OSError):
                    for folder in made:
                        folder.rmdir()
            raise


def note_holder(path: Path, work: str = "") -> None:
    """Write into the lock file `path` that this process holds it, and at which `work` it is."""
    with clear_write_errors(path):
        path.write_text(
            f"process {os.getpid()} on {os.uname().nodename}\n{work}\n", encoding="utf-8"
        )


def _locked(file: IO[str]) -> bool:
    """Lock an open file; return False where another process holds it.

    `holder` locks a file too, for some microseconds; this tries for longer than that.
    """
    for _ in range(5):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        time.sleep(0.02)
    return False


def holder(path: str | Path) -> tuple[str, str] | None:
    """Return who holds a lock file, such as "process 12 on node-a", and at which work.

    It takes a shared lock for some microseconds, for which `lock` waits.

    Args:
        path: the lock file.

    Returns:
        (who, work), the latter perhaps empty; None where nobody holds it.
    """
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                who, _, work = file.read(10_000).strip().partition("\n")
                return who or "a process that is starting", work
    except OSError:
        pass  # there is no such file, or its disk has no locks
    return None


def sync(path: str | Path) -> None:
    """Make what was written to a file, or renamed in a folder, survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def atomic_write(path: str | Path, mode: str = "wb") -> Iterator[IO[Any]]:
    """Yield an open temporary file that becomes `path` when the block ends without an error.

    The data is fsynced before the rename, so `path` is either the old file or the whole new one.

    Args:
        path: the file; its folder is made.
        mode: "wb", or "w" for UTF-8 text.

    Raises:
        UserError: the disk is full or not writable.
    """
    path = Path(path)
    temporary = path.with_name(f"{path.name}.tmp{os.getpid()}")
    with clear_write_errors(path, temporary):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.unlink(missing_ok=True)
        encoding = None if "b" in mode else "utf-8"
        try:
            with open(temporary, mode.replace("w", "x"), encoding=encoding) as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
            sync(path.parent)
        finally:
            temporary.unlink(missing_ok=True)


def write_json(path: str | Path, value: object) -> None:
    """Write a JSON value atomically, with sorted keys."""
    with atomic_write(path, "w") as file:
        json.dump(value, file, indent=1, sort_keys=True, ensure_ascii=False)
        file.write("\n")


def read_json(path: str | Path) -> Any:
    """Return the value of a JSON file.

    Raises:
        UserError: the file is missing or damaged.
    """
    # To open a named pipe would wait for its writer.
    if os.path.exists(path) and not os.path.isfile(path):
        raise UserError(f"{path}: a folder, a pipe or a device, where a JSON file is to be")
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
        value = json.loads(text)
        # JSON can escape half of a surrogate pair, which is no text: encoding raises ValueError.
        if "\\ud" in text.lower():
            json.dumps(value, ensure_ascii=False).encode()
        return value
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path}: not a readable JSON file ({error})") from None


def _name_inside(name: str) -> str:
    """Return `name`, or raise ValueError where it may lead out of the folder that it is in."""
    path = PurePosixPath(name)
    is_outside = not name or path.is_absolute() or ".." in path.parts or str(path) != name
    if is_outside or any(len(part.encode()) > MAX_NAME_BYTES for part in path.parts):
        raise ValueError(f"{name[:80]!r} is no name below the folder")
    return name


Count = Annotated[int, Field(ge=0, le=2**53)]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
# Of a file or folder below another.
NameInside = Annotated[str, AfterValidator(_name_inside)]


class Stored(BaseModel):
    """Structure of a JSON file of ours, with exact types; keys that it does not name are kept."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)


M = TypeVar("M")


def read_model(path: str | Path, model: type[M], advice: str) -> M:
    """Return the value of the JSON file `path` as a `model`.

    Args:
        path: the file.
        model: a Stored, or another type that pydantic knows.
        advice: what to do where the file is another, for the message.

    Raises:
        UserError: the file is missing or damaged, or has another structure; with file and key.
    """
    return as_model(read_json(path), model, where=path, advice=advice)


def as_model(value: object, model: type[M], where: str | Path, advice: str) -> M:
    """Return `value`, which was read from `where`, as a `model`; see `read_model`."""
    try:
        return _adapter(cast(Hashable, model)).validate_python(value, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"] if part != "[key]")[:100]
        what = f"{key}: {reason_of(first)}" if key else reason_of(first)
        raise UserError(f"{where}: {what}; {advice}") from None


@functools.lru_cache
def _adapter(model: Hashable) -> TypeAdapter[Any]:
    return TypeAdapter(cast(Any, model))


def read_json_lines(path: str | Path) -> list[dict[str, Any]]:
    """Return the values of a file of one JSON object a line; see `read_model_lines`."""
    return read_model_lines(path, dict[str, Any], "delete that line")


def read_model_lines(path: str | Path, model: type[M], advice: str) -> list[M]:
    """Return the values of a file of one JSON value a line, each as a `model`.

    Returns:
        The values; without the last one where a kill has cut its line short, none where there is
        no file.

    Raises:
        UserError: another line is no `model`; with the line's number.
    """
    records: list[M] = []
    try:
        lines = Path(path).read_bytes().split(b"\n")
    except FileNotFoundError:
        return records
    for line_number, line in enumerate(lines, 1):
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            if line_number == len(lines):
                break
            raise UserError(f"{path}:{line_number}: not JSON; {advice}") from None
        where = f"{path}:{line_number}"
        records.append(as_model(value, model, where=where, advice=advice))
    return records


def replace_folder(path: Path, write: Callable[[Path], None]) -> None:
    """Call `write(folder)` with a new folder, which then replaces `path`."""
    new = path.with_name(f"{path.name}.new")
    shutil.rmtree(new, ignore_errors=True)
    write(new)
    if path.is_symlink():
        path.unlink()
    elif path.exists():
        shutil.rmtree(path)
    new.rename(path)


def refuse_existing(path: str | Path) -> None:
    """Raise UserError where there is something at `path`, which is never overwritten."""
    if os.path.lexists(path):
        raise UserError(f"{path}: exists; choose another name or delete it")


@contextlib.contextmanager
def atomic_folder(path: str | Path, *, is_new: bool = False) -> Iterator[Path]:
    """Yield a temporary folder that becomes `path` when the block ends without an error.

    After an error it is removed, as is what a killed process has left of it.

    Args:
        path: the folder; one that is there is replaced.
        is_new: `path` must not exist.

    Raises:
        UserError: another process is making `path`; it exists, though it must not; the disk is
            full or not writable.
    """
    path = Path(path)
    temporary = path.with_name(f"{path.name}.tmp")
    lock_file = path.with_name(f"{path.name}.tmp.lock")
    # A hidden name, so that no folder of a user's is removed.
    former = path.with_name(f".{path.name}.former")
    with (
        clear_write_errors(path, lock_file),
        lock(lock_file),
        clear_write_errors(path, temporary),
    ):
        try:
            if is_new:
                refuse_existing(path)
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir()
            yield temporary
            # safetensors does not look at the umask, by which the folder was made.
            mode = temporary.stat().st_mode & 0o666
            for file in temporary.rglob("*"):
                if file.is_file() and not file.is_symlink():
                    file.chmod(mode)
                sync(file)
            sync(temporary)
            shutil.rmtree(former, ignore_errors=True)
            if path.exists():
                path.rename(former)
            temporary.rename(path)
            shutil.rmtree(former, ignore_errors=True)
            sync(path.parent)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
            lock_file.unlink(missing_ok=True)


def paths_of(paths: str | Path | Iterable[str | Path]) -> list[str]:
    """Return one path or several as a list of strings."""
    return [str(paths)] if isinstance(paths, str | Path) else [str(path) for path in paths]


def sha256_of_file(path: str | Path) -> str:
    """Return the SHA-256 of a file's bytes, in hex."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@dataclass(frozen=True)
class Content:
    """Identity of a file's content, which stands in JSON as its SHA-256.

    Args:
        path: the file.
        stamp: its size, times and inode, one of which a change alters.
        parts: (first byte, end) of each part that counts; (): the whole file does.
    """

    path: str | Path
    stamp: str
    parts: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, path: str | Path, parts: tuple[tuple[int, int], ...] = ()) -> Self:
        """Return the content of a file, which is not read yet.

        Raises:
            OSError: there is no such file.
        """
        facts = os.stat(path)
        stamp = f"{facts.st_size} {facts.st_mtime_ns} {facts.st_ctime_ns} {facts.st_ino}"
        if parts:
            stamp += f" {sha256_of_json(parts)}"
        return cls(path, stamp, parts)

    @functools.cache  # noqa: B019  (it is small)
    def sha256(self) -> str:
        """Return the SHA-256 of the parts that count; they are read once in a process."""
        if not self.parts:
            return sha256_of_file(self.path)
        digest = hashlib.sha256()
        with open(self.path, "rb") as file:
            for start, end in self.parts:
                file.seek(start)
                while start < end:
                    data = file.read(min(end - start, 1 << 20))
                    # It has been cut off meanwhile.
                    if not data:
                        break
                    digest.update(data)
                    start += len(data)
        return digest.hexdigest()


def as_json(value: object, known: Mapping[str, str]) -> tuple[Any, dict[str, str]]:
    """Return `value` as a JSON file gives it back, with hashes in place of each Content.

    Args:
        value: what JSON can hold, and Content.
        known: {stamp: SHA-256} of earlier; a file of a known stamp is not read again.

    Returns:
        The value, and {stamp: SHA-256} of each Content in it.
    """
    hashes: dict[str, str] = {}

    def hash_of(content: Content) -> str:
        hashes[content.stamp] = known.get(content.stamp) or content.sha256()
        return hashes[content.stamp]

    return json.loads(json.dumps(value, default=hash_of)), hashes


def sha256_of_json(value: object) -> str:
    """Return the SHA-256 of a JSON value, whatever the order of its keys."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


class FileFacts(Stored):
    """A file's entry in a manifest."""

    bytes: Count
    sha256: Sha256


class Manifest(Stored):
    """An artifact's manifest.json: its files, and facts that differ by its kind."""

    kind: str | None = None
    files: Annotated[dict[NameInside, FileFacts], Field(min_length=1)]

    # What messages call such an artifact.
    noun: ClassVar[str] = "an artifact"
    # The kinds that are one; (): any.
    kinds: ClassVar[tuple[str, ...]] = ()
    # Groups of files, of each of which it must name one.
    required: ClassVar[tuple[tuple[str, ...], ...]] = ()


A = TypeVar("A", bound=Manifest)


def copy_artifact(folder: str | Path, to: Path) -> None:
    """Copy the files that an artifact's manifest names into the folder `to`.

    Nothing else is copied: a link beside those files may lead anywhere.
    """
    for name in (MANIFEST, *read_artifact(folder, Manifest).files):
        (to / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(Path(folder) / name, to / name)


def write_manifest(folder: str | Path, **facts: object) -> None:
    """Write manifest.json: `facts`, and size and SHA-256 of every other file below `folder`."""
    folder = Path(folder)
    files = {}
    for file in sorted(folder.rglob("*")):
        if file.is_file() and file.name != MANIFEST:
            name = str(file.relative_to(folder))
            files[name] = {"bytes": file.stat().st_size, "sha256": sha256_of_file(file)}
    write_json(folder / MANIFEST, {**facts, "files": files})


def read_manifest(folder: str | Path, *, verify: bool = False) -> dict[str, Any]:
    """Return the manifest of an artifact of any kind, as JSON; see `read_artifact`."""
    return read_artifact(folder, Manifest, verify=verify).model_dump(exclude_unset=True)


def read_artifact(folder: str | Path, model: type[A], *, verify: bool = False) -> A:
    """Return the manifest of an artifact, whose files are there in the sizes that it says.

    Args:
        folder: the artifact's.
        model: the kind of manifest.
        verify: compare hashes too, for which every byte is read.

    Raises:
        UserError: the artifact is of another kind; its manifest or a file is missing or damaged.
    """
    folder = Path(folder)
    path = folder / MANIFEST
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder; give the folder of {model.noun}")
    if not path.exists():
        inside = [
            folder / part for part in ("model", "pack") if (folder / part / MANIFEST).exists()
        ]
        instead = f"give {' or '.join(map(str, inside))}" if inside else _FOREIGN
        raise UserError(f"{path}: no such file, so {folder} is not {model.noun}; {instead}")
    value = read_json(path)
    kind = value.get("kind") if isinstance(value, dict) else None
    if model.kinds and kind not in model.kinds:
        raise UserError(f"{folder}: is of kind {str(kind)[:40]}, not {model.noun}")
    manifest = as_model(value, model, where=path, advice=_MAKE_AGAIN)
    for group in model.required:
        if not manifest.files.keys() & set(group):
            raise UserError(
                f"{path}: names no {' or '.join(group)}, so this is not {model.noun}; {_MAKE_AGAIN}"
            )
    for name, facts in manifest.files.items():
        file = folder / name
        if not file.is_file() or file.stat().st_size != facts.bytes:
            raise UserError(f"{file}: missing or of another size than {path} says; {_MAKE_AGAIN}")
    if verify:
        _verify_hashes(folder, manifest)
    return manifest


def _verify_hashes(folder: Path, manifest: Manifest) -> None:
    """Raise UserError where the SHA-256 of a file is not the one in the manifest."""
    files = [folder / name for name in manifest.files]
    # Threads hash files beside each other, so that the disk is the limit.
    with ThreadPoolExecutor() as threads:
        hashes = threads.map(sha256_of_file, files)
        for file, facts, sha256 in zip(files, manifest.files.values(), hashes, strict=True):
            if sha256 != facts.sha256:
                raise UserError(
                    f"{file}: damaged (its SHA-256 is not the one in {folder / MANIFEST}); "
                    f"{_MAKE_AGAIN}"
                )
