"""AReaL: its `WorkflowExecutor` with a workflow that yields once; rejected episodes come back as None."""

import asyncio
import os
from collections.abc import Callable
from typing import Any

from serve import serve


def prepare(load: dict[str, Any]) -> Callable[[], dict[str, Any]]:
    import time

    import torch
    from areal.api.cli_args import InferenceEngineConfig
    from areal.infra.workflow_executor import WorkflowExecutor

    torch.set_num_threads(1)
    os.environ.setdefault("AREAL_LOG_LEVEL", "ERROR")
    one = {
        "input_ids": torch.zeros((1, 1), dtype=torch.long),
        "attention_mask": torch.ones((1, 1), dtype=torch.long),
    }

    class Engine:
        def get_version(self) -> int:
            return 0

    class Empty:
        async def arun_episode(self, engine: Any, data: dict[str, Any]) -> dict[str, Any] | None:
            await asyncio.sleep(0)
            return one if data["is_accepted"] else None

    def run() -> dict[str, Any]:
        config = InferenceEngineConfig(
            max_concurrent_rollouts=load["in_flight"],
            consumer_batch_size=load["episodes"],
            max_head_offpolicyness=1,
            queue_size=2 * load["episodes"],
        )
        workflow = Empty()
        executor = WorkflowExecutor(config, Engine())
        executor.initialize()
        began_s = time.process_time()
        for index in range(load["episodes"]):
            executor.submit({"is_accepted": index % load["rejected_every"] != 0}, workflow)
        made = executor.wait(load["episodes"], timeout=60)
        used_s = time.process_time() - began_s
        stats = executor.staleness_manager.get_stats()
        executor.destroy()
        assert (stats.accepted, stats.enqueued, stats.running) == (sum(x is not None for x in made), 0, 0), stats
        return {"cpu_s": used_s, "accepted": stats.accepted, "rejected": stats.rejected}

    return run


if __name__ == "__main__":
    serve("areal", prepare)
