"""Compiled programs: what `torch.compile` makes of a product and of what follows it, while an override is in force."""
