"""Exceptions that the command line knows."""


class UserError(Exception):
    """A mistake in a recipe, a file or a command line.

    The message is one line: what is wrong, where (file, key, line), what to do.
    The command line prints it without a traceback and exits with code 2.
    """


class OtherRankFailed(Exception):
    """Another rank failed, and has said why; this one ends without a word."""

    def __init__(self, rank: int, is_users_mistake: bool) -> None:
        super().__init__(f"rank {rank} failed")
        self.is_users_mistake = is_users_mistake
