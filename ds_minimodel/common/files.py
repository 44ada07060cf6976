"""Atomic writes, content hashes, JSON files of a known structure, and the manifests that bind
artifacts together.
"""

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
MAX_NAME_BYTES = 255  # of a file; a longer one no file system here takes
_FOREIGN = "a model of Hugging Face's is taken by `base:` of a recipe, or by `extend`"
_MAKE_AGAIN = "put it back from a copy, or delete the folder and run the step again"
# How a failed write looks in torch.save, whose error comes after the system's, and how the system's
# number is quoted: by itself, by safetensors, tokenizers, copies of folders.
_OF_TORCH = ("PytorchStreamWriter failed", "unexpected pos")
_QUOTED = re.compile(r"(?:\(os error |\[Errno )(\d+)")


@contextlib.contextmanager
def clear_write_errors(path: str | Path, temporary: str | Path | None = None) -> Iterator[None]:
    """Turn errors of writing that name no file, as of a full disk, into a UserError of `path`.

    temporary: file or folder that becomes `path`; messages name `path` in its place.
    """
    try:
        yield
    except UserError as error:
        if temporary is None or str(temporary) not in str(error):
            raise
        raise UserError(str(error).replace(str(temporary), str(path))) from error
    except Exception as error:
        is_of_torch = any(text in str(error) for text in _OF_TORCH)
        number = _QUOTED.search(str(error.__context__ if is_of_torch else error))
        if number is None or getattr(error, "filename", None) is not None:
            raise
        raise UserError(
            f"{path}: cannot write: {os.strerror(int(number[1]))}; nothing that was complete is "
            "changed; fix this and run again"
        ) from error


@contextlib.contextmanager
def lock(path: str | Path) -> Iterator[None]:
    """Hold the lock file `path`, which says who does; UserError where another process holds it, or
    it is a link.

    A block that ends with an error leaves neither a lock file that was not there before nor empty
    folders.
    """
    path = Path(path)
    with clear_write_errors(path):
        made = [folder for folder in path.parents if not folder.exists()]
        path.parent.mkdir(parents=True, exist_ok=True)
        is_new = not path.exists()
        file = open(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666), encoding="utf-8")  # noqa: SIM115
    with file:
        if not _locked(file):
            who, work = holder(path) or ("a process that is ending", "")
            at = f"{who}, at {work}" if work else who
            raise UserError(
                f"{path}: another run is at work here ({at}); wait for it, or use another folder"
            )
        if not path.exists() or not os.path.samestat(
            os.fstat(file.fileno()), path.stat()
        ):  # it unlinked the file
            raise UserError(f"{path}: another run was refused here at this moment; run again")
        try:
            note_holder(path)
            yield
        except Exception:
            if is_new:
                path.unlink(missing_ok=True)
                with contextlib.suppress(OSError):  # the first that is not empty ends it
                    for folder in made:
                        folder.rmdir()
            raise


def note_holder(path: Path, work: str = "") -> None:
    """Write into a lock file, which this process holds, that it does, and at which `work` it is."""
    with clear_write_errors(path):
        path.write_text(
            f"process {os.getpid()} on {os.uname().nodename}\n{work}\n", encoding="utf-8"
        )


def _locked(file: IO[str]) -> bool:
    """Lock an open file; False where another process holds it for longer than `holder` looks."""
    for _ in range(5):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        time.sleep(0.02)
    return False


def holder(path: str | Path) -> tuple[str, str] | None:
    """Who holds the lock file `path` ("process 12 on node-a") and at which work; None where nobody
    does.

    It takes a shared lock for some microseconds, for which `lock` waits.
    """
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                who, _, work = file.read(10_000).strip().partition("\n")
                return who or "a process that is starting", work
    except OSError:  # never begun, or on a disk without locks
        pass
    return None


def sync(path: str | Path) -> None:
    """Make what was written to a file, or the renames done in a folder, survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def atomic_write(path: str | Path, mode: str = "wb") -> Iterator[IO[Any]]:
    """Open a temporary file that becomes `path` when the block ends without an error.

    The data is fsynced before the rename, so `path` is either the old file or the whole new one.
    Raises UserError when the disk is full or not writable.
    """
    path = Path(path)
    temporary = path.with_name(f"{path.name}.tmp{os.getpid()}")
    with clear_write_errors(path, temporary):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.unlink(missing_ok=True)
        try:
            with open(
                temporary, mode.replace("w", "x"), encoding=None if "b" in mode else "utf-8"
            ) as file:
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
    """Parse a JSON file; UserError where it is missing or damaged."""
    if os.path.exists(path) and not os.path.isfile(path):  # a named pipe would be waited for
        raise UserError(f"{path}: a folder, a pipe or a device, where a JSON file is to be")
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
        value = json.loads(text)
        if "\\ud" in text.lower():  # of a surrogate pair, half of which is no text
            json.dumps(value, ensure_ascii=False).encode()
        return value
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path}: not a readable JSON file ({error})") from None


def _name_inside(name: str) -> str:
    path = PurePosixPath(name)
    is_outside = not name or path.is_absolute() or ".." in path.parts or str(path) != name
    if is_outside or any(len(part.encode()) > MAX_NAME_BYTES for part in path.parts):
        raise ValueError(f"{name[:80]!r} is no name below the folder")
    return name


Count = Annotated[int, Field(ge=0, le=2**53)]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
NameInside = Annotated[str, AfterValidator(_name_inside)]  # of a file or folder below another


class Stored(BaseModel):
    """Structure of a JSON file that the program keeps: exact types; keys that it does not name are
    left as they are.
    """

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)


M = TypeVar("M")


def read_model(path: str | Path, model: type[M], advice: str) -> M:
    """The JSON file `path` as a `model`, a Stored or another type that pydantic knows.

    UserError with file and key where it has another structure, and with `advice`, what to do then.
    """
    return as_model(read_json(path), model, path, advice)


def as_model(value: object, model: type[M], where: str | Path, advice: str) -> M:
    """`value`, read from `where`, as a `model`; UserError as of `read_model`."""
    try:
        return _adapter(cast(Hashable, model)).validate_python(value, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"] if part != "[key]")[:100]
        message = reason_of(first)
        raise UserError(f"{where}: {f'{key}: ' if key else ''}{message}; {advice}") from None


@functools.lru_cache
def _adapter(model: Hashable) -> TypeAdapter[Any]:
    return TypeAdapter(cast(Any, model))


def read_json_lines(path: str | Path) -> list[dict[str, Any]]:
    """Read a file of one JSON object a line; else as `read_model_lines`."""
    return read_model_lines(path, dict[str, Any], "delete that line")


def read_model_lines(path: str | Path, model: type[M], advice: str) -> list[M]:
    """Read a file of one JSON value a line, each a `model`; [] where there is no file.

    A last line that a kill has cut short is left out. UserError, with the line, for any other that
    is no `model`.
    """
    records: list[M] = []
    try:
        lines = Path(path).read_bytes().split(b"\n")
    except FileNotFoundError:
        return records
    for number, line in enumerate(lines, 1):
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            if number == len(lines):
                break
            raise UserError(f"{path}:{number}: not JSON; {advice}") from None
        records.append(as_model(value, model, f"{path}:{number}", advice))
    return records


def replace_folder(path: Path, write: Callable[[Path], None]) -> None:
    """Let `write` write a folder anew that then takes the place of `path`."""
    new = path.with_name(f"{path.name}.new")
    shutil.rmtree(new, ignore_errors=True)
    write(new)
    if path.is_symlink():
        path.unlink()
    elif path.exists():
        shutil.rmtree(path)
    new.rename(path)


def refuse_existing(path: str | Path) -> None:
    """Raise UserError where there is something at `path`: nothing is overwritten."""
    if os.path.lexists(path):
        raise UserError(f"{path}: exists; choose another name or delete it")


@contextlib.contextmanager
def atomic_folder(path: str | Path, is_new: bool = False) -> Iterator[Path]:
    """Yield a temporary folder that becomes `path` when the block ends without an error, and else
    is removed.

    `path` must not exist as a complete artifact; a left-over of a killed process is replaced.
    UserError where another process is making `path` and, with `is_new`, where it exists.
    """
    path = Path(path)
    temporary, held = (path.with_name(f"{path.name}.{suffix}") for suffix in ("tmp", "tmp.lock"))
    former = path.with_name(
        f".{path.name}.former"
    )  # hidden: nobody's folder of that name is removed
    with clear_write_errors(path, held), lock(held), clear_write_errors(path, temporary):
        try:
            if is_new:
                refuse_existing(path)
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir()
            yield temporary
            mode = (
                temporary.stat().st_mode & 0o666
            )  # by the umask, which safetensors does not look at
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
            held.unlink(missing_ok=True)


def paths_of(given: str | Path | Iterable[str | Path]) -> list[str]:
    """Paths that are given, or the one that is."""
    return [str(given)] if isinstance(given, str | Path) else [*map(str, given)]


def sha256_of_file(path: str | Path) -> str:
    """SHA-256 of a file's bytes, in hex."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@dataclass(frozen=True)
class Content:
    """Identity of a file's content; in JSON its SHA-256. stamp: size, times and inode, which a
    change or move alters.

    parts: (first byte, end) of each that counts; () is all.
    """

    path: str | Path
    stamp: str
    parts: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, path: str | Path, parts: tuple[tuple[int, int], ...] = ()) -> Self:
        """OSError where there is no such file."""
        facts, of_parts = os.stat(path), f" {sha256_of_json(parts)}" if parts else ""
        return cls(
            path,
            f"{facts.st_size} {facts.st_mtime_ns} {facts.st_ctime_ns} {facts.st_ino}{of_parts}",
            parts,
        )

    @functools.cache  # noqa: B019  (it is small)
    def sha256(self) -> str:
        """Of this content; read once in a process."""
        if not self.parts:
            return sha256_of_file(self.path)
        digest = hashlib.sha256()
        with open(self.path, "rb") as file:
            for start, end in self.parts:
                file.seek(start)
                while start < end and (data := file.read(min(end - start, 1 << 20))):
                    digest.update(data)
                    start += len(data)
        return digest.hexdigest()


def as_json(value: object, known: Mapping[str, str]) -> tuple[Any, dict[str, str]]:
    """(`value` as a JSON file gives it back, {stamp: SHA-256} of each Content in it). known: such
    hashes, by which a file that has not changed is not read again.
    """
    hashes = dict[str, str]()

    def hash_of(content: Content) -> str:
        hashes[content.stamp] = known.get(content.stamp) or content.sha256()
        return hashes[content.stamp]

    return json.loads(json.dumps(value, default=hash_of)), hashes


def sha256_of_json(value: object) -> str:
    """SHA-256 of a JSON value that does not depend on the order of its keys."""
    return hashlib.sha256(
        json.dumps(value, sort_keys=True, ensure_ascii=False).encode()
    ).hexdigest()


class FileFacts(Stored):
    """What a manifest says of a file."""

    bytes: Count
    sha256: Sha256


class Manifest(Stored):
    """An artifact's manifest.json: its files, and facts that differ by its kind.

    A subclass says what an artifact is called (`noun`), which `kinds` are one, and which files it
    must name: of each group in `required` one.
    """

    kind: str | None = None
    files: Annotated[dict[NameInside, FileFacts], Field(min_length=1)]

    noun: ClassVar[str] = "an artifact"
    kinds: ClassVar[tuple[str, ...]] = ()
    required: ClassVar[tuple[tuple[str, ...], ...]] = ()


A = TypeVar("A", bound=Manifest)


def copy_artifact(folder: str | Path, to: Path) -> None:
    """Copy the files that an artifact's manifest names, and no other: a link beside them may lead
    anywhere.
    """
    for name in (MANIFEST, *read_artifact(folder, Manifest).files):
        (to / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(Path(folder) / name, to / name)


def write_manifest(folder: str | Path, **facts: object) -> None:
    """Write manifest.json: `facts` plus size and SHA-256 of every other file below `folder`."""
    folder = Path(folder)
    files = {
        str(file.relative_to(folder)): {
            "bytes": file.stat().st_size,
            "sha256": sha256_of_file(file),
        }
        for file in sorted(folder.rglob("*"))
        if file.is_file() and file.name != MANIFEST
    }
    write_json(folder / MANIFEST, {**facts, "files": files})


def read_manifest(folder: str | Path, verify: bool = False) -> dict[str, Any]:
    """The manifest of an artifact of any kind, as JSON; else as `read_artifact`."""
    return read_artifact(folder, Manifest, verify).model_dump(exclude_unset=True)


def read_artifact(folder: str | Path, model: type[A], verify: bool = False) -> A:
    """The manifest of an artifact; UserError where it is not of this kind, or it or a file that it
    names is missing or damaged.

    Sizes are always compared, hashes only with `verify`, which reads every byte.
    """
    path = Path(folder) / MANIFEST
    if not Path(folder).is_dir():
        raise UserError(f"{folder}: no such folder; give the folder of {model.noun}")
    if not path.exists():
        inside = [part for part in ("model", "pack") if (Path(folder) / part / MANIFEST).is_file()]
        instead = (
            f"give {' or '.join(f'{folder}/{part}' for part in inside)}" if inside else _FOREIGN
        )
        raise UserError(f"{path}: no such file, so {folder} is not {model.noun}; {instead}")
    value = read_json(path)
    kind = value.get("kind") if isinstance(value, dict) else None
    if model.kinds and kind not in model.kinds:
        raise UserError(f"{folder}: is of kind {str(kind)[:40]}, not {model.noun}")
    manifest = as_model(value, model, path, _MAKE_AGAIN)
    for group in model.required:
        if not manifest.files.keys() & set(group):
            raise UserError(
                f"{path}: names no {' or '.join(group)}, so this is not {model.noun}; {_MAKE_AGAIN}"
            )
    for name, facts in manifest.files.items():
        file = Path(folder) / name
        if not file.is_file() or file.stat().st_size != facts.bytes:
            raise UserError(f"{file}: missing or of another size than {path} says; {_MAKE_AGAIN}")
    if verify:
        with (
            ThreadPoolExecutor() as threads
        ):  # which hash beside each other, so that the disk is the limit
            hashes = threads.map(sha256_of_file, (Path(folder) / name for name in manifest.files))
            for (name, facts), digest in zip(manifest.files.items(), hashes, strict=True):
                if digest != facts.sha256:
                    file = Path(folder) / name
                    raise UserError(
                        f"{file}: damaged (its SHA-256 is not the one in {path}); {_MAKE_AGAIN}"
                    )
    return manifest
