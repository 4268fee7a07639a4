"""Entropy bonus with a fixed coefficient, or one that holds the entropy at a target."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Entropy:
    """Subtracts coefficient·aggregate(entropy) from the loss.

    Attributes:
        coef: the coefficient, or where an adaptive one starts.
        target: nats per token to hold; None keeps coef fixed.
        step: change of the coefficient per update.
        max_coef: upper bound of an adaptive coefficient.

    Source: adaptive coefficient, arXiv:2505.22312 §4.
    """

    coef: float = 0.0
    target: float | None = None
    step: float = 1e-4
    max_coef: float = 0.1

    def __post_init__(self) -> None:
        if self.coef < 0 or self.step < 0 or self.max_coef < self.coef:
            raise ValueError(
                f"entropy: needs 0 <= coef <= max_coef and step >= 0, got coef={self.coef}, "
                f"max_coef={self.max_coef}, step={self.step}"
            )

    def following(self, coef: float, measured: float) -> float:
        """The next coefficient: one bounded step up if the measured entropy (nats per token) is below the target."""
        if self.target is None or measured != measured:  # NaN: an update without tokens measured nothing
            return coef
        return min(max(coef + (self.step if measured < self.target else -self.step), 0.0), self.max_coef)
