"""A Hub of Hugging Face's protocol, through huggingface_hub: what goes wrong with it is one line."""

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

from ds_minimodel.common.errors import UserError
from ds_minimodel.common.files import CANNOT_WRITE


@contextlib.contextmanager
def hub_api(repository: str, endpoint: str | None = None) -> Iterator[tuple[Any, Any]]:
    """(huggingface_hub, its HfApi for an endpoint); what goes wrong with them becomes a UserError of one line.

    endpoint: default what HF_ENDPOINT names, or huggingface.co.
    """
    try:
        import huggingface_hub as hub
        from huggingface_hub import constants
        from huggingface_hub.utils.tqdm import disable_progress_bars
    except ModuleNotFoundError:
        raise UserError("huggingface_hub is not installed; pip install 'ds_minimodel[hf]'") from None
    if endpoint == "":  # of an unset variable in a script: never the public Hub instead
        raise UserError("--endpoint is empty; give the address of a Hub, or leave it out for HF_ENDPOINT's")
    endpoint = endpoint or constants.ENDPOINT
    if not sys.stderr.isatty():
        disable_progress_bars()
    try:
        yield hub, hub.HfApi(endpoint=endpoint, library_name="ds_minimodel")
    except UserError:
        raise
    except OSError as error:
        if error.errno in CANNOT_WRITE and error.filename is not None:
            raise  # of this machine's disk; what else there is comes of names and ETags that the Hub gave
        raise _unreachable(endpoint, repository, error) from None
    except Exception as error:  # what the library raises depends on its version, the transport and the server
        raise _unreachable(endpoint, repository, error) from None


def _unreachable(endpoint: str, repository: str, error: Exception) -> UserError:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    reason = " ".join(lines[:2]).rstrip(".") or type(error).__name__
    if "/xet-write-token/" in reason:
        return UserError(
            f"{repository} on {endpoint}: no Xet storage ({reason}); if the Hub has none, run again with "
            "HF_HUB_DISABLE_XET=1 in the environment, else check your token (HF_TOKEN, `hf auth login`)"
        )
    return UserError(
        f"{repository} on {endpoint}: {reason}; check name, endpoint (--endpoint, "
        "HF_ENDPOINT) and token (HF_TOKEN, `hf auth login`)"
    )
