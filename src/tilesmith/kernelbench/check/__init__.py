"""Judging a candidate: two processes, one with the reference and one with the candidate, and a parent that believes
neither more than it must.

In the parent:
    judge      starts the processes, and judges a candidate in one of the modes
    strict     the mode that trusts nothing
    official   the mode that does as KernelBench does
    sanitizer  one call under compute-sanitizer
    session    what the modes ask of the two processes
    sandbox    a process with limits, which ends with all of its children
    verdict    what was found, for people and as JSON

In the reference's process:
    reference  makes secret inputs, and compares results with float64
    inputs     kinds of inputs, layouts and sizes
    analysis   the products of a model, and how rounding shows in it

In the candidate's process:
    worker     builds the candidate, calls it, and writes down what came out
    watch      the operations and kernels that ran, and what was changed in torch
    speed      times side by side with torch (and, in the parent, the roofline)

In both: loading (files as modules), wire (messages) and exchange (tensors). The error bounds that know K, and the
precision classes that they make, are in bench/precision.py.
"""
