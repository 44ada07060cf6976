"""Language packs on a Hub: `pack push` and `pack pull`, by huggingface_hub, with any endpoint of its protocol.

A pack lies in a repository of its own: its files, named by its manifest, and a model card. What arrives is compared
with the manifest before anything is written under its name.
"""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ds_minimodel.common.errors import UserError
from ds_minimodel.common.files import MANIFEST, atomic_folder, read_artifact, read_model
from ds_minimodel.common.hub import hub_api
from ds_minimodel.hf.card import CARD, model_card
from ds_minimodel.models.artifacts import PackManifest, identity
from ds_minimodel.serve.packs import open_pack


def push(folder: str | Path, repository: str, endpoint: str | None = None, private: bool = False) -> str:
    """Upload a pack with a model card, in one commit to the main branch; returns the pack's identity.

    endpoint: default what HF_ENDPOINT names, or huggingface.co. private: of a repository that is made for it. UserError
    where the pack is damaged, or the Hub cannot be reached or does not take it.
    """
    folder = Path(folder)
    open_pack(folder)
    names = [MANIFEST, *read_artifact(folder, PackManifest).files]
    with _hub(endpoint, repository) as (hub, api), contextlib.ExitStack() as undo:
        contents = {CARD: model_card(folder).encode(), **{name: str(folder / name) for name in names}}
        files = [hub.CommitOperationAdd(name, content) for name, content in contents.items()]
        if not api.repo_exists(repository):
            api.create_repo(repository, private=private)  # fails where it is there by now: what is undone is ours
            undo.callback(_delete, api, repository)
        api.create_commit(repository, files, commit_message=f"Language pack {identity(folder)[:16]}")
        undo.pop_all()
    return identity(folder)


def _delete(api: Any, repository: str) -> None:
    with contextlib.suppress(Exception):  # what went wrong before is what is said
        api.delete_repo(repository)


def pull(
    repository: str,
    out: str | Path,
    endpoint: str | None = None,
    revision: str | None = None,
    expected: str | None = None,
) -> str:
    """Download a pack to the new folder `out`, all files compared with its manifest; returns the pack's identity.

    endpoint: as in `push`. revision: a branch, tag or commit; default main. expected: the identity that it must have,
    or how that begins. UserError where `out` exists, the Hub cannot be reached or has no such pack, or a file is not as
    the manifest says; then nothing is written.
    """
    out = Path(out)
    if out.exists():
        raise UserError(f"{out}: exists; give another folder")
    if expected is not None and not re.fullmatch("[0-9a-f]{8,64}", expected):
        raise UserError(f"--identity {expected:.80}: not the 8 to 64 hexadecimal digits that `pack push` prints")
    with atomic_folder(out) as folder:
        with _hub(endpoint, repository, folder) as (hub, api):
            commit, own = api.model_info(repository, revision=revision).sha, folder / ".hub"

            def fetch(name: str) -> Path:
                keep = {"cache_dir": own / "cache", "local_dir": own / "files"}  # nothing of it outside the folder
                try:
                    return Path(api.hf_hub_download(repository, name, revision=commit, **keep)).rename(folder / name)
                except hub.errors.RemoteEntryNotFoundError:
                    raise UserError(f"no {name}") from None

            for name in read_model(fetch(MANIFEST), PackManifest, "push it again").files:
                # The library makes folders for a name; an ETag with ".." in it would lead out of where files are kept.
                if "/" in name or name.startswith("."):
                    raise UserError(f"{MANIFEST} names {name!r:.80}, and a pack has no folders, nor hidden files")
                fetch(name)
            shutil.rmtree(own)
            open_pack(folder)
        found = identity(folder)
        if expected is not None and not found.startswith(expected):
            raise UserError(f"{repository}: the pack there is {found[:16]}, not {expected[:16]}; nothing is written")
    return found


@contextlib.contextmanager
def _hub(endpoint: str | None, repository: str, folder: Path | None = None) -> Iterator[tuple[Any, Any]]:
    """As hub_api. folder: of downloads; a UserError in the block is of what lies in the repository, and says so."""
    with hub_api(repository, endpoint) as (hub, api):
        try:
            yield hub, api
        except UserError as error:
            if folder is None:
                raise
            # After "; " comes advice for a folder of one's own.
            reason = str(error).partition("; ")[0].removeprefix(f"{folder}: ").replace(f"{folder}/", "")
            raise UserError(
                f"{repository} on {api.endpoint}: not a whole pack as `pack push` leaves it ({reason}); nothing is "
                "written; ask its owner to push it again, or give another --revision"
            ) from None
