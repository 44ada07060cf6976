"""What users are told of their mistakes."""

import contextlib

import pytest

from ds_minimodel.common.errors import UserError


@contextlib.contextmanager
def refuses(match=None):
    """Assert that the block raises a UserError of one line in which the pattern `match` is found.

    It gives what pytest.raises gives.
    """
    with pytest.raises(UserError, match=match) as refusal:
        yield refusal
    assert "\n" not in str(refusal.value)
