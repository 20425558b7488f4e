"""C4 from outside: what the world counted. An external action takes effect at most once, and in one attempt of its member.

The journal can only say what was asked for; how often something happened, the executor knows.
"""

from collections.abc import Mapping

from headrace.checkers.law import Violation
from headrace.records.ids import ActionId, GroupId


def check_effects(effects: Mapping[ActionId, int]) -> list[Violation]:
    """What happened more often than once.

    Args:
        effects: how often each external action took effect, over all executors and processes.
    """
    found: list[Violation] = []
    acted: dict[tuple[GroupId, int], int] = {}
    for action, count in sorted(effects.items(), key=lambda item: str(item[0])):
        if count > 1:
            found.append(Violation("C4", 0, f"{action} took effect {count} times outside; once is allowed"))
        episode = action.episode
        first = acted.setdefault((episode.group, episode.member), episode.attempt)
        if first != episode.attempt:
            found.append(
                Violation(
                    "C4",
                    0,
                    f"{episode.group}.{episode.member} took effect outside in attempts {first} and {episode.attempt}",
                )
            )
    return found
