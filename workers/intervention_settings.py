"""The settings `intervention.*`: which of them an arm uses is said in `workers.arms`."""

from dataclasses import dataclass

from workers.arms import ARMS
from workers.setting_checks import is_number, require

_CHOICES = {
    "reset_by": ("row", "batch"),
    "passing": ("in_place", "permuted"),
    "document_end": ("reset", "carry"),
    "scope": ("head", "layer", "all"),
}


@dataclass(frozen=True, kw_only=True)
class InterventionSettings:
    """How h_{-1}, the state before the first token of a training window, is drawn."""

    sigma: float = 0.0
    """Standard deviation of random noise, in units of the state; one value for all layers and heads."""
    beta: float = 0.1
    """Weight of the old mean and variance in fitted noise's update; the NEW batch weighs 1 - beta (paper: 0.1)."""
    reset_probability: float = 0.1
    """Probability that a carried state is replaced by zero (paper: 0.1)."""
    reset_by: str = "row"
    """`row`: drawn for each row and step; `batch`: for each step, all rows alike. The paper does not say which."""
    passing: str = "in_place"
    """`in_place`: a row gets its own last state; `permuted`: rows are permuted in every step, across workers too."""
    parts: tuple[str, ...] = ("recurrent",)
    """Parts of the state an intervention touches; the others start from zero. TBTT carries all of them."""
    document_end: str = "reset"
    """`reset`: TBTT starts a document from zero state; `carry`: from the state after the document before."""
    factor: int = 4
    """Length of `longer_context`'s windows in `trial.context`; its rows are fewer by the same factor."""
    scope: str = "head"
    """Where correlated noise shares coefficients, and so keeps covariances: within a `head`, a `layer`, or `all`."""
    capacity: int = 128
    """States that a reservoir holds."""
    mixture: tuple[str, ...] = ("zero", "state_passing")
    """The two arms of a mixture."""
    mixture_probability: float = 0.5
    """Probability of the first of them, drawn for each row and step."""

    def __post_init__(self) -> None:
        require(is_number(self.sigma) and self.sigma >= 0, "intervention.sigma", self.sigma, "a number of at least 0")
        for name in ("beta", "reset_probability", "mixture_probability"):
            value = getattr(self, name)
            require(is_number(value) and 0 <= value <= 1, f"intervention.{name}", value, "a number from 0 to 1")
        for name, words in _CHOICES.items():
            value = getattr(self, name)
            require(value in words, f"intervention.{name}", value, " or ".join(map(repr, words)))
        require(self.factor >= 2, "intervention.factor", self.factor, "a whole number of at least 2")
        require(self.capacity >= 2, "intervention.capacity", self.capacity, "a whole number of at least 2")
        known = ("recurrent", "conv")
        require(
            bool(self.parts) and set(self.parts) <= set(known) and len(set(self.parts)) == len(self.parts),
            "intervention.parts",
            list(self.parts),
            f"some of {known}, each once",
        )
        mixable = [arm.name for arm in ARMS.values() if arm.mixes]
        require(
            len(self.mixture) == 2 and set(self.mixture) <= set(mixable) and self.mixture[0] != self.mixture[1],
            "intervention.mixture",
            list(self.mixture),
            f"two of {', '.join(mixable)}",
        )
