"""Bug fixing: tasks made from real packages, the environments that pose them, rows as SWE-bench has them."""
