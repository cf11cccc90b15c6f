"""One trial through Ray Tune, as a sweep starts it, on the tests' own cluster."""

from pathlib import Path
from typing import Any

from ray import tune

from workers.settings import TrialConfig
from workers.trainable import TrialJob, run_trial, trial_name, trial_resources


def tune_one(config: TrialConfig, folder: Path, cache: Path, **run: Any) -> "tune.ResultGrid":
    """Run `config` in `folder`, whose name is the trial's; `run` are further settings of Tune's run.

    What Tune itself writes lies beside the folder.
    """
    job = TrialJob(
        config=config.to_dict(),
        name=folder.name,
        identity=folder.name,
        folder=str(folder),
        cache=str(cache),
        sweep_id="test-sweep",
        gpus_per_worker=0,
    )
    return tune.Tuner(
        tune.with_resources(run_trial, trial_resources),
        param_space={"job": tune.grid_search([job.as_dict()])},
        tune_config=tune.TuneConfig(trial_name_creator=trial_name, trial_dirname_creator=trial_name),
        run_config=tune.RunConfig(name="tune", storage_path=str(folder.parent), verbose=0, **run),
    ).fit()
