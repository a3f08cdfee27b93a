"""TensorBoard and Weights & Biases get the curves: the real packages, where they are installed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from op_tools.errors import SettingError
from op_tools.watch import TrainingWatch, receivers

from .training import steps_in, train


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_gets_the_curves(device, tmp_path, monkeypatch):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monkeypatch.setattr(receivers, "SECONDS_BETWEEN_MODULES", 0.0)
    with TrainingWatch(out=tmp_path, verbose=0, to="tensorboard"):
        train(device, 3)
    (folder,) = Path(tmp_path).glob("watch_result/*/tensorboard")
    events = EventAccumulator(str(folder)).Reload()
    curve = [(event.step, event.value) for event in events.Scalars("loss")]
    assert curve == [(row["step"], pytest.approx(row["loss"], rel=1e-5)) for row in steps_in(tmp_path)]
    tags = events.Tags()["scalars"]
    assert {"gradients/norm", "weights/norm", "gradients_rms/2.1", "activations_zeros/1"} <= set(tags)


@pytest.mark.slow
def test_weights_and_biases_get_the_curves(run_python, tmp_path):
    """In a process of its own, offline: it starts threads and a service."""
    pytest.importorskip("wandb")
    done = run_python(
        """
        import sys, glob
        sys.path.insert(0, sys.argv[2])
        from ditorch import sim
        sim.start()
        from op_tools.watch import TrainingWatch
        from tests.op_tools.watch.training import train
        with TrainingWatch(out=sys.argv[1], verbose=0, to="wandb"):
            train("sim", 3)
        import wandb
        assert wandb.run is None
        print("files", len(glob.glob(sys.argv[1] + "/watch_result/*/wandb/offline-run-*/*.wandb")))
        run = wandb.init(mode="offline", dir=sys.argv[1])
        with TrainingWatch(out=sys.argv[1], verbose=0, to="wandb"):
            train("sim", 2)
        assert wandb.run is run
        run.log({"own": 1})
        print("own run", dict(run.summary).get("watch/step"), sorted(dict(run.summary))[:3])
        run.finish()
        """,
        str(tmp_path),
        str(Path(__file__).parents[3]),
        WANDB_MODE="offline",
        WANDB_SILENT="true",
        DITORCH_DISABLE_MOCK="1",
    )
    assert "files 1" in done.stdout, done.stdout + done.stderr
    assert "own run" in done.stdout


@pytest.mark.parametrize("name", ["tensorboard", "wandb"])
def test_a_package_that_is_missing_is_said(name, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(SettingError, match=f"OP_WATCH_TO={name} needs its package: pip install {name}"):
        TrainingWatch(to=name).start()


def test_a_receiver_that_fails_is_told_once(device, tmp_path, monkeypatch, capsys):
    class Broken:
        def __init__(self, folder):
            pass

        def add(self, scalars, step):
            raise RuntimeError("no connection")

    monkeypatch.setitem(receivers._MAKERS, "wandb", Broken)
    with TrainingWatch(out=tmp_path, verbose=0, to="wandb") as watch:
        train(device, 3)
    said = capsys.readouterr().err
    assert said.count("wandb gets no more curves: RuntimeError: no connection") == 1
    assert watch.results.calls == 3
