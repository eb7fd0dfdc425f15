"""An extension that was compiled against NumPy is imported and used."""

import json

import bottleneck
import numpy as np

print(json.dumps({"mean": float(bottleneck.nanmean(np.array([1.0, np.nan, 3.0]))), "numpy": np.__version__}))
