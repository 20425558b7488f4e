"""The learning rate of each update, from the schedulers of `transformers`.

Invariant: the rate is a function of the update's number alone, so a restored trainer goes on with the same rates. The first
update is number 1: it moves already with the first part of the warm-up, and the last one of a falling scheduler still moves.
"""

from collections.abc import Callable

import torch
from torch.optim.lr_scheduler import LambdaLR
from transformers import get_scheduler

from headrace.errors import ConfigError
from headrace.training.options import TrainerOptions


def rate_factors(options: TrainerOptions) -> Callable[[int], float]:
    """Factor of the base learning rate for update 1, 2, …

    Raises:
        ConfigError: when the scheduler does not take the options.
    """
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    name = options.scheduler
    if name == "constant":
        return lambda update: 1.0
    has_warmup = options.warmup_updates
    # One more than there are updates: at the very end most factors are 0, and the last update would be lost.
    total = options.total_updates + 1 if options.total_updates else None
    try:
        scheduler = get_scheduler(
            name,
            optimizer,
            num_warmup_steps=has_warmup,
            num_training_steps=total,
            scheduler_specific_kwargs=dict(options.scheduler_options) or None,
        )
    except (TypeError, ValueError) as error:
        raise ConfigError(f"trainer.scheduler {name} with {options.scheduler_options}: {error}") from error
    assert isinstance(scheduler, LambdaLR), "every named scheduler is a function of the update's number"
    (factor,) = scheduler.lr_lambdas
    return lambda update: float(factor(update))
