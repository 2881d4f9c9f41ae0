"""Chat templates, token extension over turns, and the recorder of what was sampled. No torch."""
