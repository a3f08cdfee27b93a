"""`python op_tools/process_monitor.py --pid PID` at the root of a checkout, with nothing installed; see src/op_tools.

This folder is no package: it has no __init__.py, and `import op_tools` goes on to the real one.
"""

import runpy
from pathlib import Path

if __name__ == "__main__":
    root = Path(__file__).resolve().parents[1]
    runpy.run_path(str(root / "src" / "op_tools" / "process_monitor.py"), run_name="__main__")
