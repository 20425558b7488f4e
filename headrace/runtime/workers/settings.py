"""What a parent tells its children on their command line, as JSON after `--settings`."""

import argparse
import sys
from typing import Any, TypeVar

import msgspec

from headrace.config import AlgorithmSection, Config

T = TypeVar("T")


class EngineSettings(msgspec.Struct, frozen=True):
    """Attributes:
    options: `EngineOptions` as plain values.
    policy: folder with the model's configuration.
    blobs: folder of weights by content address.
    """

    options: dict[str, Any]
    policy: str
    blobs: str


class TrainerSettings(msgspec.Struct, frozen=True):
    """Attributes:
    options: `TrainerOptions` as plain values.
    policy: folder with version 0.
    run: folder of the run, whose journal is read and whose blobs are written.
    policy_id: name of the policy.
    algorithm: the learning signal.
    """

    options: dict[str, Any]
    policy: str
    run: str
    policy_id: str
    algorithm: AlgorithmSection


class GraderSettings(msgspec.Struct, frozen=True):
    """Attributes:
    kind: which grader.
    options: its options as plain values.
    uid: user to become once everything is loaded; None to stay.
    readable: all that it may read from then on, where the kernel can hold it to that.
    """

    kind: str
    options: dict[str, Any]
    uid: int | None = None
    readable: tuple[str, ...] = ()


class WarmStartJob(msgspec.Struct, frozen=True):
    """Attributes:
    config: the whole configuration.
    out: folder to make.
    """

    config: Config
    out: str


class ConversionJob(msgspec.Struct, frozen=True):
    """Attributes:
    source: GGUF file.
    out: folder to make.
    """

    source: str
    out: str


def command(module: str, settings: msgspec.Struct) -> list[str]:
    """The command line of a worker of ours."""
    return [sys.executable, "-m", f"headrace.runtime.workers.{module}", *settings_arguments(settings)]


def settings_arguments(settings: msgspec.Struct) -> list[str]:
    """The arguments that carry a worker's settings."""
    return ["--settings", msgspec.json.encode(settings).decode()]


def parse(kind: type[T]) -> tuple[T, int]:
    """(settings, channel descriptor) of this process."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--settings", required=True)
    parser.add_argument("--channel-fd", type=int, required=True)
    arguments = parser.parse_args()
    return msgspec.json.decode(arguments.settings, type=kind), arguments.channel_fd
