"""Whether the `llama-server` found runs on this machine: ``python -m mtpmon.demo.smoke``.

A ready binary may use instructions that a processor lacks, and dies only when it first
computes. So the small model is loaded, once.
"""

import asyncio
import sys

from mtpmon.demo.model import ModelSpec, cached_model
from mtpmon.demo.server import LlamaServer, ServerError


async def smoke() -> str:
    """Start the server with the demo's model.

    Returns:
        The binary that ran.

    Raises:
        ServerError: There is none, or it does not run here.
    """
    async with LlamaServer(None, cached_model(ModelSpec())) as server:
        return str(server.binary)


def main() -> int:
    """Print the binary, or why it does not run."""
    try:
        print(asyncio.run(smoke()))  # noqa: T201  the answer
    except ServerError as error:
        print(error, file=sys.stderr)  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
