"""A file of users' own prompts: YAML text into prompts, or all that is wrong with it.

The format is that of the built-in ones: a task, what it is about, and a list of prompts.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated

import msgspec

from mtpmon.configkinds import Text
from mtpmon.configread import (
    ConfigError,
    Finding,
    Items,
    Position,
    Reader,
    RefusalError,
    Scalar,
    ScalarKind,
    Section,
    parse_tree,
)
from mtpmon.configread import Mapping as Table
from mtpmon.suite import Prompt

MAX_PROMPT_CHARACTERS = 100_000
RESERVED_TASK = "all"  # what tables call every task together


class Prose(ScalarKind):
    """Text of any number of lines."""

    title = "text"
    placeholder = ""
    limits = f"1 to {MAX_PROMPT_CHARACTERS} characters"
    advice = f"write {limits}, after >- or |- if they are many"

    def scalar(self, node: Scalar) -> str:
        """Take text that has something in it."""
        if node.type != "str":
            raise self.no(node)
        if not node.text.strip() or len(node.text) > MAX_PROMPT_CHARACTERS:
            raise RefusalError(f"has {len(node.text.strip())} characters", self.advice)
        return node.text


class _Entry(msgspec.Struct, frozen=True, kw_only=True):
    id: Annotated[str, Text(like="mine-refund-letter"), "names the prompt; unique"]
    text: Annotated[str, Prose(), "what the user says"]


class _File(msgspec.Struct, frozen=True, kw_only=True):
    task: Annotated[str, Text(like="support_mail"), "the kind of work"]
    about: Annotated[str | None, Text(256, like="Answers to customers."), "a description"] = None
    prompts: Annotated[tuple[_Entry, ...], Items(Section(_Entry), most=1000), "the prompts"]


_SCHEMA = Section(_File)


def parse_prompts(text: str, *, source: str, taken: Mapping[str, str]) -> tuple[Prompt, ...]:
    """Read a file of prompts; touches no file.

    Args:
        text: YAML.
        source: The file's name, for error messages.
        taken: The ids of other prompts, and whose they are.

    Raises:
        ConfigError: With all problems, in file order.
    """
    try:
        root = parse_tree(text.removeprefix("\ufeff"))
    except ConfigError as error:
        raise ConfigError(source, error.problems) from error.__cause__
    reader = Reader(Path())
    file: _File = _SCHEMA.placeholder
    if isinstance(root, Table):
        file = reader.value(_SCHEMA, root, "", file)
    else:
        reader.refuse("", Position(), "holds no prompts", "write the keys task: and prompts:")
    reader.cross_check(_findings(file, taken))
    if reader.problems:
        raise ConfigError(source, reader.problems)
    return tuple(Prompt(entry.id, file.task, entry.text) for entry in file.prompts)


def _findings(file: _File, taken: Mapping[str, str]) -> Iterator[Finding]:
    if file.task == RESERVED_TASK:
        yield Finding(
            path="task",
            problem=f"{RESERVED_TASK!r} stands for every task together in tables",
            fix="name the kind of work",
        )
    owners = dict(taken)
    for index, entry in enumerate(file.prompts or ()):  # none where the list was refused
        place = f"prompts[{index}]"
        owner = owners.setdefault(entry.id, place)
        if owner != place:
            yield Finding(
                path=f"{place}.id",
                problem=f"{entry.id!r} is also the id of a prompt in {owner}"
                if entry.id in taken
                else f"{entry.id!r} is also the id of {owner}",
                fix="give each prompt an id of its own",
            )
