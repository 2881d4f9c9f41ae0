"""Advantages, policy losses and the one normaliser. Only the losses import torch."""
