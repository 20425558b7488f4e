"""The embedded engine against `transformers` generate: rectangular batches, and a ragged multi-turn load.

Run: `python -m benchmarks.engine [--quick] [--json PATH]`. One thread each, interleaved, medians. The figure is CPU
seconds of this process. Tool waits are added as stated time, so that a busy machine does not change them: static batches
wait for the slowest tool of the batch, the engine goes on with the others. Greedy tokens of both are asserted equal first,
and the engine delivers the log-prob of every token besides.
"""

import argparse
import dataclasses
import heapq
import json
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import safetensors.torch
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from headrace.inference.core import EngineCore
from headrace.inference.options import EngineOptions
from headrace.records.arrays import int32_bytes
from headrace.records.ids import PolicyId, PolicyRef
from headrace.records.provenance import address_of
from headrace.records.segment import GenerateRequest, Origin, Sampling, TokenSegment
from headrace.records.streams import stream, stream_key

CONTEXT = 512
VOCABULARY = 512
PROMPT, ANSWER = 48, 64
POLICY = PolicyId("policy")
Ints = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True)
class Bench:
    """Both sides on the same weights."""

    model: PreTrainedModel
    core: EngineCore

    @classmethod
    def create(cls, folder: Path, *, kv_heads: int, slots: int) -> "Bench":
        config = LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=128,
            intermediate_size=384,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=kv_heads,
            max_position_embeddings=CONTEXT,
            initializer_range=0.1,
        )
        config.save_pretrained(folder)
        torch.manual_seed(7)
        model = LlamaForCausalLM(config).eval()
        data = safetensors.torch.save({name: value.contiguous() for name, value in model.state_dict().items()})
        (folder / address_of(data)).write_bytes(data)
        core = EngineCore(
            EngineOptions(slots=slots, context=CONTEXT), folder, lambda address: folder / address, time.monotonic
        )
        core.stage(PolicyRef(POLICY, 0), address_of(data))
        core.activate(PolicyRef(POLICY, 0), frozenset())
        return cls(model, core)


def request(name: str, ids: Ints, max_tokens: int, temperature: float) -> GenerateRequest:
    return GenerateRequest(
        request_id=name,
        prefix=(TokenSegment(Origin.TEMPLATE, int32_bytes(ids.astype(np.int32))),),
        max_tokens=max_tokens,
        sampling=Sampling(temperature),
        stop_ids=(),
        policy_id=POLICY,
        min_version=0,
        pin_version=None,
        affinity=name,
        seed_key=stream_key(7, name).to_bytes(16, "little"),
    )


def cpu_s(work: Callable[[], object]) -> float:
    began_s = time.process_time()
    work()
    return time.process_time() - began_s


def engine_rectangle(core: EngineCore, prompts_BT: Ints, temperature: float, run: str) -> Ints:
    """Tokens [B, ANSWER]."""
    for row, ids_T in enumerate(prompts_BT):
        core.submit(request(f"{run}.{row}", ids_T, ANSWER, temperature))
    found: dict[str, Ints] = {}
    while not core.is_idle:
        for output in core.step():
            if isinstance(output.item, TokenSegment):
                found[output.request_id] = output.item.ids_T.astype(np.int64)
    return np.stack([found[f"{run}.{row}"] for row in range(len(prompts_BT))])


def generate_rectangle(model: PreTrainedModel, prompts_BT: Ints, *, do_sample: bool, num_tokens: int = ANSWER) -> Ints:
    """Tokens [B, num_tokens]; prompts are padded with -1 on the left."""
    is_real = torch.from_numpy(prompts_BT >= 0)
    with torch.inference_mode():
        output = model.generate(  # type: ignore[operator]
            torch.from_numpy(np.maximum(prompts_BT, 0)),
            attention_mask=is_real.long(),
            max_new_tokens=num_tokens,
            do_sample=do_sample,
            top_k=0 if do_sample else None,
            eos_token_id=None,
            pad_token_id=0,
        )
    return output[:, prompts_BT.shape[1] :].numpy()


def measure_rectangle(bench: Bench, batch: int, repeats: int) -> dict[str, float]:
    """Tokens per CPU second of both at one batch size."""
    draws = stream(7, "bench", "rectangle", batch)
    prompts_BT = draws.integers(0, VOCABULARY, (batch, PROMPT))
    mine = engine_rectangle(bench.core, prompts_BT, 0.0, f"greedy{batch}")
    theirs = generate_rectangle(bench.model, prompts_BT, do_sample=False)
    assert (mine == theirs).all(), f"batch {batch}: greedy tokens differ"
    engine, peer = [], []
    for repeat in range(repeats):
        # Fresh prompts, or the engine would find its prefix in its cache.
        prompts_BT = draws.integers(0, VOCABULARY, (batch, PROMPT))
        name = f"rectangle{batch}.{repeat}"
        engine.append(cpu_s(lambda name=name, ids=prompts_BT: engine_rectangle(bench.core, ids, 1.0, name)))
        peer.append(cpu_s(lambda ids=prompts_BT: generate_rectangle(bench.model, ids, do_sample=True)))
    return _figures(f"rectangle, batch {batch}", batch * ANSWER, engine, peer)


@dataclasses.dataclass(frozen=True)
class Episode:
    """What one episode does, the same for both sides."""

    prompt: Ints
    lengths: tuple[int, ...]
    observations: tuple[Ints, ...]
    tool_s: tuple[float, ...]


def episodes(num_groups: int, group_size: int) -> list[Episode]:
    """Groups that share a prompt; ragged turns, observations of a few tokens, tools of 5 to 100 ms."""
    draws = stream(7, "bench", "episodes")
    made = []
    for _ in range(num_groups):
        prompt = draws.integers(0, VOCABULARY, int(draws.integers(40, 90)))
        for _ in range(group_size):
            turns = int(draws.integers(1, 5))
            lengths = tuple(int(n) for n in np.clip(draws.lognormal(2.9, 0.7, turns), 4, 80))
            observations = tuple(draws.integers(0, VOCABULARY, int(draws.integers(5, 20))) for _ in range(turns - 1))
            tools = tuple(float(s) for s in np.clip(draws.lognormal(-4.0, 0.8, turns - 1), 0.005, 0.1))
            made.append(Episode(prompt, lengths, observations, tools))
    return made


def engine_episodes(core: EngineCore, load: list[Episode], run: str, in_flight: int) -> tuple[float, list[list[Ints]]]:
    """Seconds, tool waits included, and the sampled turns of each episode."""
    sampled: list[list[Ints]] = [[] for _ in load]
    sequences = [episode.prompt for episode in load]
    waiting: list[tuple[float, int]] = []
    clock_s, started, ended = 0.0, 0, 0

    def start(index: int) -> None:
        step = len(sampled[index])
        core.submit(request(f"{run}.{index}/{step}", sequences[index], load[index].lengths[step], 0.0))

    while ended < len(load):
        began_s = time.process_time()
        while started < len(load) and started - ended < in_flight:
            start(started)
            started += 1
        while waiting and waiting[0][0] <= clock_s:
            start(heapq.heappop(waiting)[1])
        for output in core.step():
            if not isinstance(output.item, TokenSegment):
                continue
            index = int(output.request_id.partition("/")[0].rpartition(".")[2])
            ids, step = output.item.ids_T.astype(np.int64), len(sampled[index])
            sampled[index].append(ids)
            if step + 1 == len(load[index].lengths):
                ended += 1
                continue
            sequences[index] = np.concatenate([sequences[index], ids, load[index].observations[step]])
            heapq.heappush(waiting, (clock_s + load[index].tool_s[step], index))
        clock_s += time.process_time() - began_s
        if core.is_idle and waiting:
            clock_s = max(clock_s, waiting[0][0])
    return clock_s, sampled


def static_episodes(model: PreTrainedModel, load: list[Episode], batch: int) -> tuple[float, list[list[Ints]]]:
    """The same by static batches: every turn waits for the longest answer and the slowest tool of its batch."""
    clock_s, sampled = 0.0, [[] for _ in load]
    for first in range(0, len(load), batch):
        members = list(range(first, min(first + batch, len(load))))
        sequences = {index: load[index].prompt for index in members}
        for step in range(max(len(load[index].lengths) for index in members)):
            members = [index for index in members if step < len(load[index].lengths)]
            began_s = time.process_time()
            width = max(len(sequences[index]) for index in members)
            padded_BT = np.full((len(members), width), -1, dtype=np.int64)
            for row, index in enumerate(members):
                padded_BT[row, width - len(sequences[index]) :] = sequences[index]
            longest = max(load[index].lengths[step] for index in members)
            tokens_BT = generate_rectangle(model, padded_BT, do_sample=False, num_tokens=longest)
            slowest_s = 0.0
            for row, index in enumerate(members):
                ids = tokens_BT[row, : load[index].lengths[step]]
                sampled[index].append(ids)
                if step + 1 < len(load[index].lengths):
                    sequences[index] = np.concatenate([sequences[index], ids, load[index].observations[step]])
                    slowest_s = max(slowest_s, load[index].tool_s[step])
            clock_s += time.process_time() - began_s + slowest_s
    return clock_s, sampled


def measure_ragged(
    bench: Bench, repeats: int, batch: int, *, num_groups: int = 16, group_size: int = 8
) -> dict[str, float]:
    """Useful tokens per second of both on the multi-turn load."""
    load = episodes(num_groups, group_size)
    _, mine = engine_episodes(bench.core, load, "check", batch)
    _, theirs = static_episodes(bench.model, load, batch)
    for index, (left, right) in enumerate(zip(mine, theirs, strict=True)):
        assert all((a == b).all() for a, b in zip(left, right, strict=True)), f"episode {index}: greedy tokens differ"
    engine, peer = [], []
    for repeat in range(repeats):
        engine.append(engine_episodes(bench.core, load, f"ragged{repeat}", batch)[0])
        peer.append(static_episodes(bench.model, load, batch)[0])
    num_tokens = sum(sum(episode.lengths) for episode in load)
    return _figures(f"ragged multi-turn, {batch} in flight", num_tokens, engine, peer)


def _figures(name: str, num_tokens: int, engine: list[float], peer: list[float]) -> dict[str, float]:
    ratios = [theirs / mine for mine, theirs in zip(engine, peer, strict=True)]
    mine, theirs, ratio = (statistics.median(values) for values in (engine, peer, ratios))
    spread = f"({min(ratios):.2f} to {max(ratios):.2f})"
    print(f"{name:36} {num_tokens / mine:8.0f} {num_tokens / theirs:8.0f} {ratio:6.2f}  {spread}", flush=True)
    return {"engine_tokens_per_s": num_tokens / mine, "generate_tokens_per_s": num_tokens / theirs, "ratio": ratio}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="5 repeats and half of the ragged load")
    parser.add_argument("--kv-heads", type=int, default=4)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    repeats = 5 if arguments.quick else 9
    results: dict[str, object] = {
        "command": " ".join(sys.argv),
        "machine": platform.processor() or platform.machine(),
        "torch": torch.__version__,
        "repeats": repeats,
    }
    print(f"{'':36} {'engine':>8} {'generate':>8} {'ratio':>6}   tokens per CPU second, median of {repeats}")
    with tempfile.TemporaryDirectory() as folder:
        for batch in (1, 8, 32):
            bench = Bench.create(Path(folder), kv_heads=arguments.kv_heads, slots=batch)
            results[f"rectangle_{batch}"] = measure_rectangle(bench, batch, repeats)
        bench = Bench.create(Path(folder), kv_heads=arguments.kv_heads, slots=64)
        results["ragged"] = measure_ragged(bench, repeats, 32, num_groups=8 if arguments.quick else 16)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
