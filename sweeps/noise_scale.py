"""noise_scale: random initial states from far too small to far too large, beside the control and state passing."""

from pathlib import Path

from sweeps.registry import NamedSweep
from sweeps.settings import SettingError, Settings
from workers.settings import TrialConfig

SIGMAS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
"""Standard deviations around that of the demo base's state: 0.03 after 256 bytes, 0.09 after 8K."""


PUBLISHED = "mamba2-130m"
"""Local folder of the published base of the preset `paper`: state-spaces/mamba2-130m."""
PUBLISHED_TOKENIZER = "tokenizer.json"
"""Local file of its tokenizer, that of GPT-NeoX."""


def trials(settings: Settings, seeds: list[int]) -> list[TrialConfig]:
    """base once, then zero, every sigma and state passing for each seed."""
    sigmas = settings.sweep.values or SIGMAS
    if len(set(sigmas)) != len(sigmas):
        raise SettingError(f"sweep.values has a value twice: {list(sigmas)}; write each once")
    _require_published(settings)
    configs = [settings.trial_config("base", seed=seeds[0])]
    for seed in seeds:
        configs.append(settings.trial_config("zero", seed=seed))
        for sigma in sigmas:
            configs.append(settings.trial_config("random_noise", seed=seed, sigma=sigma))
        configs.append(settings.trial_config("state_passing", seed=seed))
    return configs


def _require_published(settings: Settings) -> None:
    """Raise SettingError while a file that the preset `paper` names, and that cannot be shipped, is not here."""
    tokenizer = Path(settings.data.tokenizer)
    missing = [PUBLISHED] if settings.base.checkpoint == PUBLISHED else []
    if tokenizer == Path(PUBLISHED_TOKENIZER).absolute() and not tokenizer.is_file():
        missing.append(PUBLISHED_TOKENIZER)
    if missing:
        raise SettingError(
            f"the preset paper needs files that are not shipped, and {' and '.join(missing)} cannot be found in "
            f"{Path.cwd()}: fetch the published state-spaces/mamba2-130m (config.json and weights) and its GPT-NeoX "
            "tokenizer.json, and write --set base.checkpoint=FOLDER --set data.tokenizer=FOLDER/tokenizer.json --set "
            "data.files=FILES, with long documents for windows of eval.length tokens"
        )


SWEEP = NamedSweep(
    name="noise_scale",
    question="Which scale of random initial states repairs length generalisation, and does state passing beat it?",
    varies="intervention.sigma",
    presets={
        # Half the base's rows and few windows beside the report's: less than six minutes on two cores.
        "demo": {"trial.rows": 24, "eval.select_windows": 6, "eval.apart_windows": 2},
        "paper": {
            "model.size": "130m",
            "base.checkpoint": PUBLISHED,
            "data.tokenizer": PUBLISHED_TOKENIZER,
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
