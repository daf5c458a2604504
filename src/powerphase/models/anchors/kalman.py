"""A linear Gaussian state space with more observed series than states, and its Kalman filter."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64


@dataclass(frozen=True, eq=False)
class StateSpace:
    """States x' = A x + w with w ~ N(0, Q), observed as y = L x + e with e ~ N(0, diag R)."""

    transition: Float64[np.ndarray, "R R"]
    """A."""
    state_noise: Float64[np.ndarray, "R R"]
    """Q."""
    loading: Float64[np.ndarray, "Y R"]
    """L."""
    noise: Float64[np.ndarray, " Y"]
    """R, the variance of each observation's own error."""
    start: Float64[np.ndarray, "R R"]
    """The covariance of the state before the first observation; its mean is 0."""

    def filter(
        self, observed: Float64[np.ndarray, "B D Y"]
    ) -> tuple[Float64[np.ndarray, "B R"], Float64[np.ndarray, "R R"]]:
        """Mean and covariance of the state at the last of D observations, which are equally many.

        In the information form, an update inverts matrices of the size of the state only, however
        many series are observed.
        """
        weighted = self.loading / self.noise[:, None]
        information = self.loading.T @ weighted
        mean, covariance = np.zeros((len(observed), len(self.start))), self.start
        for day in range(observed.shape[1]):
            if day:
                mean, covariance = self.predict(mean, covariance)
            precision = np.linalg.inv(covariance)
            covariance = _symmetric(np.linalg.inv(precision + information))
            mean = (mean @ precision + observed[:, day] @ weighted) @ covariance
        return mean, covariance

    def predict(
        self, mean: Float64[np.ndarray, "B R"], covariance: Float64[np.ndarray, "R R"]
    ) -> tuple[Float64[np.ndarray, "B R"], Float64[np.ndarray, "R R"]]:
        """Mean and covariance of the next state."""
        spread = self.transition @ covariance @ self.transition.T + self.state_noise
        return mean @ self.transition.T, _symmetric(spread)


def _symmetric(matrix: Float64[np.ndarray, "R R"]) -> Float64[np.ndarray, "R R"]:
    return (matrix + matrix.T) / 2
