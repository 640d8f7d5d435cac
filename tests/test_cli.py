"""The command line, as processes: exit codes, and what is said where."""

import asyncio
import json
import os
import re
import signal
import socket
from pathlib import Path
from typing import Any, get_args

import aiohttp
import msgspec
import pytest

import mtpmon as package
from mtpmon.__main__ import main
from mtpmon.commands.probetext import ProbeDocument
from tests.captures import events
from tests.command_line import COMMAND, broken, ended, mtpmon, started, until
from tests.far_end import FakeLlama
from tests.simulator import Simulated

BAD_CONFIGS = Path(__file__).parent / "bad_configs"
COMMANDS = ("run", "check", "probe", "capture", "bench", "report", "doctor", "demo")


def written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


# --- help and usage -----------------------------------------------------------------------


async def test_version() -> None:
    """--version says which mtpmon it is."""
    ran = await mtpmon("--version")
    assert (ran.code, ran.out) == (0, f"mtpmon {package.__version__}\n")


async def test_help_names_every_command() -> None:
    """--help lists the commands and where to start."""
    ran = await mtpmon("--help")
    assert ran.code == 0
    for command in COMMANDS:
        assert f"mtpmon {command}" in ran.out or f"\n    {command}" in ran.out


@pytest.mark.parametrize("command", COMMANDS)
async def test_help_of_a_command(command: str) -> None:
    """Each command's --help has what it does, examples and exit codes, in 100 columns."""
    ran = await mtpmon(command, "--help")
    assert (ran.code, ran.err) == (0, "")
    for part in (f"usage: mtpmon {command}", f"  mtpmon {command}", "exit codes:", "options:"):
        assert part in ran.out
    assert max(map(len, ran.out.splitlines())) <= 100


@pytest.mark.parametrize("arguments", [(), ("watch",), ("check", "--confg", "x"), ("probe", "x")])
async def test_wrong_usage(arguments: tuple[str, ...]) -> None:
    """What is no command or option ends with 2 and the usage on standard error."""
    ran = await mtpmon(*arguments)
    assert (ran.code, ran.out) == (2, "")
    assert "usage: mtpmon" in ran.err


@pytest.mark.parametrize("arguments", [("--help",), ("check",)])
async def test_closed_output(arguments: tuple[str, ...]) -> None:
    """A reader of standard output that goes away is no reason for a traceback."""
    reading, writing = os.pipe()
    os.close(reading)
    process = await asyncio.create_subprocess_exec(
        *COMMAND, *arguments, stdout=writing, stderr=asyncio.subprocess.PIPE
    )
    os.close(writing)
    _, err = await process.communicate()
    assert err == b""
    assert process.returncode in (0, 141)


# --- check --------------------------------------------------------------------------------


async def test_check_of_the_defaults() -> None:
    """Without a file the defaults are checked."""
    ran = await mtpmon("check")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out == (
        "the default configuration is fine: 1 server\n"
        "  local: http://127.0.0.1:8080, probed every 1m, 40 prompts in 40m\n"
    )


async def test_check_of_a_good_file(tmp_path: Path) -> None:
    """A good file is fine, with what is watched and probed."""
    text = """
servers:
  - {name: big, url: "http://a:1", target_only_url: "http://a:2"}
  - {name: small, url: "http://b:1", probe: false}
probe: {interval: 90s}
"""
    path = written(tmp_path / "mtpmon.yaml", text)
    ran = await mtpmon("check", "--config", path)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out == (
        f"{path} is fine: 2 servers\n"
        "  big: http://a:1 with http://a:2 to compare, probed every 90s, 40 prompts in 1h\n"
        "  small: http://b:1, not probed\n"
    )


async def test_check_of_a_bad_file() -> None:
    """Every problem of a file is listed at once, on standard error, and nothing else is said."""
    ran = await mtpmon("check", "--config", BAD_CONFIGS / "unknown_key.yaml")
    expected = (BAD_CONFIGS / "unknown_key.txt").read_text(encoding="utf-8")
    assert expected.count("\n") > 2
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == f"{BAD_CONFIGS}/{expected}"


async def test_check_reads_keys(tmp_path: Path) -> None:
    """Keys that cannot be read are problems of the configuration, all of them at once."""
    text = """
servers:
  - {name: a, url: "http://a", api_key_env: MTPMON_NO_SUCH_VARIABLE}
  - {name: b, url: "http://b", api_key_file: absent}
  - {name: c, url: "http://c", target_only_url: "http://d", target_only_api_key_file: absent}
  - {name: d, url: "https://d", tls: {ca_file: absent.pem}}
"""
    ran = await mtpmon("check", "--config", written(tmp_path / "mtpmon.yaml", text))
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.splitlines()[0] == f"{tmp_path}/mtpmon.yaml: 4 problems"
    for name in "abcd":
        assert f"server '{name}'" in ran.err


async def test_check_warns_of_exposed_keys(tmp_path: Path) -> None:
    """A key that all users of the machine can read is a warning, and the file is fine."""
    written(tmp_path / "key", "secret").chmod(0o644)
    text = "servers: [{name: a, url: 'http://a', api_key_file: key}]"
    ran = await mtpmon("check", "--config", written(tmp_path / "mtpmon.yaml", text))
    assert ran.code == 0
    assert ran.err.startswith("warning: server 'a', api_key_file: every user")
    assert "secret" not in ran.err + ran.out


# --- run ----------------------------------------------------------------------------------


async def test_run_with_a_bad_file() -> None:
    """A bad configuration ends the start with 2."""
    ran = await mtpmon("run", "--config", BAD_CONFIGS / "all_at_once.yaml")
    assert ran.code == 2
    assert "9 problems" in ran.err


async def test_run_where_the_address_is_taken(tmp_path: Path) -> None:
    """An address in use is a matter of configuration."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        text = f"listen: {{address: '{address}'}}"
        ran = await mtpmon("run", "--config", written(tmp_path / "mtpmon.yaml", text))
    assert ran.code == 2
    problem = f"configuration: 1 problem\nlisten.address: cannot listen on {address}: "
    assert ran.err.startswith(problem)


@pytest.mark.parametrize("name", [signal.SIGTERM, signal.SIGINT])
async def test_run_until_a_signal(tmp_path: Path, name: signal.Signals) -> None:
    """The daemon serves figures until a signal says stop, and that is a good end."""
    async with FakeLlama().serving() as url:
        text = f"servers: [{{name: a, url: '{url}'}}]\nlisten: {{address: '127.0.0.1:0'}}"
        config = written(tmp_path / "mtpmon.yaml", text)
        async with started("run", "--config", config) as process:
            assert process.stderr is not None
            log = json.loads(await process.stderr.readline())
            assert log["event"] == "started"
            async with aiohttp.request("GET", f"{log['url']}/metrics") as response:
                assert "mtpmon_build_info" in await response.text()
            process.send_signal(name)
            ran = await ended(process)
    assert (ran.code, ran.out) == (0, "")
    assert json.loads(ran.err.splitlines()[-1])["event"] == "stopped"


async def test_run_with_a_fault(tmp_path: Path) -> None:
    """A fault of mtpmon itself ends it, with a traceback."""
    sabotage = (
        "import mtpmon.watch\n"
        "async def fault(*_, **__): raise LookupError('a fault')\n"
        "mtpmon.watch.scrape = fault"
    )
    config = written(tmp_path / "mtpmon.yaml", "listen: {address: '127.0.0.1:0'}")
    ran = await broken(sabotage, "run", "--config", config)
    assert ran.code == 1
    assert "Traceback" in ran.err
    assert "LookupError: a fault" in ran.err


# --- choosing servers ---------------------------------------------------------------------


@pytest.mark.parametrize("command", ["probe", "doctor"])
@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--url", "http://a", "--config", "x"), "--config: does not go with --url"),
        (("--url", "http://a", "--server", "x"), "--server: does not go with --url"),
        (("--url", "ftp://a"), "--url: 'ftp://a' is not an http or https URL"),
        (("--url", "http://a", "--target-only-url", "http://a"), "--target-only-url: http://a is"),
        (("--url", "http://a", "--api-key-env", "NO_SUCH_VARIABLE"), "variable is not set"),
        (("--target-only-url", "http://a"), "--target-only-url: needs --url"),
        (("--api-key-env", "A"), "--api-key-env: needs --url"),
        (("--server", "big"), "--server: there is no server 'big'; there is local"),
        (("--config", "/nowhere/at/all"), "cannot be read"),
    ],
)
def test_servers_that_cannot_be_chosen(
    capsys: pytest.CaptureFixture[str], command: str, arguments: tuple[str, ...], problem: str
) -> None:
    """Options that contradict each other or name nothing end with 2 and the reason."""
    assert main([command, *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert problem in err


# --- probe --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--prompts", "0"), "--prompts: 0 is not a number of prompts"),
        (("--tasks", "code,poetry"), "--tasks: 'poetry' is not a task"),
        (("--tasks", "code,code"), "--tasks: 'code' is listed twice"),
        (("--tokens", "1"), "--tokens: 1 is"),
        (("--timeout", "soon"), "--timeout: 'soon' is"),
        (("--temperatures", "0,warm"), "--temperatures: 'warm' is"),
        (("--temperatures", "0,3"), "--temperatures: 3"),
        (("--thinking", "on,perhaps"), "--thinking: 'perhaps' is"),
        (("--variants", "default", "--thinking", "on"), "--variants: default does not go with"),
        (("--variants", "default", "--temperatures", "1"), "go with --temperatures"),
    ],
)
def test_probe_options(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], problem: str
) -> None:
    """Values out of range are refused as in a file, by the name of the option."""
    assert main(["probe", *arguments]) == 2
    assert problem in capsys.readouterr().err


async def test_probe_of_servers_that_are_not_to_be_probed(tmp_path: Path) -> None:
    """`probe: false` holds here too, until the server is named."""
    text = "servers: [{name: a, url: 'http://127.0.0.1:9', probe: false}]"
    config = written(tmp_path / "mtpmon.yaml", text)
    ran = await mtpmon("probe", "--config", config)
    assert ran.code == 2
    assert "--server: is needed" in ran.err
    named = await mtpmon("probe", "--config", config, "--server", "a")
    assert named.code == 1


async def test_probe_of_a_server_that_is_not_there() -> None:
    """Failed probes end with 1, after a table of why; the first failure ends the try."""
    ran = await mtpmon("probe", "--url", "http://127.0.0.1:9")
    assert (ran.code, ran.err) == (1, "")
    assert "0 of 40 probes completed" in ran.out
    assert "cannot connect" in ran.out


async def test_failures_in_a_row_end_a_try() -> None:
    """A server that dies on the way is given up after three failures."""
    far_end = FakeLlama(
        events=events("b11434/completion-mtp-stream.sse"), stream_delay_seconds=0.01
    )
    begun = ("POST", "/apply-template")
    arguments = ("probe", "--tokens", "24", "--json", "--url")
    async with far_end.serving() as url, started(*arguments, url) as process:
        # The warm-up, one that is over, one more.
        await until(lambda: far_end.requests.count(begun) >= 3)
        far_end.status = {"/completion": 500}
        ran = await ended(process)
    assert ran.code == 1
    (server,) = json.loads(ran.out)["servers"]
    outcomes = [probe["outcome"] for probe in server["probes"]]
    assert outcomes[0] == "completed"
    assert outcomes[-4:] == ["completed", "failed", "failed", "failed"]
    assert len(outcomes) < 40


@pytest.mark.parametrize(("cost", "below"), [(1.0, False), (8.0, True)])
async def test_probe_fails_below_breakeven(cost: float, below: bool) -> None:
    """Where drafting costs more than it brings, the tables say so, and 1 comes if asked for."""
    async with (
        Simulated(drafting_cost=cost).serving() as url,
        Simulated(draft_n_max=0).serving() as twin,
    ):
        servers = ("--url", url, "--target-only-url", twin)
        arguments = ("probe", *servers, "--tasks", "code,creative", "--prompts", "10")
        fine = await mtpmon(*arguments)
        ran = await mtpmon(*arguments, "--fail-below-breakeven")
    assert (fine.code, ran.code, ran.err) == (0, int(below), "")
    assert ("drafting is below breakeven" in fine.out) == below
    assert ("not recommended" in " ".join(fine.out.split())) == below


async def test_ctrl_c_during_a_probe() -> None:
    """Ctrl-C ends a pass with 130, nothing on standard output and no traceback."""
    far_end = FakeLlama(events=[b'{"content": "a"}'] * 100, stream_delay_seconds=0.2)
    async with far_end.serving() as url, started("probe", "--url", url) as process:
        await until(lambda: ("POST", "/completion") in far_end.requests)
        process.send_signal(signal.SIGINT)
        ran = await ended(process)
    assert (ran.code, ran.out, ran.err) == (130, "", "")


# --- doctor -------------------------------------------------------------------------------


async def test_doctor_of_a_server_that_is_not_there() -> None:
    """A server that cannot be reached is a problem, with what to do."""
    ran = await mtpmon("doctor", "--url", "http://127.0.0.1:9")
    assert (ran.code, ran.err) == (1, "")
    assert "problem  cannot connect" in ran.out
    assert "→ start llama-server there, or correct url" in ran.out
    assert "nothing, while the server cannot be reached" in ran.out


async def test_doctor_lets_sleeping_servers_lie() -> None:
    """A sleeping server is asked for /props and nothing else."""
    far_end = FakeLlama()
    far_end.props["is_sleeping"] = True
    async with far_end.serving() as url:
        ran = await mtpmon("doctor", "--url", url)
    assert ran.code == 0
    assert "warning  the server sleeps" in ran.out
    assert far_end.requests == [("GET", "/props")]


async def test_doctor_of_a_proxy_that_hides_all_but_metrics() -> None:
    """Where nothing but /metrics is passed on, that is what the findings say."""
    status = dict.fromkeys(("/props", "/tokenize", "/apply-template", "/completion"), 404)
    async with FakeLlama(status=status).serving() as url:
        ran = await mtpmon("doctor", "--url", url)
    assert ran.code == 1
    assert "does not answer /props" in ran.out
    assert "problem  fails a test probe: HTTP 404" in ran.out
    assert "figures of probes: they would fail as the test did" in ran.out


# --- demo ---------------------------------------------------------------------------------


async def test_demo_without_a_server(tmp_path: Path) -> None:
    """A llama-server that cannot be run is named, with 2."""
    ran = await mtpmon("demo", "--llama-server", tmp_path / "absent")
    assert (ran.code, ran.out) == (2, "")
    assert "absent is not an executable file" in ran.err


async def test_demo_with_a_server_that_does_not_start(tmp_path: Path) -> None:
    """A llama-server that dies at once ends the demo with 1 and what it said."""
    binary = written(tmp_path / "llama-server", "#!/bin/sh\necho no such luck\nexit 3\n")
    binary.chmod(0o755)
    ran = await mtpmon("demo", "--llama-server", binary, env={"XDG_CACHE_HOME": str(tmp_path)})
    assert (ran.code, ran.out) == (1, "")
    assert "no such luck" in ran.err


async def test_demo_without_its_extra() -> None:
    """Without the packages of the extra, the demo says which to install."""
    ran = await broken("sys.modules['gguf'] = None", "demo")
    assert (ran.code, ran.out) == (2, "")
    assert "pip install 'mtpmon[demo]'" in ran.err
    assert "Traceback" not in ran.err


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf"])
def test_demo_for_no_time(capsys: pytest.CaptureFixture[str], seconds: str) -> None:
    """A length of time is a positive number."""
    assert main(["demo", f"--seconds={seconds}"]) == 2
    assert "--seconds" in capsys.readouterr().err


# --- documentation ------------------------------------------------------------------------

DOCUMENTATION = Path(__file__).parents[1] / "docs" / "commands.md"


@pytest.mark.parametrize("command", COMMANDS)
def test_options_are_documented(capsys: pytest.CaptureFixture[str], command: str) -> None:
    """Every option of a command is in the documentation."""
    with pytest.raises(SystemExit, match="0"):
        main([command, "--help"])
    options = capsys.readouterr().out.partition("options:")[2]
    text = DOCUMENTATION.read_text(encoding="utf-8")
    for option in set(re.findall(r"--[a-z][a-z-]+", options)) - {"--help"}:
        assert option in text


def test_fields_are_documented() -> None:
    """Every field of the JSON document, at any depth, is in the documentation."""
    text = DOCUMENTATION.read_text(encoding="utf-8")
    missing = {name for name in fields(ProbeDocument) if f"`{name}`" not in text}
    assert missing == set()


def fields(kind: Any) -> set[str]:
    """The names of a struct's fields and of those of the structs within."""
    if get_args(kind):
        return set().union(*map(fields, get_args(kind)))
    if not (isinstance(kind, type) and issubclass(kind, msgspec.Struct)):
        return set()
    inner = {field.encode_name: field.type for field in msgspec.structs.fields(kind)}
    return set(inner).union(*map(fields, inner.values()))


# --- bench --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--draft-n-max", "0-3"], "--draft-n-max: '0-3' names no draft lengths; use numbers from"),
        (["--draft-n-max", "deep"], "--draft-n-max: 'deep' names no draft lengths"),
        (["--draft-n-max", "1-999999999999"], "'1-999999999999' names no draft lengths"),
        (["--draft-n-max", "1-17"], "use numbers from 1 to 16, such as 1-5 or 1,2,4"),
        (["--prompts", "0"], "--prompts: 0 is not a number of prompts; use 1 or more"),
        (["--ready", "0"], "--ready: 0 is no length of time; use 1 or more"),
        (["--tokens", "0"], "--tokens: "),
        (["--model", "absent.gguf"], "--model: absent.gguf is no file; name a GGUF file"),
        (["--llama-server", "/absent"], "/absent"),
    ],
)
async def test_bench_refuses_what_makes_no_sense(arguments: list[str], words: str) -> None:
    """Before any server starts."""
    ran = await mtpmon("bench", "--llama-server", "/bin/true", *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert words in ran.err


async def test_bench_tells_why_a_server_did_not_start(tmp_path: Path) -> None:
    """With what it printed, and nothing that could steer a terminal."""
    model = written(tmp_path / "m.gguf", "GGUF")
    fake = written(
        tmp_path / "llama-server", "#!/bin/sh\nprintf 'no such \\033[2Jmodel\\n'; exit 3\n"
    )
    fake.chmod(0o755)
    ran = await mtpmon("bench", "--llama-server", fake, "--model", model)
    assert (ran.code, ran.out) == (1, "")
    assert "exit code 3" in ran.err
    assert "\033" not in ran.err
