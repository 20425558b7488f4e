"""Tasks on files: the policy works in a folder, and the grader reads what lies in it at the end."""

from collections.abc import Iterator

import msgspec

from headrace.extend import Call, Problem

FRUITS = ("apple", "pear", "plum", "cherry", "quince", "medlar")


def sorted_lists() -> Iterator[Problem]:
    """A list in a file is to be sorted into another one."""
    for start in range(len(FRUITS)):
        for count in (2, 3, 4):
            fruits = [FRUITS[(start + 5 * k) % len(FRUITS)] for k in range(count)]
            yield Problem(
                f"Sort the {count} lines of {fruits[0]}.txt into out.txt.",
                "".join(f"{fruit}\n" for fruit in sorted(fruits)),
                difficulty=f"{count} lines",
                data={"files": {f"{fruits[0]}.txt": "".join(f"{fruit}\n" for fruit in fruits)}},
                oracle=[Call("shell", code=f"sort {fruits[0]}.txt > out.txt"), "done"],
            )


def out_is_sorted(problem: Problem, artifact: bytes) -> float:
    """1 when out.txt is what it should be; the artifact maps names to bytes, and is empty when nothing may be read."""
    files = msgspec.msgpack.decode(artifact, type=dict[str, bytes]) if artifact else {}
    return float(files.get("out.txt") == problem.answer.encode())
