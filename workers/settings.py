"""What one trial does: the settings `base.*`, `intervention.*`, `trial.*`, `optimizer.*`, `eval.*`, all together."""

import dataclasses
import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

from models.kernels import FUSED, check_kernel_device
from models.registry import kernel_of
from models.settings import ModelSettings
from storage.settings import BankSettings, DataSettings
from workers.arms import ARMS, Arm, check_arm, parts_of
from workers.evaluations.diagnostics import DIAGNOSTICS
from workers.intervention_settings import InterventionSettings
from workers.setting_checks import is_number, require, require_some_of

RECIPE_VERSION = 2
"""Raised whenever the code changes in a way that changes a trial's numbers, so that old results are not continued."""

BF16_RECIPE = 1
"""The same for trials in bf16 alone."""

FUSED_TOKENS = 2**14
"""Most tokens of a row in one call of a fused scan in evaluations; `models.scans.fused` checks every call."""

FRESH_BASE = "fresh"
"""The `base.checkpoint` of a model that starts from its initialisation instead of a checkpoint."""
TRAINED_BASE = "trained"
"""The `base.checkpoint` that stands for the model of another trial of the same sweep, which trains it first."""


@dataclass(frozen=True, kw_only=True)
class BaseSettings:
    """The checkpoint a trial starts from."""

    checkpoint: str = "demo-mamba2"
    """A folder with config.json and weights, a shipped base (`models/bases/`), a checkpoint of the Hugging Face hub
    (`owner/name`), `fresh` for a new initialisation, or `trained`: the sweep trains it once, and its trials start from
    it. A sweep's own default is the base that is shipped or published for its architecture and size, else `trained`."""
    revision: str = "main"
    """Branch, tag or commit of a checkpoint of the hub. A run finds its commit once, and its trials keep that."""
    seed: int = 0
    """Seed of a `fresh` or `trained` initialisation. Different from `trial.seed`, which keys data, noise and resets."""
    steps: int = 330
    """Steps of a base that the sweep trains; with its rows and a context of 64, a million tokens."""
    rows: int = 48
    """Sequences in a step of its training."""
    peak_lr: float = 3e-3
    """Highest learning rate of its training; post-training uses a tenth, as the paper does."""
    min_lr: float = 1.5e-4
    """Learning rate at its last step."""
    step: int = 0
    """Start from the model after so many of its steps, one of those that its training keeps; 0: after the last."""

    def __post_init__(self) -> None:
        require(bool(self.checkpoint), "base.checkpoint", self.checkpoint, "a folder, a shipped name or 'fresh'")
        require(bool(self.revision), "base.revision", self.revision, "a branch, tag or commit, or leave it out")
        require(0 <= self.seed < 2**63, "base.seed", self.seed, "a whole number from 0 to below 2^63")
        for name in ("steps", "rows"):
            require(getattr(self, name) >= 1, f"base.{name}", getattr(self, name), "a whole number of at least 1")
        for name in ("peak_lr", "min_lr"):
            value = getattr(self, name)
            require(is_number(value) and value >= 0, f"base.{name}", value, "a number of at least 0")
        require(
            self.min_lr <= self.peak_lr, "base.min_lr", self.min_lr, f"at most base.peak_lr, which is {self.peak_lr}"
        )
        require(
            0 <= self.step <= self.steps, "base.step", self.step, f"0, or at most base.steps, which is {self.steps}"
        )


@dataclass(frozen=True, kw_only=True)
class TrialSettings:
    """Length and shape of one post-training run, and what it runs on."""

    steps: int = 100
    """Optimiser steps."""
    context: int = 64
    """T, tokens per training window."""
    rows: int = 48
    """G, sequences in the global batch of one optimiser step."""
    micro_rows: int = 0
    """Rows of one forward pass of one worker; 0: all rows of the worker at once."""
    seed: int = 0
    """Keys the data order, the noise and the resets, with step and row."""
    workers: int = 1
    """Processes of the trial; more than one run through a Ray Train worker group."""
    threads: int = 1
    """CPU threads of each worker."""
    device: str = "auto"
    """`cpu`; `cuda`: a GPU for each worker, also where an autoscaler must bring it; `auto`: GPUs if there are any."""
    precision: str = "fp32"
    """`fp32`, or `bf16` for weights and activations: states, scans, the parameters that decays are made of, sums of
    gradients and the optimiser stay in fp32."""
    activation_checkpointing: bool = False
    """Whether the backward pass computes every layer again instead of keeping what it needs: the same numbers from much
    less memory, at about a third more work."""
    zero_stage: int = 1
    """DeepSpeed ZeRO stage, 0 to 3."""
    checkpoint_every: int = 50
    """Steps between checkpoints; 0: none."""
    keep_models: tuple[int, ...] = ()
    """Steps after which the model is kept beside the trial's last one, for trials that start from it."""
    max_skipped: int = 5
    """Steps in a row that may be skipped because loss, gradient or state is not finite; one more fails the trial."""

    def __post_init__(self) -> None:
        for name, least in (("steps", 1), ("context", 1), ("rows", 1), ("workers", 1), ("threads", 1)):
            require(getattr(self, name) >= least, f"trial.{name}", getattr(self, name), "a whole number of at least 1")
        for name in ("micro_rows", "seed", "checkpoint_every", "max_skipped"):
            require(getattr(self, name) >= 0, f"trial.{name}", getattr(self, name), "a whole number of at least 0")
        require(
            all(1 <= step <= self.steps for step in self.keep_models),
            "trial.keep_models",
            list(self.keep_models),
            f"steps from 1 to trial.steps, which is {self.steps}",
        )
        require(self.device in ("auto", "cpu", "cuda"), "trial.device", self.device, "'auto', 'cpu' or 'cuda'")
        require(self.precision in ("fp32", "bf16"), "trial.precision", self.precision, "'fp32' or 'bf16'")
        require(self.zero_stage in (0, 1, 2, 3), "trial.zero_stage", self.zero_stage, "0, 1, 2 or 3")


SCHEDULES = ("cosine", "constant", "wsd")


@dataclass(frozen=True, kw_only=True)
class OptimizerSettings:
    """AdamW with linear warm-up and a schedule. Post-training takes a tenth of the base's peak, as in the paper."""

    peak_lr: float = 3e-4
    """Highest learning rate, reached at the end of the warm-up."""
    min_lr: float = 1.5e-5
    """Learning rate at the last step."""
    warmup_share: float = 0.1
    """Share of the steps spent on linear warm-up (paper: 0.1)."""
    weight_decay: float = 0.1
    """Decay of matrices; A_log, dt_bias, D, norms and biases have none."""
    clip: float = 1.0
    """Largest gradient norm."""
    beta1: float = 0.9
    """AdamW's first moment decay (paper: 0.9)."""
    beta2: float = 0.95
    """AdamW's second moment decay (paper: 0.95)."""
    schedule: str = "cosine"
    """After the warm-up: `cosine` from the peak to `min_lr`; `constant`; or `wsd`, constant with a short linear decay
    to `min_lr` at the end. Under `wsd` a trial that is stopped early was at full rate, like those that go on."""
    decay_share: float = 0.2
    """Share of the steps spent on the decay of `wsd`; other schedules do not use it."""

    def __post_init__(self) -> None:
        for name in ("peak_lr", "min_lr", "weight_decay", "clip"):
            value = getattr(self, name)
            require(is_number(value) and value >= 0, f"optimizer.{name}", value, "a number of at least 0")
        require(self.clip > 0, "optimizer.clip", self.clip, "a number above 0")
        require(
            self.min_lr <= self.peak_lr,
            "optimizer.min_lr",
            self.min_lr,
            f"at most optimizer.peak_lr, which is {self.peak_lr}",
        )
        for name in ("warmup_share", "beta1", "beta2", "decay_share"):
            value = getattr(self, name)
            require(is_number(value) and 0 <= value < 1, f"optimizer.{name}", value, "a number from 0 to below 1")
        require(self.schedule in SCHEDULES, "optimizer.schedule", self.schedule, " or ".join(map(repr, SCHEDULES)))
        require(
            self.schedule != "wsd" or self.warmup_share + self.decay_share <= 1,
            "optimizer.decay_share",
            self.decay_share,
            f"at most what optimizer.warmup_share leaves, which is {1 - self.warmup_share:g}",
        )


@dataclass(frozen=True, kw_only=True)
class EvalSettings:
    """Windows on which perplexity against position is measured, always from zero state."""

    length: int = 16384
    """Positions of an evaluation window, in tokens."""
    windows: int = 16
    """Windows of the report split; tables and figures come from these."""
    select_windows: int = 8
    """Windows of the select split, on which sigma is chosen."""
    apart_windows: int = 4
    """Windows of the book kept apart from the shipped corpus; 0 for none, and none with files of one's own."""
    chunk: int = 512
    """Tokens of one forward pass; the state is carried from chunk to chunk. Memory grows with it, results do not."""
    every: int = 0
    """Steps between evaluations on the select split during training; 0: only at the end."""
    diagnostics: tuple[str, ...] = tuple(DIAGNOSTICS)
    """Diagnostics beside the curves, see `docs/evaluations/`; empty: none."""
    diagnostic_windows: int = 2
    """Windows of the report split that the diagnostics read, its first ones; 0: no diagnostics."""
    diagnostic_length: int = 0
    """Positions that the diagnostics read of a window, its first ones; 0: all."""
    remembrance_factor: int = 4
    """Length T of the texts of `effective_remembrance` in `trial.context` (paper: 4)."""

    def __post_init__(self) -> None:
        for name in ("length", "windows", "select_windows", "chunk", "remembrance_factor"):
            require(getattr(self, name) >= 1, f"eval.{name}", getattr(self, name), "a whole number of at least 1")
        for name in ("apart_windows", "every", "diagnostic_windows", "diagnostic_length"):
            require(getattr(self, name) >= 0, f"eval.{name}", getattr(self, name), "a whole number of at least 0")
        require_some_of("eval.diagnostics", self.diagnostics, tuple(DIAGNOSTICS))


@dataclass(frozen=True, kw_only=True)
class TrialConfig:
    """Everything one trial needs to know. `identity` is its name in folders and in the tracking store."""

    arm: str
    """The intervention, see `workers.arms`."""
    model: ModelSettings = field(default_factory=ModelSettings)
    base: BaseSettings = field(default_factory=BaseSettings)
    data: DataSettings = field(default_factory=DataSettings)
    intervention: InterventionSettings = field(default_factory=InterventionSettings)
    trial: TrialSettings = field(default_factory=TrialSettings)
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    eval: EvalSettings = field(default_factory=EvalSettings)
    bank: BankSettings = field(default_factory=BankSettings)

    def __post_init__(self) -> None:
        check_arm(self.arm)
        self._check_rows()
        self._check_precision()
        self._check_kernel()
        require(
            not self.bank_content or self.bank.shards <= self.batch_rows,
            "bank.shards",
            self.bank.shards,
            f"at most the {self.batch_rows} rows of a step",
        )

    def _check_rows(self) -> None:
        trial, longer = self.trial, self._longer
        require(
            trial.rows % longer == 0, "trial.rows", trial.rows, f"a multiple of intervention.factor, which is {longer}"
        )
        require(
            self.batch_rows % trial.workers == 0,
            "trial.rows",
            trial.rows,
            f"a multiple of trial.workers, which is {trial.workers}"
            + (f", times intervention.factor, which is {longer}" if longer > 1 else ""),
        )
        require(
            (self.batch_rows // trial.workers) % self.micro_rows == 0,
            "trial.micro_rows",
            trial.micro_rows,
            f"a divisor of the {trial.rows // trial.workers} rows of a worker",
        )

    def _check_precision(self) -> None:
        """Refuse what DeepSpeed 0.19 would train in another precision than the setting promises."""
        if self.trial.precision != "bf16":
            return
        require(
            self.trial.zero_stage != 0 or self.micro_rows == self.batch_rows // self.trial.workers,
            "trial.zero_stage",
            0,
            "at least 1 for several micro-batches in bf16: stage 0 adds their gradients up in bf16; or "
            "trial.micro_rows=0",
        )

    def _check_kernel(self) -> None:
        check_kernel_device(self.model.kernel, self.trial.device)
        require(
            self.kernel != FUSED or self.eval.chunk <= FUSED_TOKENS,
            "eval.chunk",
            self.eval.chunk,
            f"at most {FUSED_TOKENS} with fused kernels, whose offsets have 32 bits",
        )

    @property
    def kernel(self) -> str:
        """The form of the scan that runs: `model.kernel`, with `auto` resolved by `trial.device`, whatever machine."""
        return kernel_of(self.model, self.trial.device)

    @property
    def _longer(self) -> int:
        return self.intervention.factor if self.arm == "longer_context" else 1

    @property
    def window(self) -> int:
        """Tokens of a training window: `trial.context`, but for longer windows."""
        return self.trial.context * self._longer

    @property
    def batch_rows(self) -> int:
        """G, rows of the global batch: `trial.rows`, but fewer for longer windows, so that a step has equal tokens."""
        return self.trial.rows // self._longer

    @property
    def micro_rows(self) -> int:
        """Rows of one forward pass of one worker."""
        if not self.trial.micro_rows:
            return self.batch_rows // self.trial.workers
        return max(1, self.trial.micro_rows // self._longer)

    @property
    def drawing_arms(self) -> tuple[Arm, ...]:
        """The arms that draw the initial states: those that a mixture mixes, else the arm itself."""
        return parts_of(self.arm, self.intervention.mixture)

    @property
    def bank_content(self) -> frozenset[str]:
        """What goes through the state bank: `states`, `moments`, `reservoir`, or nothing."""
        return frozenset(content for arm in self.drawing_arms for content in arm.bank)

    def to_dict(self) -> dict[str, Any]:
        """Plain nested dictionary; tuples become lists, so that it survives JSON unchanged."""
        return json.loads(json.dumps(dataclasses.asdict(self)))

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "TrialConfig":
        """The inverse of `to_dict`."""
        groups = {name: settings(**_tuples(values[name])) for name, settings in TRIAL_GROUPS.items()}
        return cls(arm=values["arm"], **groups)


TRIAL_GROUPS: dict[str, type[Any]] = {
    "model": ModelSettings,
    "base": BaseSettings,
    "data": DataSettings,
    "intervention": InterventionSettings,
    "trial": TrialSettings,
    "optimizer": OptimizerSettings,
    "eval": EvalSettings,
    "bank": BankSettings,
}
"""The groups of settings of a trial, by the first half of a setting's name."""


def _tuples(values: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}


NOT_IN_IDENTITY = {
    "data": (
        *("files", "tokenizer", "cache"),
        *("dataset", "dataset_config", "dataset_split", "revision", "max_tokens"),  # in `data_hash`
    ),
    "base": ("checkpoint", "revision", "steps", "rows", "peak_lr", "min_lr"),
    "trial": ("workers", "threads", "device", "micro_rows", "zero_stage", "checkpoint_every", "max_skipped")
    + ("activation_checkpointing",),
    "eval": ("chunk", "every"),
    "bank": ("shards", "mode"),
}
"""Settings that say where and how fast, not what: the numbers do not depend on them beyond rounding."""


def trial_identity(config: TrialConfig, base_hash: str, data_hash: str) -> str:
    """Hash (64 hexadecimal digits) of all that can change a trial's numbers and of nothing else.

    `base_hash` and `data_hash` (which covers the tokenizer's file) are content hashes: the same files under other paths
    give the same identity.
    """
    values = config.to_dict()
    for group, names in NOT_IN_IDENTITY.items():
        for name in names:
            del values[group][name]
    used = {name for arm in (ARMS[config.arm], *config.drawing_arms) for name in arm.settings}
    values["intervention"] = {name: value for name, value in values["intervention"].items() if name in used}
    values["model"]["kernel"] = config.kernel
    if config.base.checkpoint != FRESH_BASE:
        del values["base"]["seed"]
    if config.trial.precision == "bf16":
        values["bf16_recipe"] = BF16_RECIPE
    if config.optimizer.schedule != "wsd":
        del values["optimizer"]["decay_share"]
    values |= {"recipe": RECIPE_VERSION, "base_hash": base_hash, "data_hash": data_hash}
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
