"""Running a program of a user's in the image of a cell: which cell, how its image gets here, and the container.

In: a request, what is known of cells, the state of this machine, an engine. Out: an image in the engine, and the
command of a container tool. Never: options, printed text, or a container that is started here.
"""
