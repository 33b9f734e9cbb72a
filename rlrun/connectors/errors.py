"""The exception that carries a failure of the user's connector to the user.

It crosses process borders (Ray pickles it), so it is plain text.
"""


class ConnectorError(Exception):
    """A connector of the user's own raised, or does not do what its spaces say.

    The message begins with the user's traceback, and says last which connector it was.
    """

    exit_code = 1
