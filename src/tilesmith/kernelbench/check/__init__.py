"""Judging a candidate: two processes, one with the reference and one with the candidate, and a parent that believes
neither more than it must.

    judge      the parent: asks both, and decides
    reference  the reference's process: makes secret inputs, and compares results with float64
    worker     the candidate's process: builds it, calls it, and writes down what came out
    sandbox    starts such a process, limits its time and memory, and ends it with all of its children
    inputs     kinds of inputs, layouts and sizes
    precision  error bounds that know K, and the precision classes that they make
    watch      what a call did: the operations and kernels that ran, and what it changed in torch
    speed      times side by side with torch, and the roofline
    verdict    what was found, for people and as JSON
"""
