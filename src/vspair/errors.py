"""The one exception for mistakes that a user can put right."""

__all__ = ["VspairError"]


class VspairError(Exception):
    """Says what was given, what was expected and what to do next.

    The command line prints its message without a traceback and exits with status 2.
    """
