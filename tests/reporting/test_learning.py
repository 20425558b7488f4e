"""What the report says of the learning signal: by difficulty, and of its choices."""

import msgspec
import pytest
from event_logs import report_of, two_updates

from headrace.config import AlgorithmSection
from headrace.control.scoring import signal_figures
from headrace.records.batch import BatchPlanned, MembersRemoved
from headrace.records.ids import Address
from headrace.records.learning.corrections import NoCorrection, TokenTis
from headrace.records.update import (
    BatchScored,
    RowScore,
    StratumScored,
    StratumUpdate,
    TokenCounts,
    UpdateCompleted,
)
from headrace.reporting.grids import Grid
from headrace.reporting.sections.learning import learning

FIGURES = signal_figures(
    [RowScore(Address(str(n)), 0, 4, ratio, 0.1, None, 0.1, 0.2) for n, ratio in enumerate((0.0, 2.0))]
)


def detailed():
    """The hand-written log, with figures of the one difficulty that each update trained."""
    log = two_updates()
    names = {1: "easy", 2: "hard"}
    for place, event in enumerate(log.events):
        payload = event.payload
        match payload:
            case BatchScored(update=update):
                changed = msgspec.structs.replace(payload, strata=(StratumScored(names[update], FIGURES),))
            case UpdateCompleted(result=result):
                counts = TokenCounts(tokens=10, kept=8, branch_binds=2, ratio_outside=3)
                changed = msgspec.structs.replace(payload, strata=(StratumUpdate(names[result.update], counts),))
            case BatchPlanned(update=update):
                changed = msgspec.structs.replace(payload, removed=(MembersRemoved("overlong_mask", names[update], 2),))
            case _:
                continue
        log.events[place] = msgspec.structs.replace(event, payload=changed)
    return log


def text(items):
    return "\n".join(
        item if isinstance(item, str) else "\n".join(" ".join(row) for row in (item.columns, *item.rows))
        for item in items
    )


def test_information_uses_the_sample_size_of_each_difficulty():
    plain, fine = report_of(two_updates()).information, report_of(detailed()).information
    by_name = {row.difficulty: row.trained for row in plain.strata}
    for row in fine.strata:
        whole_batch = {"easy": 0.5, "hard": 0.9}[row.difficulty]
        assert row.trained == pytest.approx(by_name[row.difficulty] / whole_batch * FIGURES.ess_fraction)
    assert 0.5 < FIGURES.ess_fraction < 0.9


def test_figures_and_removals_are_shown_by_difficulty():
    signal = report_of(detailed()).signal
    assert [row.difficulty for row in signal.strata] == ["easy", "hard"]
    assert signal.strata[0].rows == 2
    assert signal.strata[0].kl_k1 == pytest.approx(-0.25)
    assert signal.strata[0].counts.kept == 8
    assert [(row.filter, row.difficulty, row.members) for row in signal.removed] == [
        ("overlong_mask", "easy", 2),
        ("overlong_mask", "hard", 2),
    ]
    shown = text(learning(report_of(detailed()), True))
    assert "overlong_mask" in shown
    assert "80" in shown  # 8 of 10 tokens kept, in percent


def _with(algorithm):
    report = report_of(two_updates())
    config = msgspec.structs.replace(report.facts.config, algorithm=algorithm)
    return msgspec.structs.replace(report, facts=msgspec.structs.replace(report.facts, config=config))


def test_a_correction_is_shown_with_what_it_supposes():
    shown = list(learning(_with(AlgorithmSection(anchor="old", corrections=(TokenTis(),))), True))
    grid = next(item for item in shown if isinstance(item, Grid) and "supposes" in item.columns)
    assert grid.rows[0][0] == "token_tis"
    assert "positive probability" in grid.rows[0][1]
    assert grid.rows[0][-1] == "unchanged"


def test_no_correction_on_old_data_is_said_in_words():
    shown = text(learning(_with(AlgorithmSection(anchor="old", corrections=(NoCorrection(),))), True))
    assert "by choice" in shown
    assert "by choice" not in text(learning(_with(AlgorithmSection()), True))
    assert "no second weight" in text(learning(_with(AlgorithmSection()), True))
