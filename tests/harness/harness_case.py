"""A harness with a calculator and a file tool, and the segments that an engine would hand back."""

import numpy as np

from headrace.harness import ChatMLHarness, open_harness
from headrace.records.arrays import IntArray, float32_bytes, int32_bytes
from headrace.records.harness import ToolSchema
from headrace.records.ids import PolicyId, PolicyRef
from headrace.records.segment import FinishReason, Origin, Sampling, TokenSegment
from headrace.records.task import Budget, Task

CALCULATOR = ToolSchema(
    "calculator",
    "Evaluates one arithmetic expression.",
    '{"type":"object","properties":{"expression":{"type":"string","maxLength":200}},"required":["expression"]}',
)
WRITE = ToolSchema(
    "write",
    "Writes a file.",
    '{"type":"object","properties":{"path":{"type":"string","pattern":"^[a-z.]+$"},"lines":{"type":"array",'
    '"items":{"type":"string"}},"mode":{"type":"integer","minimum":0,"maximum":511}},"required":["path"],'
    '"additionalProperties":false}',
)
CONTROLS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
)


def make_harness(**options: object) -> ChatMLHarness:
    return open_harness("chatml", dict(options), (CALCULATOR, WRITE), None)


def make_task(question: str = "What is 2 + 3?", **budget: int) -> Task:
    return Task("chain_sum", "easy", 0, 0, question, Budget(**budget), "sandbox")


def call_text(tool: str, **arguments: object) -> str:
    import json

    return json.dumps({"name": tool, "arguments": arguments})


def ids_of(harness: ChatMLHarness, *parts: str | int) -> IntArray:
    """Ids of ordinary text and control ids, as a policy might sample them."""
    return np.array(harness.codec.encode_markup(*parts), dtype=np.int32)


def sampled(
    ids: IntArray, version: int = 0, finish: FinishReason | None = FinishReason.STOP, logprob: float = -0.5
) -> TokenSegment:
    return TokenSegment(
        Origin.POLICY,
        int32_bytes(ids),
        behavior_logprobs=float32_bytes([logprob] * len(ids)),
        policy=PolicyRef(PolicyId("policy"), version),
        context_version_min=version,
        sampling=Sampling(),
        finish=finish,
    )
