"""The one exception that is shown to the person at the keyboard."""


class UserError(Exception):
    """A mistake of the user or a broken input: one line that says what was wrong, where, and what to do.

    The entry points (train.py, predict.py, prepare.py, report.py) print it without a traceback and exit with code 2.
    """
