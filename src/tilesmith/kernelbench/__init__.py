"""Problem files of KernelBench's kind: from a PyTorch model to a kernel that is proven."""
