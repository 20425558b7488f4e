from headrace.scheduling.admission import Admission, AdmissionState


def decide(outstanding: int, version: int = 0, *, is_exhausted: bool = False) -> str | None:
    return Admission(updates=5, batch_groups=2).hold_reason(AdmissionState(outstanding, 4, version, is_exhausted))


def test_a_group_is_admitted_exactly_up_to_the_credit() -> None:
    assert decide(3) is None
    assert decide(4) == "credit: 4 of 4 slots charged"


def test_no_group_is_admitted_that_the_run_cannot_use() -> None:
    assert decide(1, version=4) is None
    assert decide(2, version=4) == "the run needs no further group"


def test_an_exhausted_source_admits_nothing() -> None:
    assert decide(0, is_exhausted=True) == "source exhausted"
