"""The tiny checkpoint: its corpus, its training, and what is measured of it.

    python -m kvlab.lab.training OUT            train, save, measure (about an hour on two cores)
    python -m kvlab.lab.training OUT --smoke    the same path in a minute, for a model of no use
    python -m kvlab.viz.training OUT            draw the loss curve of what lies in OUT

Importing this package does not import the model; ``kvlab.lab.training.run`` does, which takes
seconds.
"""
