"""Faults of disks, and what is good after them, told without the code under test."""

import hashlib
import json
import os


def truncate(file, rng):
    os.truncate(file, rng.randrange(file.stat().st_size))


def flip_a_bit(file, rng):
    with open(file, "r+b") as opened:
        opened.seek(rng.randrange(file.stat().st_size))
        byte = opened.read(1)[0]
        opened.seek(-1, os.SEEK_CUR)
        opened.write(bytes([byte ^ 1 << rng.randrange(8)]))


def delete(file, _rng):
    file.unlink()


DAMAGES = {"truncated file": truncate, "flipped bit": flip_a_bit, "deleted file": delete}


def complete(checkpoints):
    """Folders of the complete checkpoints, the newest first."""
    return sorted((path for path in checkpoints.glob("step-*") if path.suffix != ".partial"), reverse=True)


def is_good(checkpoint):
    """Whether every file has the hash that the manifest gives, and the manifest is as it was written."""
    try:
        manifest = json.loads((checkpoint / "manifest.json").read_bytes())
        own = manifest.pop("manifest_sha256")
        text = json.dumps(manifest, sort_keys=True, ensure_ascii=False)
        return _sha256(text.encode()) == own and all(
            _sha256((checkpoint / name).read_bytes()) == facts["sha256"] for name, facts in manifest["files"].items()
        )
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _sha256(data):
    return hashlib.sha256(data).hexdigest()
