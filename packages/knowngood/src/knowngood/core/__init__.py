"""What all rooms share: cells, the matrix and its schema, GPUs, image records, errors, local files.

In: the text of `matrix.yaml` and of records. Out: frozen values; for bad input, an error with file, line and column.
Never: the network, an engine, a GPU, or a decision that belongs to another room.
"""
