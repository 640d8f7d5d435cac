"""The configuration: what is accepted, what is refused and with which words, what is shown."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
import yarl
from hypothesis import given, settings
from hypothesis import strategies as st

from mtpmon.config import (
    Address,
    Config,
    ConfigError,
    Evidence,
    Headers,
    History,
    Listen,
    Log,
    Probe,
    Scrape,
    Secret,
    Server,
    Shift,
    Tls,
    Verdict,
    default_config,
    exposed_secret_files,
    load_config,
    parse_config,
    resolve_api_key,
    resolve_target_only_api_key,
    to_public_dict,
)
from mtpmon.duration import format_duration

ROOT = Path(__file__).parents[1]
# A busy machine is no failure.
untimed = settings(deadline=None)
TASKS = ("code", "factual", "analysis", "essay", "creative")
BAD_CONFIGS = sorted((ROOT / "tests" / "bad_configs").glob("*.yaml"))

FULL = """
servers:
  - name: big
    url: HTTPS://Models.Example:443/big/
    target_only_url: https://[::1]:8443
    model: qwen
    api_key_env: BIG_KEY
    target_only_api_key_file: /run/keys/plain
    headers: {X-Team: "7", X-Trace: on-call}
    tls:
      ca_file: ca.pem
      verify: yes
      client_cert_file: ../client.pem
      client_key_file: /etc/client.key
    sleep_idle: 2h
    probe: false
    reference_capture: bf16.capture
  - name: größer
    url: http://10.0.0.5:8080
    baseline_capture: /run/plain.capture
scrape: {interval: 10, timeout: 500ms, stale_after: 1m, max_body_bytes: 2MiB}
windows: [20s, 1.5h]
probe:
  enabled: off
  interval: 1d
  timeout: 1h
  idle_for: 0
  tokens: 4096
  time_share: 0.5
  tokens_per_hour: 1
  top_logprobs: 64
  forced_positions: 0
  tasks: [essay]
  prompt_files: [mine.yaml, /srv/theirs.yaml]
  temperatures: [0, .7, 2]
  thinking: [off, "on", default]
  depths: [131072]
  seed: 0
  rolling: 100000
evidence: {min_drafts: 2, rounding_error: 0.2, confidence: 5.01e-1}
verdict: {min_steps: 2, settle: 0, max_age: 1h, recommended: 2, marginal: 1}
shift: {false_alarms_per_week: 0.1, least_change: 0, least_kld: 0.5}
history: {path: kept.db, retention: 90d, max_bytes: 1GiB}
listen: {address: "[::]:0", reload: true}
log: {level: debug, format: json}
"""

FULL_CONFIG = Config(
    servers=(
        Server(
            name="big",
            url="https://models.example/big",
            target_only_url="https://[::1]:8443",
            model="qwen",
            api_key_env="BIG_KEY",
            target_only_api_key_file=Path("/run/keys/plain"),
            headers=Headers({"X-Team": "7", "X-Trace": "on-call"}),
            tls=Tls(
                ca_file=Path("/etc/mtpmon/ca.pem"),
                verify=True,
                client_cert_file=Path("/etc/mtpmon/../client.pem"),
                client_key_file=Path("/etc/client.key"),
            ),
            sleep_idle_seconds=7200.0,
            probe=False,
            reference_capture=Path("/etc/mtpmon/bf16.capture"),
        ),
        Server(
            name="größer",
            url="http://10.0.0.5:8080",
            baseline_capture=Path("/run/plain.capture"),
        ),
    ),
    scrape=Scrape(
        interval_seconds=10.0,
        timeout_seconds=0.5,
        stale_after_seconds=60.0,
        max_body_bytes=2 * 1024**2,
    ),
    windows_seconds=(20.0, 5400.0),
    probe=Probe(
        enabled=False,
        interval_seconds=86400.0,
        timeout_seconds=3600.0,
        idle_for_seconds=0.0,
        tokens=4096,
        top_logprobs=64,
        time_share=0.5,
        tokens_per_hour=1,
        forced_positions=0,
        tasks=("essay",),
        prompt_files=(Path("/etc/mtpmon/mine.yaml"), Path("/srv/theirs.yaml")),
        temperatures=(0.0, 0.7, 2.0),
        thinking=(False, True, None),
        depths=(131_072,),
        seed=0,
        rolling=100_000,
    ),
    evidence=Evidence(min_drafts=2, rounding_error=0.2, confidence=0.501),
    verdict=Verdict(
        min_steps=2, settle_seconds=0.0, max_age_seconds=3600.0, recommended=2.0, marginal=1.0
    ),
    shift=Shift(false_alarms_per_week=0.1, least_change=0.0, least_kld=0.5),
    history=History(
        path=Path("/etc/mtpmon/kept.db"), retention_seconds=90 * 86400.0, max_bytes=1024**3
    ),
    listen=Listen(address=Address("::", 0), reload=True),
    log=Log(level="debug", format="json"),
)


def server(**keys: Any) -> Server:
    """Parse one server from its keys."""
    text = yaml.safe_dump({"servers": [{"name": "a", **keys}]})
    return parse_config(text).servers[0]


def problems(text: str, **options: Any) -> list[str]:
    """Parse a bad configuration and give its problems, without the header."""
    with pytest.raises(ConfigError) as caught:
        parse_config(text, **options)
    return str(caught.value).splitlines()[1:]


# --- Defaults and documents -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["", "\n", "# nothing\n", "---\n", "~", "{}", "\ufeff", "\ufeff{}"]
)
def test_empty(text: str) -> None:
    """A file with nothing in it is the defaults."""
    assert parse_config(text, known_tasks=TASKS) == default_config()


def test_example_is_the_defaults() -> None:
    """`config.yaml` shows every key, each at its default."""
    path = ROOT / "config.yaml"
    assert load_config(path, known_tasks=TASKS) == default_config()

    def keys(tree: Any) -> Any:
        match tree:
            case dict():
                return {key: keys(value) for key, value in tree.items()}
            case [dict(), *_]:
                return [keys(item) for item in tree]
        return None

    assert keys(yaml.safe_load(path.read_text())) == keys(to_public_dict(default_config()))


def test_documentation_examples() -> None:
    """The examples of `docs/configuration.md` do what it says."""
    document = (ROOT / "docs" / "configuration.md").read_text()
    example = re.search(r"```yaml\n(.*?)```", document, re.DOTALL)
    assert example
    assert [server.name for server in parse_config(example[1]).servers] == ["big", "small"]
    messages = re.search(r"```\n(mtpmon.yaml: .*?)```", document, re.DOTALL)
    assert messages
    text = "servers: [{name: a}, {name: b, url: ftp://x}]\nscrape: {intervall: 5s}\n"
    with pytest.raises(ConfigError) as caught:
        parse_config(text, source="mtpmon.yaml")
    assert f"{caught.value}\n" == messages[1]


def test_every_key() -> None:
    """Every key arrives in its field, with its unit."""
    config = parse_config(FULL, source="/etc/mtpmon/mtpmon.yaml", known_tasks=TASKS)
    assert config == FULL_CONFIG


def test_configurations_are_values() -> None:
    """Equal files give equal, hashable configurations that cannot be changed."""
    config = parse_config(FULL)
    assert hash(config) == hash(parse_config(FULL))
    with pytest.raises(AttributeError):
        config.scrape.interval_seconds = 1.0  # type: ignore[misc]


# --- Refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", BAD_CONFIGS, ids=lambda path: path.stem)
def test_bad_config(path: Path) -> None:
    """A bad file is refused with these words, which hold no secret."""
    with pytest.raises(ConfigError) as caught:
        load_config(path, known_tasks=TASKS)
    message = str(caught.value).replace(str(path), path.name)
    assert message + "\n" == path.with_suffix(".txt").read_text()
    assert "do-not-print" not in message
    assert all(line.isprintable() for line in message.splitlines())


def test_every_bad_config_has_its_words() -> None:
    """The folder holds pairs, and as many as it did."""
    words = sorted((ROOT / "tests" / "bad_configs").glob("*.txt"))
    assert [path.stem for path in words] == [path.stem for path in BAD_CONFIGS]
    assert len(BAD_CONFIGS) >= 70


def test_problems_are_data() -> None:
    """An error carries its source and its problems, each with a place, in file order."""
    with pytest.raises(ConfigError) as caught:
        parse_config("scrape: {timeout: 9s}\nlog:\n  levle: info\n", source="a.yaml")
    assert caught.value.source == "a.yaml"
    found = [(problem.path, problem.position) for problem in caught.value.problems]
    assert found == [("scrape.timeout", (1, 19)), ("log.levle", (3, 3))]


def test_checks_rest_on_good_values() -> None:
    """A value that was refused causes no second problem."""
    (only,) = problems("scrape: {interval: never, timeout: 5m}\nwindows: [1s]\n")
    assert only.startswith("scrape.interval: 'never' is not a duration;")
    assert len(problems("windows: [5m, never, 1m]\n")) == 1
    assert len(problems("probe: 5\nservers: [{name: a, sleep_idle: 5s}]\n")) == 1


def test_default_refused() -> None:
    """A default that the caller does not know is refused as a default."""
    first, *_ = problems("", known_tasks=["essay", "creative"])
    assert first == "probe.tasks[0]: the default 'code' is not a task; known are essay, creative"


def test_directory(tmp_path: Path) -> None:
    """A directory is not a file."""
    with pytest.raises(ConfigError, match="file: cannot be read: Is a directory; name a readable"):
        load_config(tmp_path)


def test_missing_file(tmp_path: Path) -> None:
    """A missing file is named in the header."""
    path = tmp_path / "none.yaml"
    with pytest.raises(ConfigError, match="cannot be read: No such file") as caught:
        load_config(path)
    assert str(caught.value).startswith(f"{path}: 1 problem\n")


def test_unreadable_file(tmp_path: Path) -> None:
    """A file that cannot be opened is refused; a circle of links is one for root as well."""
    path = tmp_path / "circle.yaml"
    path.symlink_to(path)
    with pytest.raises(ConfigError, match="cannot be read: Too many levels"):
        load_config(path)


def test_huge_file(tmp_path: Path) -> None:
    """A file of 1 MiB is read, one byte more is not."""
    path = tmp_path / "huge.yaml"
    path.write_text("#" * 1024**2)
    assert load_config(path) == default_config()
    path.write_text("#" * (1024**2 + 1))
    with pytest.raises(ConfigError, match="file: is larger than 1 MiB"):
        load_config(path)


def test_byte_order_mark(tmp_path: Path) -> None:
    """A byte order mark before UTF-8 is accepted."""
    path = tmp_path / "mark.yaml"
    path.write_bytes(b"\xef\xbb\xbflog: {level: error}\n")
    assert load_config(path).log.level == "error"


# --- Values ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "seconds", "shown"),
    [
        ("250ms", 0.25, "250ms"),
        ("5s", 5.0, "5s"),
        ("5", 5.0, "5s"),
        ("1.5", 1.5, "1500ms"),
        ("90", 90.0, "90s"),
        ("0.5m", 30.0, "30s"),
        ("300", 300.0, "5m"),
        ("'5m'", 300.0, "5m"),
        ("1.00025", 1.00025, "1.00025s"),
    ],
)
def test_duration(written: str, seconds: float, shown: str) -> None:
    """A duration is a number with or without a unit, and is shown in its largest unit."""
    text = f"scrape: {{interval: {written}, timeout: 50ms}}\nwindows: [1h]\n"
    assert parse_config(text).scrape.interval_seconds == seconds
    assert format_duration(seconds) == shown


@untimed
@given(st.integers(min_value=200_000, max_value=300_000_000))
def test_duration_round_trip(microseconds: int) -> None:
    """A duration that is shown and read again is the same."""
    seconds = microseconds / 1e6
    text = f"scrape: {{interval: {format_duration(seconds)}, timeout: 50ms}}\nwindows: [1h]\n"
    assert parse_config(text).scrape.interval_seconds == seconds


@pytest.mark.parametrize(
    ("written", "size_bytes"),
    [("4KiB", 4096), ("64MiB", 64 * 1024**2), ("5000", 5000), ("5000B", 5000)],
)
def test_size(written: str, size_bytes: int) -> None:
    """A size is a number with or without a binary unit."""
    config = parse_config(f"scrape: {{max_body_bytes: {written}}}")
    assert config.scrape.max_body_bytes == size_bytes
    assert parse_config(yaml.safe_dump(to_public_dict(config))).scrape.max_body_bytes == size_bytes


@pytest.mark.parametrize(
    ("written", "url"),
    [
        ("http://127.0.0.1:8080/", "http://127.0.0.1:8080"),
        ("HTTP://Box.Local:80/a/b//", "http://box.local/a/b"),
        ("https://[2001:DB8::1]:8443", "https://[2001:db8::1]:8443"),
        ("https://box:80", "https://box:80"),
        ("http://gpu_1:8080/Path", "http://gpu_1:8080/Path"),
    ],
)
def test_url(written: str, url: str) -> None:
    """A URL keeps its path, loses a trailing slash and what goes without saying."""
    assert server(url=written).url == url


@untimed
@given(st.text())
def test_accepted_urls_are_urls(tail: str) -> None:
    """What is accepted as a URL is one to the HTTP client, with the same host."""
    try:
        url = server(url=f"http://{tail}").url
    except ConfigError:
        return
    assert yarl.URL(url).host


@pytest.mark.parametrize(
    ("written", "address"),
    [
        (":9765", Address(None, 9765)),
        ("'[::1]:1'", Address("::1", 1)),
        ("localhost:65535", Address("localhost", 65535)),
        ("0.0.0.0:80", Address("0.0.0.0", 80)),  # noqa: S104 - only parsed
    ],
)
def test_address(written: str, address: Address) -> None:
    """An address is a host, or none, and a port, and is shown as it is written."""
    assert parse_config(f"listen:\n  address: {written}").listen.address == address
    assert str(address) == written.strip("'")


@pytest.mark.parametrize(("written", "value"), [("no", False), ("TRUE", True), ("On", True)])
def test_flag(written: str, value: object) -> None:
    """A flag is any of YAML's booleans."""
    assert parse_config(f"listen: {{reload: {written}}}").listen.reload is value


def test_stale_after() -> None:
    """Figures vanish after three intervals and a timeout unless said otherwise."""
    assert default_config().scrape.stale_after_effective_seconds == 18.0
    assert FULL_CONFIG.scrape.stale_after_effective_seconds == 60.0


@pytest.mark.parametrize(
    "text",
    [
        "scrape: {interval: 200ms, timeout: 100ms, stale_after: 300ms}",
        "scrape: {interval: 30s, timeout: 29s}",
        "probe: {interval: 30s, timeout: 30s}",
        "servers: [{name: a, sleep_idle: 5001ms}]",
        "servers: [{name: a, sleep_idle: 1s, probe: no}]",
        "servers: [{name: a, sleep_idle: 1s}]\nprobe: {enabled: no}",
        "servers: [{name: a, model: x}, {name: b, model: y}]",
        "servers: [{name: a, target_only_url: 'https://b', tls: {verify: no}}]",
        "servers: [{name: a, url: 'https://b', tls: {client_cert_file: c.pem}}]",
        "probe: {tasks: [anything]}",
    ],
)
def test_no_contradiction(text: str) -> None:
    """Values at the edge of what fits together are accepted."""
    assert parse_config(text)


# --- What is shown --------------------------------------------------------------------------------


def test_public_dict() -> None:
    """The page shows what is in effect, in the words of the file, without header values."""
    shown = to_public_dict(FULL_CONFIG)
    assert json.loads(json.dumps(shown)) == shown
    assert shown["servers"][0]["headers"] == {"X-Team": "***", "X-Trace": "***"}
    assert shown["servers"][0]["tls"]["ca_file"] == "/etc/mtpmon/ca.pem"
    assert shown["servers"][1]["api_key_env"] is None
    assert shown["scrape"] == {
        "interval": "10s",
        "timeout": "500ms",
        "stale_after": "1m",
        "max_body_bytes": "2MiB",
    }
    assert shown["windows"] == ["20s", "90m"]
    assert shown["listen"] == {"address": "[::]:0", "reload": True}
    assert to_public_dict(default_config())["scrape"]["stale_after"] == "18s"


def test_public_dict_is_a_configuration() -> None:
    """What is shown can be used as a file, header values apart."""
    shown = to_public_dict(FULL_CONFIG)
    shown["servers"][0]["headers"] = dict(FULL_CONFIG.servers[0].headers)
    assert parse_config(yaml.safe_dump(shown), known_tasks=TASKS) == FULL_CONFIG


def test_header_values_stay_hidden() -> None:
    """Headers are a mapping whose values no log shows by accident."""
    headers = Headers({"X-Token": "do-not-print"})
    assert dict(headers) == {"X-Token": "do-not-print"}
    assert len(headers) == 1
    assert headers == Headers({"X-Token": "do-not-print"})
    assert "do-not-print" not in repr(Server(name="a", headers=headers))


# --- Secrets --------------------------------------------------------------------------------------


def test_secret_stays_hidden() -> None:
    """A secret shows itself only when asked to."""
    secret = Secret("do-not-print")
    assert f"{secret} {secret!r} {[secret]}" == "*** *** [***]"
    assert secret.reveal() == "do-not-print"


def test_no_key() -> None:
    """A server without a key has none, nor does it lend one to its target-only server."""
    assert resolve_api_key(Server(name="a")) is None
    lender = Server(name="a", api_key_env="A_KEY", target_only_url="http://b")
    assert resolve_target_only_api_key(lender, environment={"A_KEY": "key"}) is None


def test_key_from_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A key is read from the process's environment."""
    monkeypatch.setenv("MTPMON_TEST_KEY", " key ")
    secret = resolve_api_key(Server(name="a", api_key_env="MTPMON_TEST_KEY"))
    assert secret is not None
    assert secret.reveal() == "key"


@pytest.mark.parametrize("content", [b"key", b"key\n", b"key\r\n"])
def test_key_from_file(tmp_path: Path, content: bytes) -> None:
    """A key is the one line of a file, whatever ends the line."""
    path = tmp_path / "key"
    path.write_bytes(content)
    secret = resolve_target_only_api_key(Server(name="a", target_only_api_key_file=path))
    assert secret is not None
    assert secret.reveal() == "key"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "holds nothing; write the key in it"),
        (b" \n", "holds nothing; write the key in it"),
        (b"do-not-print\nline\n", "holds more than one line; write the key alone in it"),
        (b"do-not-print\x00", "holds more than one line; write the key alone in it"),
        (
            "do-not-print→".encode(),
            "holds characters that no HTTP header can; write the key alone in it",
        ),
        (b"do-not-print\xff", "the file is not text; write the key alone in it"),
    ],
)
def test_key_file_refused(tmp_path: Path, content: bytes, words: str) -> None:
    """A file that does not hold one line for a header is refused, unseen."""
    path = tmp_path / "key"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        resolve_api_key(Server(name="a", api_key_file=path))
    assert str(caught.value) == f"API key: 1 problem\nserver 'a', api_key_file: {words}"


def test_key_file_missing(tmp_path: Path) -> None:
    """A file that cannot be read is refused."""
    with pytest.raises(ConfigError) as caught:
        resolve_api_key(Server(name="a", api_key_file=tmp_path / "none"))
    assert str(caught.value).splitlines()[1] == (
        "server 'a', api_key_file: the file cannot be read: No such file or directory;"
        " name a readable file; a relative name starts at the configuration file's directory"
    )


def test_key_variable_missing() -> None:
    """A variable that is not set is refused; its name may be a key, and is not printed."""
    with pytest.raises(ConfigError) as caught:
        resolve_target_only_api_key(
            Server(name="a", target_only_api_key_env="do_not_print"), environment={}
        )
    assert str(caught.value).splitlines()[1] == (
        "server 'a', target_only_api_key_env: the environment variable is not set;"
        " export it before the start"
    )


def test_exposed_files(tmp_path: Path) -> None:
    """Files of secrets that everyone can read are named; private and missing ones are not."""
    everyone, private = tmp_path / "everyone", tmp_path / "private"
    for path, mode in ((everyone, 0o644), (private, 0o640)):
        path.touch()
        path.chmod(mode)
    config = Config(
        servers=(
            Server(name="a", api_key_file=everyone, target_only_api_key_file=private),
            Server(name="b", api_key_file=tmp_path / "none", tls=Tls(client_key_file=everyone)),
        )
    )
    assert [str(problem) for problem in exposed_secret_files(config)] == [
        f"server '{name}', {field}: every user of this machine can read the file; chmod o-r it"
        for name, field in (("a", "api_key_file"), ("b", "tls.client_key_file"))
    ]


# --- Anything -------------------------------------------------------------------------------------


def refused_or_read(text: str) -> None:
    """Check that a text is a configuration or refused in printable lines."""
    error = None
    try:
        config = parse_config(text, known_tasks=TASKS)
    except ConfigError as caught:
        error = caught
    if error:
        lines = str(error).splitlines()
        assert len(lines) == len(error.problems) + 1 > 1
        assert all(line.isprintable() for line in lines)
        return
    shown = to_public_dict(config)
    json.dumps(shown)
    for server in shown["servers"]:
        server["headers"] = {}
    assert parse_config(yaml.safe_dump(shown), known_tasks=TASKS)


KEYS = sorted(set(re.findall(r"[a-z_]+(?=:)", FULL)))
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.dates()
    | st.binary(max_size=8)
    | st.sampled_from(["5s", "1m", "1h", "http://a", "https://b", "a", "b", "code", ":1", "json"])
)
TREES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(KEYS) | SCALARS, inner, max_size=6)
    ),
    max_leaves=30,
)
EXAMPLE = (ROOT / "config.yaml").read_text()


@untimed
@given(st.text())
def test_any_text(text: str) -> None:
    """Any text is a configuration or refused."""
    refused_or_read(text)


@untimed
@given(st.text(alphabet="ab10:-,[]{}#&*!|>'\"%@`?~ \\\n\tUxu<=/"))
def test_any_yaml_text(text: str) -> None:
    """Any text in YAML's own characters is a configuration or refused."""
    refused_or_read(text)


@untimed
@given(TREES)
def test_any_tree(tree: Any) -> None:
    """Any object that YAML can write is a configuration or refused."""
    refused_or_read(yaml.dump(tree, allow_unicode=True))


@untimed
@given(
    st.fixed_dictionaries({}, optional=dict.fromkeys(to_public_dict(default_config()), TREES)),
    st.lists(st.dictionaries(st.sampled_from(KEYS), SCALARS), max_size=3),
)
def test_any_sections(sections: dict[str, Any], servers: list[dict[str, Any]]) -> None:
    """Any values at the right keys are a configuration or refused."""
    refused_or_read(yaml.safe_dump({**sections, "servers": servers}))


@untimed
@given(st.integers(0, len(EXAMPLE)), st.integers(0, 8), st.text(max_size=8))
def test_any_typo(start: int, length: int, replacement: str) -> None:
    """The example with any slip of the hand is a configuration or refused."""
    refused_or_read(EXAMPLE[:start] + replacement + EXAMPLE[start + length :])
