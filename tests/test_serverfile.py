"""Files that list servers, in Prometheus' format: what is read, refused, and noticed."""

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from mtpmon.config import ConfigError, Server, Tls, parse_config
from mtpmon.discovery import Listed, ServerFiles, all_errors, discovered, with_listed
from mtpmon.serverfile import LABELS, MAX_SERVERS, Found, parse_servers

FLEET = Path("/etc/mtpmon/fleet.yaml")


def servers(text: str, source: Path = FLEET) -> list[Server]:
    """Parse a good file."""
    return [each.server for each in parse_servers(text, source=source)]


def problems(text: str, source: Path = FLEET) -> list[str]:
    """Parse a bad file and give its problems."""
    with pytest.raises(ConfigError) as caught:
        parse_servers(text, source=source)
    header, *lines = str(caught.value).splitlines()
    assert header.startswith(f"{source}: ")
    return lines


# --- what is read -------------------------------------------------------------------------


def test_a_target_is_a_server_with_the_defaults() -> None:
    """Named after its target; labels that mean nothing here are for Prometheus."""
    text = (
        "- targets: [10.0.0.5:8080, '[::1]:81']\n  labels: {env: prod, __meta_x: y, job: llama}\n"
    )
    assert servers(text) == [
        Server(name="10.0.0.5:8080", url="http://10.0.0.5:8080"),
        Server(name="[::1]:81", url="http://[::1]:81"),
    ]


@pytest.mark.parametrize("text", ["[]", "- targets: []", '[{"targets":[],"labels":{}}]'])
def test_no_servers_can_be_said(text: str) -> None:
    """An empty list is one."""
    assert servers(text) == []


@pytest.mark.parametrize("name", ["\N{OWL}", "a\N{OWL}b", r"\ud83e\udd89", "\\\N{OWL}"])
def test_json_may_write_any_character_as_escapes(name: str) -> None:
    """As Python's json does; two backslashes are one, and no escape."""
    text = json.dumps([{"targets": ["a:1"], "labels": {"__mtpmon_name__": name}}])
    (only,) = servers(text, Path("/etc/mtpmon/fleet.json"))
    assert only.name == name


@pytest.mark.parametrize("labels", ["null", "{}"])
def test_a_group_may_have_no_labels(labels: str) -> None:
    """Programs in Go write null for an empty map."""
    (only,) = servers(f'[{{"targets":["a:1"],"labels":{labels}}}]')
    assert only == Server(name="a:1", url="http://a:1")


def test_prometheus_labels_mean_what_they_mean_to_prometheus() -> None:
    """Scheme, path and the parameter `model` are those of the scrape of `llama-server` itself."""
    text = """
    - targets: [gpu1:443]
      labels: {__scheme__: https, __metrics_path__: /big/metrics, __param_model: qwen}
    """
    assert servers(text) == [Server(name="gpu1:443", url="https://gpu1/big", model="qwen")]


def test_a_target_may_be_a_url() -> None:
    """Then scheme and path are its own."""
    text = "- {targets: ['http://a:1/x/'], labels: {__scheme__: https, __metrics_path__: /metrics}}"
    assert servers(text) == [Server(name="http://a:1/x/", url="http://a:1/x")]


def test_every_key_of_a_server_has_a_label() -> None:
    """All but the URL and headers; text in quotes is as good, as JSON has nothing else."""
    labels = {
        "__mtpmon_name__": "123",
        "__mtpmon_target_only_url__": "https://b",
        "__mtpmon_model__": "m",
        "__mtpmon_api_key_file__": "keys/a",
        "__mtpmon_target_only_api_key_env__": "KEY",
        "__mtpmon_tls_verify__": "false",
        "__mtpmon_tls_client_cert_file__": "/c.pem",
        "__mtpmon_sleep_idle__": "300",
        "__mtpmon_probe__": "no",
        "__mtpmon_reference_capture__": "ref",
    }
    text = json.dumps([{"targets": ["a:1"], "labels": labels}], indent="\t")
    assert servers(text, Path("/etc/mtpmon/fleet.json")) == [
        Server(
            name="123",
            url="http://a:1",
            target_only_url="https://b",
            model="m",
            api_key_file=Path("/etc/mtpmon/keys/a"),
            target_only_api_key_env="KEY",
            tls=Tls(verify=False, client_cert_file=Path("/c.pem")),
            sleep_idle_seconds=300.0,
            probe=False,
            reference_capture=Path("/etc/mtpmon/ref"),
        )
    ]
    keys = {name for name in Server.__struct_encode_fields__ if name not in ("url", "headers")}
    written = {label.removeprefix("__mtpmon_").removesuffix("__") for label in LABELS}
    assert {"tls" if name.startswith("tls_") else name for name in written} - keys == {
        "__param_model"
    }
    assert {f"tls_{name}" for name in Tls.__struct_encode_fields__} <= written


def test_the_example_of_the_page_is_read() -> None:
    """As docs/configuration.md says: defaults, and what labels set."""
    page = (Path(__file__).parent.parent / "docs" / "configuration.md").read_text(encoding="utf-8")
    example = re.search(r"```yaml\n(- targets.*?)```", page, re.DOTALL)
    assert example is not None
    assert servers(example[1]) == [
        Server(name="10.0.1.5:8080", url="http://10.0.1.5:8080"),
        Server(name="10.0.1.6:8080", url="http://10.0.1.6:8080"),
        Server(
            name="big-coder",
            url="http://10.0.1.7:8080",
            api_key_file=Path("/etc/mtpmon/big-coder.key"),
        ),
    ]


def test_every_label_is_documented() -> None:
    """In the table of `docs/configuration.md`, and no other."""
    page = (Path(__file__).parent.parent / "docs" / "configuration.md").read_text(encoding="utf-8")
    rows = "".join(line for line in page.splitlines() if line.startswith("| `__"))
    known = {*LABELS, "__scheme__", "__metrics_path__"}
    assert set(re.findall(r"`(__\w+)`", rows)) == known


# --- what is refused ----------------------------------------------------------------------

_HTTP = "write it like http://127.0.0.1:8080"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["top level: is empty; write [] for no servers, else a list like"]),
        ("~", ["top level: is empty; "]),
        ("{}", ["top level: a mapping is not a list; "]),
        ("[5]", ["[0]: 5 is not a mapping of keys; write it like {targets: "]),
        ("- labels: {}", ["[0]: has no targets; add targets: "]),
        ("- {targets: [], lables: {}}", ["[0].lables: unknown key; did you mean labels?"]),
        ("- targets: a", ["[0].targets: 'a' is not a list; "]),
        ("- {targets: [], labels: 5}", ["[0].labels: 5 is not a mapping of labels; "]),
        (
            "- {targets: [], labels: {__scheme__: ftp}}",
            ["[0].labels.__scheme__: 'ftp' is not known"],
        ),
        (
            "- {targets: [], labels: {__metrics_path__: /x}}",
            ["[0].labels.__metrics_path__: '/x' does not end in /metrics; "],
        ),
        (
            "- {targets: [], labels: {__mtpmon_nam__: x}}",
            ["[0].labels.__mtpmon_nam__: unknown label; did you mean __mtpmon_name__?"],
        ),
        (
            "- {targets: [], labels: {__mtpmon_model__: [x]}}",
            ["[0].labels.__mtpmon_model__: a list is not text; "],
        ),
        (
            "- {targets: [], labels: {__mtpmon_probe__: '2'}}",
            ["[0].labels.__mtpmon_probe__: '2' is not true or false; "],
        ),
        (
            "- targets: [a b, ~, [x], *y]",
            [
                f"[0].targets[0]: 'http://a b' has a malformed host, port or path; {_HTTP}",
                f"[0].targets[1]: is empty; {_HTTP}",
                f"[0].targets[2]: a list is not an http or https URL; {_HTTP}",
                "[0].targets[3]: the YAML alias *y is not allowed; ",
            ],
        ),
        (
            f"- targets: [{'a' * 65}]",
            ["[0].targets[0]: as a name has 65 characters; give it a shorter name with the label"],
        ),
        ("- targets: ['http://u:do-not-print@x']", ["[0].targets[0]: 'http://***@x' holds cred"]),
        ('[{"targets": ["a:1"', ["line 1, column 20: not YAML: "]),
    ],
)
def test_a_bad_file_is_refused_in_these_words(text: str, words: Sequence[str]) -> None:
    """All problems of a file at once, each with its place and no secret."""
    found = problems(text)
    assert len(found) == len(words)
    for problem, beginning in zip(found, words, strict=True):
        assert problem.startswith(beginning)
        assert "do-not-print" not in problem


def test_too_many_targets_are_refused() -> None:
    """A wrong file must not start thousands of watchers; as many from several files neither."""
    many = [f"a{n}:1" for n in range(MAX_SERVERS + 1)]
    (problem,) = problems(json.dumps([{"targets": many}]))
    assert problem.startswith(f"top level: has {MAX_SERVERS + 1} targets, more than {MAX_SERVERS};")
    listed = ServerFiles().read()
    found = tuple(
        Found(place=name, server=Server(name=name, url=f"http://{name}")) for name in many[1:]
    )
    with pytest.raises(
        ConfigError, match=r"server_files: there are 1001 servers in all, more than"
    ):
        with_listed(parse_config(""), type(listed)(found=found))


# --- files --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("servers/*.txt", "the value is not the name of a .json, .yaml or .yml file"),
        ("*/servers.json", "has a wildcard in a directory's name"),
    ],
)
def test_names_that_are_refused(name: str, words: str) -> None:
    """As Prometheus has it."""
    with pytest.raises(ConfigError, match=f"server_files\\[0\\]: {words}"):
        parse_config(f"server_files: ['{name}']")


def test_without_servers_of_its_own() -> None:
    """A configuration with files does not watch `local` unless it says so."""
    assert parse_config("server_files: [a.json]").servers == ()
    assert parse_config("server_files: []").servers == (Server(name="local"),)
    own = parse_config("server_files: [a.json]\nservers: [{name: a}]").servers
    assert own == (Server(name="a"),)


def names(files: ServerFiles) -> list[str]:
    """What the files list now."""
    return [found.server.name for found in files.read().found]


def test_a_pattern_is_all_files_that_match(tmp_path: Path) -> None:
    """In order of names, once each, without hidden ones, which editors leave."""
    for name in ("b.json", "a.json", ".hidden.json", "c.yaml"):
        (tmp_path / name).write_text(f'[{{"targets": ["{name}:1"]}}]')
    (tmp_path / "link.json").symlink_to("c.yaml")
    files = ServerFiles([tmp_path / "*.json", tmp_path / "a.json", tmp_path / "c.yaml"])
    assert names(files) == ["a.json:1", "b.json:1", "c.yaml:1", "c.yaml:1"]
    assert names(ServerFiles([tmp_path / ".h*.json"])) == [".hidden.json:1"]


def test_a_change_counts_after_two_equal_looks(tmp_path: Path) -> None:
    """So that a file is not read while it is being written."""
    path = tmp_path / "a.json"
    path.write_text("[]")
    files = ServerFiles([path])
    assert names(files) == []
    assert files.read_if_changed() is None
    for text in ("", '[{"targets"', '[{"targets": ["a:1"]}]'):
        path.write_text(text)
        assert files.read_if_changed() is None
    listed = files.read_if_changed()
    assert listed is not None
    assert [found.place for found in listed.found] == [f"{path} [0].targets[0]"]
    assert files.read_if_changed() is None
    files.unused()
    assert files.read_if_changed() == listed


def test_what_changes_while_it_is_read_is_not_used(tmp_path: Path) -> None:
    """It may be half of a file that is good by chance."""
    path = tmp_path / "a.yaml"
    path.write_text("- targets: ['a:1']\n- targets: ['b:1']\n")
    later = ["- targets: ['a:1']\n", "- targets: ['a:1']\n- targets: ['c:1']\n"]

    class Overtaken(ServerFiles):
        """Somebody writes in the middle of each reading."""

        def read(self) -> Listed:
            listed = super().read()
            if later:
                path.write_text(later.pop(0))
            return listed

    files = Overtaken([path])
    assert names(files) == ["a:1", "b:1"]
    looks = [files.read_if_changed() for _ in range(6)]
    assert [listed is None for listed in looks] == [True, True, True, False, True, True]
    assert looks[3] is not None
    assert [found.server.name for found in looks[3].found] == ["a:1", "c:1"]


def test_a_rename_over_the_file_is_a_change(tmp_path: Path) -> None:
    """Even with the same length and time."""
    path, other = tmp_path / "a.json", tmp_path / "b.json"
    path.write_text('[{"targets": ["a:1"]}]')
    files = ServerFiles([path])
    assert names(files) == ["a:1"]
    other.write_text('[{"targets": ["b:1"]}]')
    os.utime(other, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
    other.rename(path)
    assert files.read_if_changed() is None
    listed = files.read_if_changed()
    assert listed is not None
    assert listed.found[0].server.name == "b:1"


def test_what_a_file_said_stays_while_it_is_bad(tmp_path: Path) -> None:
    """Empty, broken or missing; the other files are read. It is tried again, changed or not."""
    bad, good = tmp_path / "bad.json", tmp_path / "good.json"
    bad.write_text('[{"targets": ["a:1"]}]')
    good.write_text('[{"targets": ["b:1"]}]')
    files = ServerFiles([bad, good])
    assert names(files) == ["a:1", "b:1"]
    good.write_text('[{"targets": ["c:1", "d:1"]}]')
    for text in ("", "[{", None):
        bad.unlink() if text is None else bad.write_text(text)
        listed = files.read()
        assert [found.server.name for found in listed.found] == ["a:1", "c:1", "d:1"]
        error = all_errors(listed)
        assert error is not None
        assert f"{bad}, " in str(error)
        assert files.read_if_changed() is not None


def test_a_pattern_loses_what_is_deleted_but_not_what_is_out_of_reach(tmp_path: Path) -> None:
    """A directory that vanishes, as a mount may, takes no servers with it."""
    directory = tmp_path / "servers"
    directory.mkdir()
    for name in "ab":
        (directory / f"{name}.json").write_text(f'[{{"targets": ["{name}:1"]}}]')
    files = ServerFiles([directory / "*.json"])
    assert names(files) == ["a:1", "b:1"]
    (directory / "b.json").unlink()
    assert names(files) == ["a:1"]
    directory.rename(tmp_path / "elsewhere")
    assert names(files) == ["a:1"]
    assert str(directory / "*.json") in str(all_errors(files.read()))


def test_names_are_unique_over_all_files(tmp_path: Path) -> None:
    """Both places of a contradiction are named, the file's and the configuration's."""
    path = tmp_path / "a.json"
    text = """
    [{"targets": ["a:1"], "labels": {"__mtpmon_name__": "own"}},
     {"targets": ["10.0.0.5:80", "b:1"]}]
    """
    path.write_text(text)
    config = parse_config(
        f"servers: [{{name: own, url: 'http://10.0.0.5'}}]\nserver_files: ['{path}']"
    )
    with pytest.raises(ConfigError) as caught:
        discovered(config)
    name, url = str(caught.value).splitlines()[1:]
    assert name.startswith(f"{path} [0].targets[0].name: 'own' is also the name of servers[0];")
    assert url.startswith(
        f"{path} [1].targets[0].url: http://10.0.0.5 is also watched as servers[0]"
    )
    path.write_text('[{"targets": ["b:1"]}]')
    assert [server.name for server in discovered(config).servers] == ["own", "b:1"]
    path.unlink()
    with pytest.raises(ConfigError, match=f"{path}, file: cannot be read: No such file"):
        discovered(config)
