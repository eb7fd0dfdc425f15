"""Stands in for DeepSpeed, which has no wheel: XTuner imports it always and uses it only under ZeRO and for saving."""
