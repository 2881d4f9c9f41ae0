"""What runs in a package's own virtual environment: no module of Headway's is imported here."""
