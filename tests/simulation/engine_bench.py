"""A simulated engine with version 0 active, and what it needs."""

from collections.abc import Sequence

from headrace.ports import Inference, TurnTiming
from headrace.records.ids import EpisodeId, GroupId, PolicyId, PolicyRef
from headrace.records.segment import GenerateRequest, Sampling, TokenSegment
from headrace.simulation.costs import EngineCost
from headrace.simulation.device import SharedDevice
from headrace.simulation.harness import SimulatedHarness
from headrace.simulation.inference import SimulatedInference
from headrace.simulation.laws import Constant
from headrace.simulation.tasks import SimulatedTasks
from headrace.simulation.weights import SimulatedWeights, WeightShelf
from headrace.simulation.workload import Draws, Stratum, Workload

POLICY = PolicyId("policy")
FLAT = EngineCost(slots=4, decode=((4, 4.0),))
"""One token per second, whatever the load."""


def workload(tokens: float = 10.0, **options) -> Workload:
    return Workload(name="w", tokens=Constant(value=tokens), strata=(Stratum(name="all"),), **options)


class Bench:
    """An engine with version 0 active, and what it needs."""

    def __init__(self, cost: EngineCost = FLAT, load: Workload | None = None, device: SharedDevice | None = None):
        self.draws = Draws(load or workload(), 7)
        self.shelf = WeightShelf()
        self.engine = SimulatedInference(self.draws, cost, self.shelf, policy_id=POLICY, device=device)
        self.harness = SimulatedHarness(self.draws)
        self.tasks = SimulatedTasks(self.draws)

    async def publish(self, version: int, keep: Sequence[int] = ()):
        address = self.shelf.put(SimulatedWeights(POLICY, version, "", "p"))
        await self.engine.stage(PolicyRef(POLICY, version), address, 1e6)
        return await self.engine.activate(PolicyRef(POLICY, version), frozenset(keep), 1e6)

    def request(self, ordinal: int = 0, step: int = 0, **options) -> GenerateRequest:
        fields = {
            "request_id": f"{EpisodeId(GroupId('train', ordinal), 0, 0)}/{step}",
            "prefix": self.harness.open(self.tasks.task(ordinal)),
            "max_tokens": 1 << 20,
            "sampling": Sampling(),
            "stop_ids": self.harness.stop_ids,
            "policy_id": POLICY,
            "min_version": 0,
            "pin_version": None,
            "affinity": f"train.{ordinal}",
            "seed_key": b"\0" * 16,
        }
        return GenerateRequest(**{**fields, **options})


async def collect(
    engine: Inference, request: GenerateRequest, timeout_s: float = 1e6
) -> tuple[list[TokenSegment], TurnTiming]:
    *segments, timing = [item async for item in engine.generate(request, timeout_s)]
    assert isinstance(timing, TurnTiming)
    for segment in segments:
        assert isinstance(segment, TokenSegment)
        segment.check()
    assert all(segment.finish is None for segment in segments[:-1])
    return segments, timing  # type: ignore[return-value]
