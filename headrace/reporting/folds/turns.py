"""Turns of the trainer on shared devices: what they cost generation."""

import msgspec

from headrace.records.events import Event
from headrace.records.update import GenerationPaused, GenerationResumed


class Turns(msgspec.Struct, frozen=True):
    """All turns that ended; zeros where engine and trainer have devices of their own.

    Attributes:
        number: how many.
        held_s: seconds in which generation stood still for training and publication.
        switch_s: seconds of stopping and going on besides.
        running: sum over the turns of the sequences that stood still in mid-generation.
        computed_tokens: tokens that engines computed meanwhile; 0 in every lawful run.
    """

    number: int = 0
    held_s: float = 0.0
    switch_s: float = 0.0
    running: int = 0
    computed_tokens: int = 0


class TurnTimes:
    """Adds up turns from their two ends."""

    def __init__(self) -> None:
        self._begun: GenerationPaused | None = None
        self._turns = Turns()

    def observe(self, event: Event) -> None:
        """Takes the next event."""
        match event.payload:
            case GenerationPaused():
                self._begun = event.payload
            case GenerationResumed(held_s=held_s, switch_s=switch_s, computed_tokens=computed) if self._begun:
                turns, begun, self._begun = self._turns, self._begun, None
                self._turns = Turns(
                    turns.number + 1,
                    turns.held_s + held_s,
                    turns.switch_s + begun.switch_s + switch_s,
                    turns.running + begun.running,
                    turns.computed_tokens + computed - begun.computed_tokens,
                )
            case _:
                pass

    def result(self) -> Turns:
        """The figures so far."""
        return self._turns
