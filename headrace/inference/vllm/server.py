"""The server's process: started behind a Unix socket, warmed up, ended with everything that it started.

Invariant: no process of the server outlives `stop`; if this process is killed, the kernel kills the server.
"""

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from headrace.errors import InferenceError, Outcome
from headrace.inference.vllm.client import VllmClient, server_arguments
from headrace.inference.vllm.options import VllmOptions
from headrace.processes.serve import die_with_parent

_ASK_AGAIN_S = 0.25
_EXIT_GRACE_S = 5.0


class VllmServer:
    """A running vLLM.

    Attributes:
        client: speaks to it.
    """

    def __init__(self, process: "subprocess.Popen[bytes]", folder: str, client: VllmClient) -> None:
        """Only `start` makes one."""
        self._process = process
        self._folder = folder
        self.client = client

    @classmethod
    async def start(cls, options: VllmOptions, model: Path) -> "VllmServer":
        """A server that answers and has generated once.

        Raises:
            InferenceError: REJECTED when it died or did not answer in time.
        """
        folder = tempfile.mkdtemp(prefix="headrace-vllm-")
        socket_path = str(Path(folder) / "s")
        arguments = server_arguments(
            str(model), socket_path, slots=options.slots, context=options.context, dtype=options.dtype
        )
        process = subprocess.Popen(  # noqa: ASYNC220 - once, before anything runs
            [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *arguments],
            stdin=subprocess.DEVNULL,
            env=_environment(options, folder),
            preexec_fn=die_with_parent,  # noqa: PLW1509 - no thread runs yet
        )
        server = cls(process, folder, VllmClient(socket_path))
        try:
            async with asyncio.timeout(options.start_timeout_s):
                await server._wait_up()
                await server.client.score([0, 0])  # the first request takes as long as a hundred others
                await server.client.init_weights()
        except TimeoutError:
            await server.stop()
            raise InferenceError(
                f"vllm: no answer within inference.options.start_timeout_s = {options.start_timeout_s} s",
                Outcome.REJECTED,
            ) from None
        except BaseException:
            await server.stop()
            raise
        return server

    async def stop(self) -> None:
        """Ends it, first kindly."""
        await self.client.close()
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_EXIT_GRACE_S)
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def kill_all(self) -> None:
        """Kills the server, everything that it started and this process, at once, and leaves no file behind."""
        shutil.rmtree(self._folder, ignore_errors=True)
        os.killpg(os.getpgrp(), signal.SIGKILL)

    def wait_dead(self) -> int:
        """Its exit status, once it is gone; blocks."""
        return self._process.wait()

    async def _wait_up(self) -> None:
        """The server says nothing when it is ready; it has to be asked."""
        while not await self.client.is_up():
            if self._process.poll() is not None:
                raise InferenceError(f"vllm ended with status {self._process.returncode}", Outcome.REJECTED)
            await asyncio.sleep(_ASK_AGAIN_S)


def _environment(options: VllmOptions, folder: str) -> Mapping[str, str]:
    return {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "HOME": folder,
        "HF_HUB_OFFLINE": "1",
        "VLLM_CPU_KVCACHE_SPACE": str(options.cache_gib),
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_SERVER_DEV_MODE": "1",  # pause, resume and weight updates are behind it
        "VLLM_LOGGING_LEVEL": "ERROR",  # what it says last is quoted when it dies
        "OMP_NUM_THREADS": str(options.num_threads),
    }
