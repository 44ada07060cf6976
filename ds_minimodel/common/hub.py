"""A Hub of Hugging Face's protocol, through huggingface_hub: what goes wrong with it is one
line.
"""

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

from ds_minimodel.common.errors import UserError
from ds_minimodel.common.extras import import_extra


@contextlib.contextmanager
def hub_api(repository: str) -> Iterator[Any]:
    """huggingface_hub's HfApi of the Hub that HF_ENDPOINT names; what goes wrong with it becomes a
    UserError.
    """
    huggingface_hub = import_extra("huggingface_hub", "hf")
    if not sys.stderr.isatty():
        huggingface_hub.utils.disable_progress_bars()
    api = huggingface_hub.HfApi(library_name="ds_minimodel")
    try:
        yield api
    except UserError:
        raise
    except Exception as error:
        # What the library raises depends on its version, the transport and the server; what has a
        # file's name is of this machine's disk.
        if getattr(error, "filename", None) is not None:
            raise
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reason = " ".join(lines[:2]).rstrip(".") or type(error).__name__
        raise UserError(
            f"{repository} on {api.endpoint}: {reason}; check name, endpoint (HF_ENDPOINT) and "
            "token (HF_TOKEN, "
            "`hf auth login`)"
        ) from None


def is_answer(error: Exception) -> bool:
    """Whether an error is what a Hub, or this package, said; else the Hub was not reached."""
    from huggingface_hub.errors import HfHubHTTPError

    return isinstance(error, UserError | HfHubHTTPError | OSError) and not isinstance(
        error, ConnectionError | TimeoutError
    )
