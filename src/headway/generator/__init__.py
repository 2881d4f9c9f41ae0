"""Engines that turn token ids into token ids, behind `headway.core.protocols.Engine`."""
