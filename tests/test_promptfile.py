"""Users' own prompts: what is read, what is refused and with which words."""

from pathlib import Path

import pytest

from mtpmon.compose import known_tasks, own_prompts, read_config, suite, ways
from mtpmon.config import Config, ConfigError, Probe
from mtpmon.promptfile import MAX_PROMPT_CHARACTERS, parse_prompts
from mtpmon.suite import TASKS, Prompt, Variant, builtin_suite

ROOT = Path(__file__).parents[1]
GOOD = """
task: support_mail
about: Answers to customers.
prompts:
  - id: support_mail-refund
    text: >-
      Write a friendly answer
      about a refund.
  - {id: two, text: "Say 'no'."}
"""


def problems(text: str, taken: dict[str, str] | None = None) -> list[str]:
    """What is wrong with a bad file, without the header."""
    with pytest.raises(ConfigError) as caught:
        parse_prompts(text, source="mine.yaml", taken=taken or {})
    header, *lines = str(caught.value).splitlines()
    count = len(lines)
    assert header == f"mine.yaml: {count} problem{'' if count == 1 else 's'}"
    return lines


def test_a_file_becomes_prompts() -> None:
    """Each with the file's task; a byte order mark does no harm."""
    expected = (
        Prompt("support_mail-refund", "support_mail", "Write a friendly answer about a refund."),
        Prompt("two", "support_mail", "Say 'no'."),
    )
    assert parse_prompts(GOOD, source="mine.yaml", taken={}) == expected
    assert parse_prompts("\ufeff" + GOOD, source="mine.yaml", taken={}) == expected


@pytest.mark.parametrize("task", TASKS)
def test_built_in_prompts_are_in_the_same_format(task: str) -> None:
    """So that one of their files is an example to copy."""
    text = (ROOT / "mtpmon" / "prompts" / f"{task}.yaml").read_text(encoding="utf-8")
    found = parse_prompts(text, source=task, taken={})
    assert found == builtin_suite([task]).prompts


def test_the_documentation_shows_a_good_file() -> None:
    """The example of docs/configuration.md can be used."""
    document = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    example = document.split("```yaml\ntask: ")[1].split("```")[0]
    assert len(parse_prompts(f"task: {example}", source="mine.yaml", taken={})) == 2


TEXT = "write 1 to 100000 characters, after >- or |- if they are many"
NOT_YAML = "check colons, indentation and brackets, and quote text with special characters"
UNIQUE = "give each prompt an id of its own"
REFUSED = {
    "": ["top level: holds no prompts; write the keys task: and prompts:"],
    "~": ["top level: holds no prompts; write the keys task: and prompts:"],
    "[a]": ["top level: holds no prompts; write the keys task: and prompts:"],
    "task: a\nprompts: '": [
        f"line 2, column 11: not YAML: found unexpected end of stream; {NOT_YAML}"
    ],
    "tsk: a\n": [
        "tsk: unknown key; did you mean task?",
        "task: is missing; write 1 to 64 characters, like support_mail",
        "prompts: is missing; write [a, b] or lines that start with -",
    ],
    "task: all\nprompts: [{id: a, text: b}]": [
        "task: 'all' stands for every task together in tables; name the kind of work"
    ],
    "task: a\nprompts: []": ["prompts: has 0 items; list 1 to 1000"],
    "task: a\nprompts: [{id: x, text: 5}, {id: y, text: ' '}, {id: z}, {id: a, text: [b]}]": [
        f"prompts[0].text: 5 is not text; {TEXT}",
        f"prompts[1].text: has 0 characters; {TEXT}",
        f"prompts[2].text: is missing; {TEXT}",
        f"prompts[3].text: a list is not text; {TEXT}",
    ],
    "task: a\nprompts: [{id: x, text: a}, {id: built, text: b}, {id: x, text: c}]": [
        f"prompts[1].id: 'built' is also the id of a prompt in the built-in task code; {UNIQUE}",
        f"prompts[2].id: 'x' is also the id of prompts[0]; {UNIQUE}",
    ],
}


@pytest.mark.parametrize("text", REFUSED)
def test_a_bad_file_is_refused_with_all_its_problems(text: str) -> None:
    """Each with its path, what is wrong and what to write."""
    assert problems(text, {"built": "the built-in task code"}) == REFUSED[text]


def test_a_prompt_has_a_greatest_length() -> None:
    """As many characters are fine, one more is not."""
    text = "task: a\nprompts:\n  - id: x\n    text: "
    assert parse_prompts(text + "x" * MAX_PROMPT_CHARACTERS, source="", taken={})
    assert problems(text + "x" * (MAX_PROMPT_CHARACTERS + 1))[0].startswith(
        "prompts[0].text: has 100001 characters"
    )


# --- in a configuration ---


def written(folder: Path, config: str, **files: str) -> Path:
    for name, text in files.items():
        (folder / f"{name}.yaml").write_text(text, encoding="utf-8")
    path = folder / "mtpmon.yaml"
    path.write_text(config, encoding="utf-8")
    return path


def test_an_own_task_can_be_probed(tmp_path: Path) -> None:
    """Alone or beside built-in ones; relative names start at the configuration."""
    path = written(
        tmp_path,
        "probe: {prompt_files: [mine.yaml], tasks: [support_mail, cpp_code]}",
        mine=GOOD,
    )
    config = read_config(path)
    assert known_tasks(config) == (*TASKS, "support_mail")
    asked = suite(config)
    assert asked.tasks == ("support_mail", "cpp_code")
    assert [prompt.id for prompt in asked.prompts[:2]] == ["support_mail-refund", "two"]


def test_a_built_in_task_can_be_extended(tmp_path: Path) -> None:
    """Its own prompts stay."""
    mine = "task: essay\nprompts: [{id: essay-mine, text: Write.}]"
    path = written(tmp_path, "probe: {prompt_files: [mine.yaml], tasks: [essay]}", mine=mine)
    asked = suite(read_config(path))
    assert asked.tasks == ("essay",)
    assert [prompt.id for prompt in asked.prompts][-1] == "essay-mine"
    assert len(asked.prompts) == len(builtin_suite(["essay"]).prompts) + 1


def test_a_task_that_no_file_holds_is_refused(tmp_path: Path) -> None:
    """With the name that was meant."""
    path = written(
        tmp_path,
        "probe: {prompt_files: [mine.yaml], tasks: [code, suport_mail]}",
        mine=GOOD,
    )
    with pytest.raises(ConfigError) as caught:
        read_config(path)
    assert str(caught.value).splitlines()[1:] == [
        "probe.tasks[1]: 'suport_mail' is not a task; did you mean support_mail?"
    ]


def test_ids_are_unique_over_all_files(tmp_path: Path) -> None:
    """And over the built-in prompts."""
    path = written(tmp_path, "probe: {prompt_files: [one.yaml, two.yaml]}", one=GOOD, two=GOOD)
    with pytest.raises(ConfigError, match=r"also the id of a prompt in .*one\.yaml"):
        read_config(path)
    taken = "task: mine\nprompts: [{id: code-lru-cache, text: x}]"
    path = written(tmp_path, "probe: {prompt_files: [one.yaml]}", one=taken)
    with pytest.raises(ConfigError, match="a prompt in the built-in task code"):
        read_config(path)


def test_a_prompt_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    """With where it is listed."""
    path = written(tmp_path, "probe: {prompt_files: [gone.yaml]}")
    with pytest.raises(ConfigError) as caught:
        read_config(path)
    header, line = str(caught.value).splitlines()
    assert header == f"{tmp_path / 'gone.yaml'}: 1 problem"
    assert line == (
        "file: cannot be read: No such file or directory;"
        " name a readable file in probe.prompt_files"
    )


def test_without_own_files_there_are_the_built_in_ones() -> None:
    """The default configuration asks the five tasks, greedily and nothing else."""
    config = Config()
    assert own_prompts(config) == ()
    assert suite(config) == builtin_suite()
    assert ways(config) == (Variant(),)
    more = Config(probe=Probe(temperatures=(0.0, 0.7), thinking=(None, False), depths=(0, 64)))
    assert len(ways(more)) == 8
