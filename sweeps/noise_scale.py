"""noise_scale: random initial states from far too small to far too large, beside the control and state passing."""

from sweeps.registry import NamedSweep
from sweeps.settings import SettingError, Settings
from workers.settings import TrialConfig

SIGMAS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
"""Standard deviations around that of the demo base's state: 0.03 after 256 bytes, 0.09 after 8K."""


def trials(settings: Settings, seeds: list[int]) -> list[TrialConfig]:
    """base once, then zero, every sigma and state passing for each seed."""
    sigmas = settings.sweep.values or SIGMAS
    if len(set(sigmas)) != len(sigmas):
        raise SettingError(f"sweep.values has a value twice: {list(sigmas)}; write each once")
    configs = [settings.trial_config("base", seed=seeds[0])]
    for seed in seeds:
        configs.append(settings.trial_config("zero", seed=seed))
        for sigma in sigmas:
            configs.append(settings.trial_config("random_noise", seed=seed, sigma=sigma))
        configs.append(settings.trial_config("state_passing", seed=seed))
    return configs


SWEEP = NamedSweep(
    name="noise_scale",
    question="Which scale of random initial states repairs length generalisation, and does state passing beat it?",
    varies="intervention.sigma",
    presets={
        "demo": {},
        "paper": {
            "model.size": "130m",
            "base.checkpoint": "mamba2-130m",
            "data.packing": "eos",
            "trial.context": 2048,
            "trial.rows": 256,
            "trial.micro_rows": 8,
            "trial.precision": "bf16",
            "optimizer.peak_lr": 3e-4,
            "optimizer.min_lr": 1e-5,
            "eval.length": 32768,
            "eval.windows": 64,
            "eval.select_windows": 32,
            "eval.chunk": 4096,
        },
    },
    trials=trials,
)
