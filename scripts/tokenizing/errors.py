"""Errors that end a run, and their exit codes."""


class InputError(Exception):
    """An error in the user's input, as one sentence that names the file. Exit code 2."""


class DamagedFile(InputError):
    """A compressed file is damaged or ends early."""


class RunError(Exception):
    """An error while running, as one sentence. Exit code 1."""
