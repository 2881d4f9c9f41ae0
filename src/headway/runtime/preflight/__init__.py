"""What is looked at before a run starts: one file a subject, one small function a check."""
