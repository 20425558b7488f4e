"""A stateful environment as a person would write it."""


class Notebook:
    """Notes of one episode."""

    def __init__(self) -> None:
        self._notes: list[str] = []

    def note(self, text: str) -> str:
        """Writes a note."""
        self._notes.append(text)
        return "ok"

    def notes(self) -> str:
        """All notes."""
        return "\n".join(self._notes)
