"""training_tokens: checkpoints along one long training, each as it is and after a post-training."""

from dataclasses import replace

from sweeps.demo_preset import DEMO
from sweeps.paper_preset import BASE_RATES, PAPER, tokens_of_text
from sweeps.registry import NamedSweep
from sweeps.settings import SettingError, Settings
from sweeps.trials import Trial, base_trial, post_training, swept
from workers.settings import TRAINED_BASE

NAME = "base.step"


def trials(settings: Settings, seeds: list[int]) -> list[Trial]:
    """One training, which keeps its model after each of these steps; base, zero and state passing from each."""
    if settings.base.checkpoint != TRAINED_BASE:
        raise SettingError(
            f"base.checkpoint is {settings.base.checkpoint!r}, but this sweep looks into the training of its base; "
            "leave it out, or write base.checkpoint=trained"
        )
    steps = [int(step) for step in swept(settings, NAME)]
    for step in steps:
        if not 1 <= step <= settings.base.steps:
            raise SettingError(
                f"sweep.values holds {step}, but the training has steps 1 to {settings.base.steps}; write some of "
                "these, or raise base.steps"
            )
    training = base_trial(settings, seeds[0])
    kept = replace(training.config.trial, keep_models=tuple(steps))
    training = replace(training, config=replace(training.config, trial=kept), arm="training")
    listed = [training]
    for step in steps:
        listed.append(post_training(settings, training, "base", seeds[0], {NAME: step}))
        for seed in seeds:
            listed += [post_training(settings, training, arm, seed, {NAME: step}) for arm in ("zero", "state_passing")]
    return listed


SWEEP = NamedSweep(
    name="training_tokens",
    question="Does a model that is trained for longer generalise worse in length, and is it harder to repair?",
    why="A model can only fail on states that its training left unexplored; the more it fits the explored ones, the "
    "more it may depend on them.",
    figure="Fig. 3",
    paper_found="Checkpoints of a Mamba-2 of 85M at a context of 1024, from 20 to 400 tokens a parameter: later "
    "ones are better within the context and worse beyond it, from about 150 tokens a parameter on.",
    contradicts="Later checkpoints that hold as far as earlier ones, or further.",
    varies=NAME,
    fixed=("trial.keep_models",),
    presets={
        "demo": {
            **DEMO,
            "base.checkpoint": TRAINED_BASE,
            "base.steps": 660,
            "trial.checkpoint_every": 110,
            "sweep.values": (40.0, 80.0, 165.0, 330.0, 660.0),
        },
        "paper": {
            **PAPER,
            "model.size": "85m",
            "base.checkpoint": TRAINED_BASE,
            # 34B tokens in steps of 0.5M; kept after 1.7B, 4.25B, 12.75B and 34B.
            "base.steps": 64_850,
            "data.max_tokens": tokens_of_text(34_000_000_000),
            "base.rows": 512,
            "base.peak_lr": BASE_RATES["85m"],
            "base.min_lr": 1e-5,
            "trial.context": 1024,
            "trial.rows": 512,
            "trial.checkpoint_every": 500,
            "sweep.values": (3_242.0, 8_106.0, 24_319.0, 64_850.0),
        },
    },
    trials=trials,
)
