"""A Hub of Hugging Face's protocol, through huggingface_hub, whose errors become one line."""

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

from ds_minimodel.common.errors import UserError
from ds_minimodel.common.extras import import_extra


@contextlib.contextmanager
def hub_api(repository: str) -> Iterator[Any]:
    """Yield huggingface_hub's HfApi of the Hub that HF_ENDPOINT names.

    Args:
        repository: what is asked for, for the message.

    Raises:
        UserError: the Hub was not reached or has refused.
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
        # What the library raises depends on its version, the transport and the server. An error
        # with a file's name is one of this machine's disk, and is raised as it is.
        if getattr(error, "filename", None) is not None:
            raise
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reason = " ".join(lines[:2]).rstrip(".") or type(error).__name__
        raise UserError(
            f"{repository} on {api.endpoint}: {reason}; check name, endpoint (HF_ENDPOINT) and "
            "token (HF_TOKEN, `hf auth login`)"
        ) from None


def is_answer(error: Exception) -> bool:
    """Return whether a Hub, or this package, has answered; False: the Hub was not reached."""
    from huggingface_hub.errors import HfHubHTTPError

    if isinstance(error, ConnectionError | TimeoutError):
        return False
    return isinstance(error, UserError | HfHubHTTPError | OSError)
