"""The report of a run as one HTML page. No plotting library is loaded before a page is written."""
