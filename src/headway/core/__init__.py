"""The vocabulary that every room shares. Standard library only."""
