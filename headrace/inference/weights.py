"""The versions of one policy that an engine holds: staged, current, kept for pinned requests.

Invariant: a version number stands for one content address for ever, and its weights were read from the very bytes that
hash to that address.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import safetensors
import safetensors.torch
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from headrace.errors import ConfigError, InferenceError, IntegrityError, Outcome
from headrace.inference.cache import CacheShape
from headrace.inference.forward import Forward
from headrace.inference.options import EngineOptions
from headrace.records.ids import Address, PolicyRef
from headrace.records.provenance import check_address

_UNSUPPORTED_ROPE = frozenset({"dynamic", "longrope"})


class _Copy(NamedTuple):
    """One copy of the weights and what runs on it."""

    model: PreTrainedModel
    forward: Forward


class WeightBank:
    """Models by version.

    Attributes:
        config: the model's own configuration.
        cache_shape: of the key-value cache that the model needs.
        current: what unpinned requests are served with; None before the first activation.
    """

    def __init__(self, options: EngineOptions, policy_dir: Path, weights_path: Callable[[Address], Path]) -> None:
        """Raises ConfigError when the folder holds no decoder that the slot cache can serve."""
        self.config = config = _read_config(policy_dir, options)
        self.cache_shape = CacheShape(
            layers=config.num_hidden_layers,
            slots=options.slots,
            heads=config.num_key_value_heads,
            length=options.context + 1,
            head_size=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
        )
        self.current: PolicyRef | None = None
        self._options = options
        self._weights_path = weights_path
        self._addresses: dict[PolicyRef, Address] = {}
        self._models: dict[int, _Copy] = {}
        self._active: set[int] = set()
        self._spare: list[_Copy] = [self._build()]

    @property
    def size_bytes(self) -> int:
        """Bytes of one copy of the weights."""
        copy = self._spare[0] if self._spare else next(iter(self._models.values()))
        return sum(parameter.nbytes for parameter in copy.model.parameters())

    @property
    def held(self) -> tuple[int, ...]:
        """Versions in memory, rising, staged ones included."""
        return tuple(sorted(self._models))

    def serves(self, version: int) -> bool:
        """Whether the version was activated and is still held."""
        return version in self._active

    def model(self, version: int) -> PreTrainedModel:
        """The model of a held version.

        Raises:
            InferenceError: REJECTED when it is not held.
        """
        copy = self._models.get(version)
        if copy is None:
            raise InferenceError(f"version {version} is not held; held are {list(self.held)}", Outcome.REJECTED)
        return copy.model

    def forward(self, version: int) -> Forward:
        """The passes of a held version."""
        return self._models[version].forward

    def stage(self, policy: PolicyRef, weights: Address) -> None:
        """Loads a version aside, or finds it loaded.

        Raises:
            InferenceError: REJECTED when the version stood for other weights before, the file is missing, does not hash
                to its address, does not fit the model or holds a value that is not finite.
        """
        known = self._addresses.get(policy)
        if known is not None and known != weights:
            raise _refused(policy, f"it stood for weights {known} before, not {weights}; versions are never reused")
        if self.current is not None and policy.policy_id != self.current.policy_id:
            raise _refused(policy, f"this engine serves {self.current.policy_id}")
        if policy.version in self._models:
            return
        state = self._read(policy, weights)
        copy = self._spare.pop() if self._spare else self._build()
        try:
            _load(copy.model, state)
        except ValueError as error:
            self._spare.append(copy)
            raise _refused(policy, str(error)) from error
        self._addresses[policy] = weights
        self._models[policy.version] = copy

    def activate(self, policy: PolicyRef) -> None:
        """Makes a staged version the current one.

        Raises:
            InferenceError: REJECTED when it was not staged, or is older than the current one.
        """
        if policy not in self._addresses or policy.version not in self._models:
            raise _refused(policy, "it was not staged")
        if self.current is not None and policy.version < self.current.version:
            raise _refused(policy, f"{self.current} is newer; versions never fall")
        # What was staged before and never activated can no longer become current.
        for version in [held for held in self._models if held < policy.version and held not in self._active]:
            self._unload(version)
        self.current = policy
        self._active.add(policy.version)

    def retain(self, versions: frozenset[int]) -> None:
        """Unloads every activated version that is neither current nor among `versions`."""
        current = None if self.current is None else self.current.version
        for version in sorted(self._active - versions - {current}):
            self._active.discard(version)
            self._unload(version)

    def _unload(self, version: int) -> None:
        copy = self._models.pop(version)
        if not self._spare:  # one spare saves building a model at every publication
            self._spare.append(copy)

    def _read(self, policy: PolicyRef, weights: Address) -> dict[str, torch.Tensor]:
        try:
            data = self._weights_path(weights).read_bytes()
            check_address(weights, data, f"weights of {policy}")
            state = safetensors.torch.load(data)
        except (KeyError, OSError, IntegrityError, safetensors.SafetensorError) as error:
            raise _refused(policy, f"weights {weights} cannot be read: {error!r}") from error
        for name, tensor in state.items():
            if not bool(torch.isfinite(tensor).all()):
                raise _refused(policy, f"{name} holds a value that is not finite")
        return state

    def _build(self) -> _Copy:
        # The random initial weights are overwritten by `stage`; the process's own random state must not notice.
        with torch.random.fork_rng(devices=[]):
            model = AutoModelForCausalLM.from_config(
                self.config,
                attn_implementation=self._options.attention,
                dtype=getattr(torch, self._options.dtype),
            )
        model.eval().requires_grad_(False)
        _lay_out(model)
        return _Copy(model, Forward(model, self.cache_shape, is_recorded=self._options.is_recorded))


def _lay_out(model: PreTrainedModel) -> None:
    """Stores the weights of linear layers by input feature; their shapes and meaning stay the same.

    Passes of a few rows then multiply up to 1.8 times as fast. An embedding that is tied is read by token and stays.
    """
    embedding = model.get_input_embeddings().weight
    for module in model.modules():
        if isinstance(module, torch.nn.Linear) and module.weight is not embedding:
            module.weight.data = module.weight.data.t().contiguous().t()


def _refused(policy: PolicyRef, why: str) -> InferenceError:
    return InferenceError(f"{policy} is refused: {why}", Outcome.REJECTED)


def _read_config(policy_dir: Path, options: EngineOptions) -> Any:
    """The model configuration. Raises ConfigError for what slots of plain full attention cannot hold."""
    options.check()
    try:
        config = AutoConfig.from_pretrained(policy_dir, local_files_only=True)
    except (OSError, ValueError, json.JSONDecodeError) as error:
        raise ConfigError(f"{policy_dir}: no readable model configuration: {error}") from error
    window = getattr(config, "sliding_window", None) or options.context
    kinds = set(getattr(config, "layer_types", None) or ["full_attention" if window >= options.context else "sliding"])
    rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    if kinds != {"full_attention"} or rope in _UNSUPPORTED_ROPE:
        raise ConfigError(
            f"{policy_dir}: layers {sorted(kinds)} with {rope} positions; the embedded engine holds full attention with "
            "fixed positions only, use a served engine for others"
        )
    if options.context > config.max_position_embeddings:
        raise ConfigError(
            f"inference.options.context is {options.context}; the model has {config.max_position_embeddings} positions"
        )
    return config


def _load(model: PreTrainedModel, state: dict[str, torch.Tensor]) -> None:
    """Copies the weights into the model; tied ones follow. Raises ValueError when the two do not fit."""
    tied: dict[str, str] = dict(model.all_tied_weights_keys)
    for target, source in tied.items():
        if target in state and source in state and not torch.equal(state[target], state[source]):
            raise ValueError(f"{target} differs from {source}, to which the model ties it")
    try:
        missing, unexpected = model.load_state_dict(state, strict=False)
    except RuntimeError as error:
        raise ValueError(str(error)) from error
    # Of two tied names either may stand in the file; absent is only what neither name provides.
    absent = [name for name in missing if tied.get(name, name) not in state and not _is_tied_source(name, tied, state)]
    if absent or unexpected:
        raise ValueError(f"weights do not fit the model: missing {absent[:5]}, unexpected {unexpected[:5]}")
    model.tie_weights()
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for target, source in tied.items():
        # Engines are known to keep a stale output layer here.
        if parameters[target].data_ptr() != parameters[source].data_ptr():
            raise ValueError(f"{target} does not follow {source} after loading")


def _is_tied_source(name: str, tied: dict[str, str], state: dict[str, torch.Tensor]) -> bool:
    return any(source == name and target in state for target, source in tied.items())
