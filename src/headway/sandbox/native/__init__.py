"""The local provider's helper in C, built with the machine's compiler at its first use."""
