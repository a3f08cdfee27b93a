"""Not for import: `ditorch run` puts this folder on PYTHONPATH, and Python then runs sitecustomize.py as it starts."""
