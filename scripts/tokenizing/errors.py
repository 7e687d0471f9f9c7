"""What a run ends with, and how."""


class InputError(Exception):
    """What the user gave is wrong; one sentence that names the file. Exit code 2."""


class RunError(Exception):
    """What went wrong while it ran; one sentence. Exit code 1."""
