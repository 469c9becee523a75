"""A figure that was measured in several rounds."""

import statistics


class Rounds(list[float]):
    """One number per round. As one number, and in a formatted string, it is the median over the rounds."""

    def __float__(self) -> float:
        return float(statistics.median(self))

    def __format__(self, spec: str) -> str:
        return format(float(self), spec)

    def __truediv__(self, other: "Rounds") -> "Rounds":
        """Return the ratio in each round; a disturbance of one round affects both numbers, so it cancels out."""
        return Rounds(ours / theirs for ours, theirs in zip(self, other, strict=True))
