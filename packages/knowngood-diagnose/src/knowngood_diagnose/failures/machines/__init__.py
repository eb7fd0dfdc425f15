"""Why an installation, a compiler, a GPU, its driver or NCCL failed, by what they say beside the error."""
