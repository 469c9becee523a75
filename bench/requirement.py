"""A figure and the bound that it has to keep."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Requirement:
    """One figure and its bound.

    Attributes:
        what: in words.
        measured: the figure.
        sign: "≥", "≤", "<" or ">".
        bound: what it has to be.
    """

    what: str
    measured: float
    sign: str
    bound: float

    @property
    def met(self) -> bool:
        """Whether the figure keeps the bound."""
        match self.sign:
            case "≥":
                return self.measured >= self.bound
            case "≤":
                return self.measured <= self.bound
            case ">":
                return self.measured > self.bound
            case _:
                return self.measured < self.bound
