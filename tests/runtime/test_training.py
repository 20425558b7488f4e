"""What a person is told when a run stops before its end."""

from pathlib import Path

import pytest

from headrace.config import load_config
from headrace.errors import HeadraceError, ProcessError
from headrace.runtime import training
from headrace.runtime.local import LocalRun

JOB = Path(__file__).parents[2] / "examples" / "arithmetic" / "train.toml"


@pytest.mark.parametrize("cause", [ProcessError("the engine is gone"), KeyboardInterrupt()])
def test_a_run_that_stops_before_its_end_says_how_to_go_on(
    cause: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def stops(run: LocalRun) -> None:
        (run.folder / "journal.db").touch()
        raise cause

    monkeypatch.setattr(training, "run_local", stops)
    with pytest.raises((HeadraceError, KeyboardInterrupt)):
        training.train(load_config(JOB, ()), tmp_path, "cut")
    assert f"headrace train --resume {tmp_path / 'cut'}" in capsys.readouterr().out
