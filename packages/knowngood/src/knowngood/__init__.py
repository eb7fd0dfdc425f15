"""Known-good container images for training transformer models, and the matrix that proves them."""

__version__ = "0.1.0"
