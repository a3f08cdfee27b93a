"""Makes a captured call into a script that needs torch only and fails while the fault is there."""
