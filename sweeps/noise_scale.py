"""noise_scale: random initial states from far too small to far too large, beside the control and state passing."""

from sweeps.paper_preset import PAPER, require_published
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
    require_published(settings)
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
        # Half the base's rows and few windows beside the report's: less than six minutes on two cores.
        "demo": {"trial.rows": 24, "eval.select_windows": 6, "eval.apart_windows": 2},
        "paper": PAPER,
    },
    trials=trials,
)
