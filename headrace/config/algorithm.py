"""The learning signal in the configuration.

Invariant: what `check` has passed contradicts itself nowhere; a number that nothing would read is refused.
"""

from typing import Literal

from headrace.config.sections import Section
from headrace.errors import ConfigError
from headrace.records.experience import Replay, check_replay
from headrace.records.gate import Gate
from headrace.records.learning.advantages import AdvantageName, Critic, EstimatorOptions
from headrace.records.learning.choice import tag_of
from headrace.records.learning.corrections import Anchor, Correction, check_corrections
from headrace.records.learning.filters import Filters, check_filters
from headrace.records.learning.guard import Guard
from headrace.records.learning.kl import Kl, check_kl
from headrace.records.learning.losses import USES_CLIP, AggregationName, ClipLoss, Loss
from headrace.records.weighing import StratumWeights


class AlgorithmSection(Section, frozen=True):
    """Attributes:
    advantage: from the rewards of a group to advantages; `mean` is r - mean, `grpo` divides it by the deviation.
    clip_low: lower clip distance of the probability ratio.
    clip_high: upper clip distance.
    aggregation: how token losses become one number.
    aggregation_tokens: the constant length of `seq_mean_token_sum_norm`; 0 with every other aggregation.
    learning_rate: of AdamW.
    max_grad_norm: gradient norm bound.
    reward_rule: how score components become a reward.
    steps: optimizer steps of one plan, each on its own share of the groups.
    estimator: numbers of the advantage.
    loss: the policy loss.
    anchor: what the ratio is taken against: `behavior`, the recorded behaviour of each token; `old`, the policy before the
        plan's first step; `interpolated`, a mixture of the two one version back. The latter two need a correction for
        the difference to the behaviour.
    corrections: weights and masks for data of another version or engine.
    kl: distance to a reference model.
    filters: what never trains, or trains with another reward.
    critic: the value model of `gae`.
    guard: when an update pauses the run.
    gate: bounds on the raw sequence weights of a batch, and what becomes of rows beyond them.
    stratum_weights: how much rows count by the difficulty of their task.
    replay: which groups that trained before train again; needs a correction that weighs by the ratio to the behaviour.
    """

    advantage: AdvantageName = "mean"
    clip_low: float = 0.2
    clip_high: float = 0.28
    aggregation: AggregationName = "token_mean"
    aggregation_tokens: int = 0
    learning_rate: float = 3e-4
    max_grad_norm: float = 1.0
    reward_rule: Literal["mean", "product", "first"] = "mean"
    steps: int = 1
    estimator: EstimatorOptions = EstimatorOptions()
    loss: Loss = ClipLoss()
    anchor: Anchor = "behavior"
    corrections: tuple[Correction, ...] = ()
    kl: Kl = Kl()
    filters: Filters = Filters()
    critic: Critic = Critic()
    guard: Guard = Guard()
    gate: Gate = Gate()
    stratum_weights: StratumWeights = StratumWeights()
    replay: Replay = Replay()

    def check(self) -> None:
        """Raises ConfigError for choices that contradict each other or numbers out of bounds."""
        if not 0.0 < self.learning_rate < 1.0:
            raise ConfigError(f"algorithm.learning_rate is {self.learning_rate}; it must lie in (0, 1)")
        if self.clip_low < 0 or self.clip_high < 0:
            raise ConfigError(
                f"algorithm.clip_low and clip_high are {self.clip_low}, {self.clip_high}; distances are >= 0"
            )
        default = AlgorithmSection()
        is_clip_set = (self.clip_low, self.clip_high) != (default.clip_low, default.clip_high)
        if is_clip_set and not isinstance(self.loss, USES_CLIP):
            raise ConfigError(
                f"algorithm.clip_low and clip_high are set, but the loss {tag_of(self.loss)} reads neither"
            )
        if (self.aggregation == "seq_mean_token_sum_norm") != (self.aggregation_tokens > 0):
            raise ConfigError(
                f"algorithm.aggregation_tokens is {self.aggregation_tokens} with {self.aggregation}; "
                "seq_mean_token_sum_norm needs at least 1, every other aggregation 0"
            )
        if (self.advantage == "gdpo") != bool(self.estimator.component_weights):
            raise ConfigError(
                f"algorithm.estimator.component_weights names {sorted(self.estimator.component_weights)} with advantage "
                f"{self.advantage}; gdpo needs at least one component, every other advantage none"
            )
        if self.advantage != "gae" and self.critic != Critic():
            raise ConfigError(f"algorithm.critic is set, but advantage {self.advantage} has no critic; gae has one")
        if self.steps < 1:
            raise ConfigError(f"algorithm.steps is {self.steps}; it must be at least 1")
        if not self.stratum_weights.cap >= 1:
            raise ConfigError(f"algorithm.stratum_weights.cap is {self.stratum_weights.cap}; it must be at least 1")
        check_corrections(self.corrections, self.anchor)
        check_replay(self.replay, self.corrections, self.kl, self.advantage)
        check_kl(self.kl)
        check_filters(self.filters)
