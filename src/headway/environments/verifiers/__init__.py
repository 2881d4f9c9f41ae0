"""Packages made for the library verifiers as environments `verifiers:NAME`."""
