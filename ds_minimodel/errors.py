"""The one exception that means: the user can mend this."""


class UserError(Exception):
    """A mistake in a recipe, a file or a command line.

    The message is one line: what is wrong, where (file, key, line), what to do.
    The command line prints it without a traceback and exits with code 2.
    """
