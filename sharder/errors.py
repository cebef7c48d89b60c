"""The one exception a user is meant to see."""

EXIT_USER_ERROR = 2


class UserError(Exception):
    """Something only the user can put right: shown as one line, exit code 2, no traceback.

    The message names the key or file, what was found, what is allowed, and the fix.
    """

    def __str__(self) -> str:
        return " ".join(str(self.args[0]).split()) if self.args else ""
