# pyright: reportMissingImports=false
"""vLLM's HTTP interface, as far as an engine needs it: tokens in, tokens out, pause, weights.

Invariant: an answer that does not say what it must (equal lengths, a version for every token) is an error, never mended.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import aiohttp

from headrace.errors import InferenceError, Outcome
from headrace.inference.vllm.plugin import BACKEND
from headrace.records.ids import Address

_PREFIX = "generate-tokens-"
"""What the server puts before a request id of ours."""


class Span(NamedTuple):
    """Tokens [start, stop) that one version sampled."""

    version: int
    start: int
    stop: int


class Piece(NamedTuple):
    """What one request to the server gave.

    Attributes:
        ids: sampled tokens.
        logprobs: of each, after temperature.
        spans: cover `ids`.
        finish: the server's word: stop, length or abort.
    """

    ids: list[int]
    logprobs: list[float]
    spans: list[Span]
    finish: str


class VllmClient:
    """One server behind a Unix socket."""

    def __init__(self, socket_path: str) -> None:
        """Inside a running event loop."""
        # The server closes what was idle for five seconds; a request that meets that moment would be lost.
        connector = aiohttp.UnixConnector(socket_path, force_close=True, limit=0)
        timeout = aiohttp.ClientTimeout(total=None)
        self._session = aiohttp.ClientSession("http://engine", connector=connector, timeout=timeout)

    async def close(self) -> None:
        """Ends what is open."""
        await self._session.close()

    async def is_up(self) -> bool:
        """Whether it answers."""
        try:
            async with self._session.get("/health") as answer:
                return answer.status == 200
        except aiohttp.ClientError:
            return False

    async def generate(self, name: str, prompt: Sequence[int], sampling: Mapping[str, Any], salt: str) -> Piece:
        """Tokens after the prompt. `salt` separates prefix caches.

        Raises:
            InferenceError: when the server refuses or dies.
        """
        body = {
            "request_id": name,
            "token_ids": list(prompt),
            "cache_salt": salt,
            "sampling_params": {"logprobs": 0, "ignore_eos": True, "detokenize": False, **sampling},
        }
        return _piece(await self._post("/inference/v1/generate", body))

    async def score(self, ids: Sequence[int]) -> list[float]:
        """Log-probs of the tokens after the first, at temperature 1."""
        sampling = {"prompt_logprobs": 0, "max_tokens": 1, "temperature": 1.0, "detokenize": False}
        body = {"token_ids": list(ids), "sampling_params": sampling}
        answer = await self._post("/inference/v1/generate", body)
        rows: list[Any] = answer.get("prompt_logprobs") or [None]
        found = rows[1:]
        if len(found) != len(ids) - 1:
            raise InferenceError(f"vllm: {len(found)} prompt log-probs for {len(ids)} tokens")
        return [float(row[str(token)]["logprob"]) for row, token in zip(found, ids[1:], strict=True)]

    async def abort(self, names: Sequence[str]) -> None:
        """Ends requests at the next token; each answers with what it has."""
        await self._post("/abort_requests", {"request_ids": [_PREFIX + name for name in names]})

    async def pause(self, *, keep: bool) -> None:
        """Stops at a token boundary: freezes what runs, or ends it."""
        await self._post(f"/pause?mode={'keep' if keep else 'abort'}", {})

    async def resume(self) -> None:
        """Takes the pause back."""
        await self._post("/resume", {})

    async def init_weights(self) -> None:
        """Once, before the first weights."""
        await self._post("/init_weight_transfer_engine", {"init_info": {}})

    async def load(self, path: str, address: Address, version: int) -> None:
        """Weights from a file, as a version, into a paused server."""
        await self._post("/start_weight_update", {})
        await self._post("/update_weights", {"update_info": {"path": path, "address": address}})
        await self._post("/finish_weight_update", {"weight_version": str(version)})

    async def _post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        try:
            async with self._session.post(path, json=body) as answer:
                if answer.status == 200:
                    return await answer.json()
                outcome = Outcome.REJECTED if 400 <= answer.status < 500 else Outcome.LOST
                text = (await answer.text())[:500]
                raise InferenceError(f"vllm: {path} answered {answer.status}: {text}", outcome)
        except (aiohttp.ClientError, OSError) as error:
            raise InferenceError(f"vllm: {path}: {type(error).__name__}: {error}", Outcome.LOST) from error


def server_arguments(model: str, socket_path: str, *, slots: int, context: int, dtype: str) -> list[str]:
    """Arguments of `vllm.entrypoints.openai.api_server`. Weights are random until the first version is loaded."""
    # No chunked prefill: on a CPU, a request that has a seed and whose prompt was cut by a full step ends the server with
    # "CPU Generator does not use offset" (vLLM 0.32, gpu_model_runner.py, _bookkeeping_sync).
    return [
        *("--model", model, "--load-format", "dummy", "--skip-tokenizer-init", "--generation-config", "vllm"),
        *("--dtype", dtype, "--enforce-eager", "--max-model-len", str(context), "--max-num-seqs", str(slots)),
        *("--no-enable-chunked-prefill", "--enable-scale-out"),
        *("--logprobs-mode", "processed_logprobs", "--uds", socket_path),
        *("--weight-transfer-config", f'{{"backend": "{BACKEND}"}}', "--disable-uvicorn-access-log"),
    ]


def _piece(answer: Mapping[str, Any]) -> Piece:
    choice = answer["choices"][0]
    ids: list[int] = choice["token_ids"] or []
    content = (choice["logprobs"] or {}).get("content") or ()
    logprobs = [float(item["logprob"]) for item in content]
    if len(logprobs) != len(ids) or [item["token_id"] for item in content] != ids:
        raise InferenceError(f"vllm: {len(ids)} tokens and {len(logprobs)} log-probs, which must be of the same tokens")
    spans = [Span(int(span["version"]), span["start"], span["end"]) for span in choice["weight_versions"] or ()]
    edges = [0, *(span.stop for span in spans)]
    if [span.start for span in spans] != edges[:-1] or edges[-1] != len(ids):
        raise InferenceError(f"vllm: version spans {spans} do not cover {len(ids)} tokens")
    return Piece(ids, logprobs, spans, choice["finish_reason"])
