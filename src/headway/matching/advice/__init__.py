"""Findings about a run, one file a family; `headway.matching.advise` ranks them."""
