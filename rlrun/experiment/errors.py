"""Errors of this room that mean the same wherever they arise.

Owns those that several of its modules raise; an error of one module stands in that module.
"""


class MissingExtraError(Exception):
    """Something asked for needs a package that is an extra; the message names it."""

    exit_code = 2
