"""Main of the child that owns a vLLM server; run by the interpreter that has vLLM."""

import asyncio
import sys
import threading
import traceback
from pathlib import Path

from headrace.config import decode_options
from headrace.inference.vllm.adapter import VllmInference
from headrace.inference.vllm.options import VllmOptions
from headrace.inference.vllm.serve import serve_port
from headrace.inference.vllm.server import VllmServer
from headrace.processes.serve import Server
from headrace.runtime.workers.settings import EngineSettings, parse
from headrace.store.blobs import FileBlobs


def main() -> None:
    """Serves one engine."""
    settings, fd = parse(EngineSettings)
    asyncio.run(_serve(settings, fd))


async def _serve(settings: EngineSettings, fd: int) -> None:
    options = decode_options(settings.options, VllmOptions, "inference.options")
    blobs = FileBlobs(Path(settings.blobs))
    vllm = await VllmServer.start(options, Path(settings.policy))

    def watch() -> None:
        sys.stderr.write(f"vllm ended with status {vllm.wait_dead()}\n")
        vllm.kill_all()  # a child without its server is worth nothing, and its parent must know at once

    watcher = threading.Thread(target=watch, name="server", daemon=True)
    watcher.start()
    try:
        await serve_port(VllmInference(vllm.client, options, blobs.path), Server(fd))
    except Exception:
        traceback.print_exc()  # nobody else will: this process is about to be killed
    finally:
        vllm.kill_all()


if __name__ == "__main__":
    main()
