"""C9, manifests: what a checkpoint names is whole when it is recorded, and nothing is restored from bytes that do not hash.

A file that retention removed makes a manifest unloadable, which is no breach; a file with other bytes than its name is one
as soon as somebody loads it.
"""

from collections.abc import Callable

from headrace.checkers.law import Violation
from headrace.records.checkpoint import CheckpointWritten, Manifest, RunResumed
from headrace.records.events import Event
from headrace.records.ids import Address

Look = Callable[[Address], bool | None]
"""Whether the stored bytes hash to their address; None when there are none."""


class Manifests:
    """Checks C9, as events happen.

    Args:
        look: examines the store.
    """

    def __init__(self, look: Look) -> None:
        self._look = look
        self._manifests: dict[int, Manifest] = {}

    def observe(self, event: Event) -> list[Violation]:
        match event.payload:
            case CheckpointWritten(update=update, manifest=manifest):
                self._manifests[update] = manifest
                what, bad = f"the checkpoint of update {update} is recorded", self._bad(manifest)
            case RunResumed(checkpoint=int(update)) if update in self._manifests:
                what, bad = f"the run resumed from update {update}", self._bad(self._manifests[update])
            case _:
                return []
        return [
            Violation("C9", event.seq, f"{what}, but {address} is {'absent' if state is None else 'damaged'}")
            for address, state in bad.items()
        ]

    def _bad(self, manifest: Manifest) -> dict[Address, bool | None]:
        states = {address: self._look(address) for address in (manifest.weights, *manifest.parts.values())}
        return {address: state for address, state in states.items() if state is not True}
