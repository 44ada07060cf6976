"""Which help pages train, tune and test: by a hash of the page's name, so the same in all languages."""

import hashlib

TEST_PERCENT, DEV_PERCENT = 20, 10


def split_of(page):
    """ "train", "dev" or "test"."""
    bucket = int(hashlib.md5(f"s1{page}".encode()).hexdigest(), 16) % 100
    return "test" if bucket < TEST_PERCENT else "dev" if bucket < TEST_PERCENT + DEV_PERCENT else "train"


def is_held_out(page):
    return split_of(page) != "train"


def wanted_splits(language, source):
    """Tasks are trained and tuned in the source language only and tested in all."""
    return ("train", "dev", "test") if language == source else ("test",)
