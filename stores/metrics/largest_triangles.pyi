import numpy as np
from numpy.typing import NDArray

def choose_values(rows: list[NDArray[np.float64]], results: NDArray[np.float64], /) -> None: ...
