"""One module for each command: ``configure`` adds its options, ``execute`` runs it.

Exit codes are the same for all of them.
"""

from typing import Final

EXIT_FINE: Final = 0
EXIT_NOT_FINE: Final = 1
"""The command worked, and what it looked at is not fine."""
EXIT_USAGE: Final = 2
EXIT_INTERRUPTED: Final = 130
EXIT_OUTPUT_CLOSED: Final = 141


def exit_codes(
    *, fine: str = "fine", not_fine: str | None = None, interrupted: str | None = None
) -> str:
    """The end of a command's help; a code without a meaning does not occur."""
    meanings = {
        EXIT_FINE: fine,
        EXIT_NOT_FINE: not_fine,
        EXIT_USAGE: "wrong usage or configuration",
        EXIT_INTERRUPTED: interrupted,
    }
    lines = [f"  {code:<4} {meaning}" for code, meaning in meanings.items() if meaning]
    return "\n".join(["exit codes:", *lines])
